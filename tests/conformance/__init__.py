"""Suites that every backend passes, as test classes that its own tests inherit.

    class TestDQN(DQNConformance):
        adapter = TorchAdapter()

The same numpy weights and batches go in; losses, updated weights and actions must agree with a numpy reference that is
derived here (`reference`, `reference_losses`), in float32 to 1e-5 and in float64 to 1e-9. A file that one backend wrote
is the same as the other's, because both are compared with the same names, layouts and numbers.
"""

from conformance.a2c import A2CConformance
from conformance.actor_learner import ActorLearnerConformance
from conformance.adapter import Adapter
from conformance.agent import AgentConformance
from conformance.apex import ApexConformance
from conformance.awac import AWACConformance
from conformance.bc import BCConformance
from conformance.bootstrapped_ddpg import BootstrappedDDPGConformance
from conformance.c51 import C51Conformance, RainbowConformance
from conformance.cql import CQLConformance
from conformance.crossq import CrossQConformance
from conformance.ddpg import DDPGConformance
from conformance.decision_transformer import DecisionTransformerConformance
from conformance.discrete_sac import DiscreteSACConformance
from conformance.dqn import DQNConformance
from conformance.impala import IMPALAConformance, VTraceConformance
from conformance.iql import IQLConformance
from conformance.lazy import LazyLayersConformance
from conformance.maddpg import MADDPGConformance
from conformance.mappo import COMAConformance, IPPOConformance, MAPPOConformance
from conformance.model import ModelConformance
from conformance.noisy import NoisyConformance
from conformance.oac import OACConformance
from conformance.offline_q import OfflineQConformance
from conformance.on_policy import OnPolicyConformance
from conformance.policy_gradient import PolicyGradientConformance
from conformance.ppo import PPOConformance
from conformance.qmix import QMIXConformance
from conformance.qr_dqn import QRDQNConformance
from conformance.rebrac import ReBRACConformance
from conformance.redq import DroQConformance, REDQConformance
from conformance.resume import ResumeConformance
from conformance.rnd import RNDConformance
from conformance.sac import SACConformance
from conformance.separate_ppo import SeparatePPOConformance
from conformance.targets import TargetConformance
from conformance.td3 import TD3Conformance
from conformance.td3_bc import TD3BCConformance
from conformance.tqc import TQCConformance

__all__ = [
    "A2CConformance",
    "AWACConformance",
    "ActorLearnerConformance",
    "Adapter",
    "AgentConformance",
    "ApexConformance",
    "BCConformance",
    "BootstrappedDDPGConformance",
    "C51Conformance",
    "COMAConformance",
    "CQLConformance",
    "CrossQConformance",
    "DDPGConformance",
    "DQNConformance",
    "DecisionTransformerConformance",
    "DiscreteSACConformance",
    "DroQConformance",
    "IMPALAConformance",
    "IPPOConformance",
    "IQLConformance",
    "LazyLayersConformance",
    "MADDPGConformance",
    "MAPPOConformance",
    "ModelConformance",
    "NoisyConformance",
    "OACConformance",
    "OfflineQConformance",
    "OnPolicyConformance",
    "PPOConformance",
    "PolicyGradientConformance",
    "QMIXConformance",
    "QRDQNConformance",
    "REDQConformance",
    "RNDConformance",
    "RainbowConformance",
    "ReBRACConformance",
    "ResumeConformance",
    "SACConformance",
    "SeparatePPOConformance",
    "TD3BCConformance",
    "TD3Conformance",
    "TQCConformance",
    "TargetConformance",
    "VTraceConformance",
]
