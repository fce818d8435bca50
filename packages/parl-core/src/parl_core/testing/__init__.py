"""What every backend must do alike, as test classes that its own tests inherit; needs pytest.

    class TestDQN(DQNConformance):
        adapter = TorchAdapter()

The same numpy weights and batches go in; losses, updated weights and actions must agree with a numpy reference that is
derived here (`reference`, `reference_losses`), in float32 to 1e-5 and in float64 to 1e-9. A file that one backend wrote
is the same as the other's, because both are compared with the same names, layouts and numbers.
"""

from parl_core.testing.adapter import Adapter
from parl_core.testing.agent import AgentConformance
from parl_core.testing.dqn import DQNConformance
from parl_core.testing.lazy import LazyLayersConformance
from parl_core.testing.model import ModelConformance
from parl_core.testing.policy_gradient import PolicyGradientConformance
from parl_core.testing.ppo import PPOConformance
from parl_core.testing.separate_ppo import SeparatePPOConformance

__all__ = [
    "Adapter",
    "AgentConformance",
    "DQNConformance",
    "LazyLayersConformance",
    "ModelConformance",
    "PPOConformance",
    "PolicyGradientConformance",
    "SeparatePPOConformance",
]
