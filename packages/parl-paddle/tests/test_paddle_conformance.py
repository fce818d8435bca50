"""The suite that both backends run, on PaddlePaddle."""

from typing import Any

import paddle

from conformance import (
    A2CConformance,
    ActorLearnerConformance,
    AgentConformance,
    ApexConformance,
    BootstrappedDDPGConformance,
    C51Conformance,
    COMAConformance,
    CrossQConformance,
    DDPGConformance,
    DiscreteSACConformance,
    DQNConformance,
    DroQConformance,
    IMPALAConformance,
    IPPOConformance,
    LazyLayersConformance,
    MADDPGConformance,
    MAPPOConformance,
    ModelConformance,
    NoisyConformance,
    OACConformance,
    OnPolicyConformance,
    PolicyGradientConformance,
    PPOConformance,
    QMIXConformance,
    QRDQNConformance,
    RainbowConformance,
    REDQConformance,
    RNDConformance,
    SACConformance,
    SeparatePPOConformance,
    TargetConformance,
    TD3Conformance,
    TQCConformance,
    VTraceConformance,
)
from parl_paddle.backend import PaddleBackend


class PaddleAdapter:
    backend = PaddleBackend()

    def seed(self, seed: int) -> None:
        paddle.seed(seed)

    def double(self, model: Any) -> Any:
        return model.to(dtype="float64")


class TestModel(ModelConformance):
    adapter = PaddleAdapter()


class TestLazyLayers(LazyLayersConformance):
    adapter = PaddleAdapter()


class TestAgent(AgentConformance):
    adapter = PaddleAdapter()


class TestPolicyGradient(PolicyGradientConformance):
    adapter = PaddleAdapter()


class TestDQN(DQNConformance):
    adapter = PaddleAdapter()


class TestMADDPG(MADDPGConformance):
    adapter = PaddleAdapter()


class TestQMIX(QMIXConformance):
    adapter = PaddleAdapter()


class TestQRDQN(QRDQNConformance):
    adapter = PaddleAdapter()


class TestC51(C51Conformance):
    adapter = PaddleAdapter()


class TestRainbow(RainbowConformance):
    adapter = PaddleAdapter()


class TestDiscreteSAC(DiscreteSACConformance):
    adapter = PaddleAdapter()


class TestApex(ApexConformance):
    adapter = PaddleAdapter()


class TestRND(RNDConformance):
    adapter = PaddleAdapter()


class TestNoisyLayers(NoisyConformance):
    adapter = PaddleAdapter()


class TestPPO(PPOConformance):
    adapter = PaddleAdapter()


class TestSeparatePPO(SeparatePPOConformance):
    adapter = PaddleAdapter()


class TestA2C(A2CConformance):
    adapter = PaddleAdapter()


class TestBootstrappedDDPG(BootstrappedDDPGConformance):
    adapter = PaddleAdapter()


class TestDDPG(DDPGConformance):
    adapter = PaddleAdapter()


class TestTD3(TD3Conformance):
    adapter = PaddleAdapter()


class TestSAC(SACConformance):
    adapter = PaddleAdapter()


class TestTQC(TQCConformance):
    adapter = PaddleAdapter()


class TestREDQ(REDQConformance):
    adapter = PaddleAdapter()


class TestDroQ(DroQConformance):
    adapter = PaddleAdapter()


class TestCrossQ(CrossQConformance):
    adapter = PaddleAdapter()


class TestOAC(OACConformance):
    adapter = PaddleAdapter()


class TestIMPALA(IMPALAConformance):
    adapter = PaddleAdapter()


class TestVTrace(VTraceConformance):
    adapter = PaddleAdapter()


class TestOnPolicy(OnPolicyConformance):
    adapter = PaddleAdapter()


class TestActorLearner(ActorLearnerConformance):
    adapter = PaddleAdapter()


class TestTargets(TargetConformance):
    adapter = PaddleAdapter()


class TestMAPPO(MAPPOConformance):
    adapter = PaddleAdapter()


class TestIPPO(IPPOConformance):
    adapter = PaddleAdapter()


class TestCOMA(COMAConformance):
    adapter = PaddleAdapter()
