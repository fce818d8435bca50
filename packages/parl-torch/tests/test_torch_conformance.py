"""parl-torch does what every backend must do; the suites are in `conformance`."""

from typing import Any

import torch

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
from parl_torch.backend import TorchBackend


class TorchAdapter:
    backend = TorchBackend()

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def double(self, model: Any) -> Any:
        return model.double()


class TestModel(ModelConformance):
    adapter = TorchAdapter()


class TestLazyLayers(LazyLayersConformance):
    adapter = TorchAdapter()


class TestAgent(AgentConformance):
    adapter = TorchAdapter()


class TestPolicyGradient(PolicyGradientConformance):
    adapter = TorchAdapter()


class TestDQN(DQNConformance):
    adapter = TorchAdapter()


class TestMADDPG(MADDPGConformance):
    adapter = TorchAdapter()


class TestQMIX(QMIXConformance):
    adapter = TorchAdapter()


class TestQRDQN(QRDQNConformance):
    adapter = TorchAdapter()


class TestC51(C51Conformance):
    adapter = TorchAdapter()


class TestRainbow(RainbowConformance):
    adapter = TorchAdapter()


class TestDiscreteSAC(DiscreteSACConformance):
    adapter = TorchAdapter()


class TestApex(ApexConformance):
    adapter = TorchAdapter()


class TestRND(RNDConformance):
    adapter = TorchAdapter()


class TestNoisyLayers(NoisyConformance):
    adapter = TorchAdapter()


class TestPPO(PPOConformance):
    adapter = TorchAdapter()


class TestSeparatePPO(SeparatePPOConformance):
    adapter = TorchAdapter()


class TestA2C(A2CConformance):
    adapter = TorchAdapter()


class TestBootstrappedDDPG(BootstrappedDDPGConformance):
    adapter = TorchAdapter()


class TestDDPG(DDPGConformance):
    adapter = TorchAdapter()


class TestTD3(TD3Conformance):
    adapter = TorchAdapter()


class TestSAC(SACConformance):
    adapter = TorchAdapter()


class TestTQC(TQCConformance):
    adapter = TorchAdapter()


class TestREDQ(REDQConformance):
    adapter = TorchAdapter()


class TestDroQ(DroQConformance):
    adapter = TorchAdapter()


class TestCrossQ(CrossQConformance):
    adapter = TorchAdapter()


class TestOAC(OACConformance):
    adapter = TorchAdapter()


class TestIMPALA(IMPALAConformance):
    adapter = TorchAdapter()


class TestVTrace(VTraceConformance):
    adapter = TorchAdapter()


class TestOnPolicy(OnPolicyConformance):
    adapter = TorchAdapter()


class TestActorLearner(ActorLearnerConformance):
    adapter = TorchAdapter()


class TestTargets(TargetConformance):
    adapter = TorchAdapter()


class TestMAPPO(MAPPOConformance):
    adapter = TorchAdapter()


class TestIPPO(IPPOConformance):
    adapter = TorchAdapter()


class TestCOMA(COMAConformance):
    adapter = TorchAdapter()
