"""Training loops over agents, environments and numpy: one loop serves every backend.

Read `on_policy` for the loop of PPO, `episodes` for that of REINFORCE, `standard` for what is watched and saved.
"""

from parl_core.training.command_line import parse_settings
from parl_core.training.episodes import run_episode, train_by_episodes
from parl_core.training.evaluation import evaluate
from parl_core.training.events import Callback, Ended, Episode, Evaluation, Stop, Update
from parl_core.training.on_policy import OnPolicySettings, train_on_policy
from parl_core.training.run import Run
from parl_core.training.standard import standard_callbacks

__all__ = [
    "Callback",
    "Ended",
    "Episode",
    "Evaluation",
    "OnPolicySettings",
    "Run",
    "Stop",
    "Update",
    "evaluate",
    "parse_settings",
    "run_episode",
    "standard_callbacks",
    "train_by_episodes",
    "train_on_policy",
]
