"""What every backend must do alike, as test classes that its own tests inherit; needs pytest.

    class TestDQN(DQNConformance):
        adapter = TorchAdapter()

The same numpy weights and batches go in; losses, updated weights and actions must agree with a numpy reference that is
derived here (`reference`, `reference_losses`), in float32 to 1e-5 and in float64 to 1e-9. A file that one backend wrote
is the same as the other's, because both are compared with the same names, layouts and numbers.
"""

from parl_core.testing.a2c import A2CConformance
from parl_core.testing.actor_learner import ActorLearnerConformance
from parl_core.testing.adapter import Adapter
from parl_core.testing.agent import AgentConformance
from parl_core.testing.bootstrapped_ddpg import BootstrappedDDPGConformance
from parl_core.testing.cql import CQLConformance
from parl_core.testing.ddpg import DDPGConformance
from parl_core.testing.decision_transformer import DecisionTransformerConformance
from parl_core.testing.dqn import DQNConformance
from parl_core.testing.impala import IMPALAConformance, VTraceConformance
from parl_core.testing.iql import IQLConformance
from parl_core.testing.lazy import LazyLayersConformance
from parl_core.testing.model import ModelConformance
from parl_core.testing.oac import OACConformance
from parl_core.testing.offline_q import OfflineQConformance
from parl_core.testing.on_policy import OnPolicyConformance
from parl_core.testing.policy_gradient import PolicyGradientConformance
from parl_core.testing.ppo import PPOConformance
from parl_core.testing.resume import ResumeConformance
from parl_core.testing.sac import SACConformance
from parl_core.testing.separate_ppo import SeparatePPOConformance
from parl_core.testing.targets import TargetConformance
from parl_core.testing.td3 import TD3Conformance

__all__ = [
    "A2CConformance",
    "ActorLearnerConformance",
    "Adapter",
    "AgentConformance",
    "BootstrappedDDPGConformance",
    "CQLConformance",
    "DDPGConformance",
    "DQNConformance",
    "DecisionTransformerConformance",
    "IMPALAConformance",
    "IQLConformance",
    "LazyLayersConformance",
    "ModelConformance",
    "OACConformance",
    "OfflineQConformance",
    "OnPolicyConformance",
    "PPOConformance",
    "PolicyGradientConformance",
    "ResumeConformance",
    "SACConformance",
    "SeparatePPOConformance",
    "TD3Conformance",
    "TargetConformance",
    "VTraceConformance",
]
