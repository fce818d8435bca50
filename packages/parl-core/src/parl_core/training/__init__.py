"""Training loops over agents, environments and numpy: one loop serves every backend.

Read `on_policy` for the loop of PPO, `off_policy` for that of DQN and SAC, `actor_learner` for that of IMPALA and GA3C,
`apex` for that of Ape-X, `episodes` for that of REINFORCE, `self_play` for frozen opponents, `standard` for what is
watched and saved. `from parl_core import training` gives a program everything that it needs around its agent, including
vector environments, actors and seeds. Each name is imported at its first use, so the import itself is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parl_core.actors import choose_actors as choose_actors
    from parl_core.actors import open_actors as open_actors
    from parl_core.backends import Learners as Learners
    from parl_core.backends import join_learners as join_learners
    from parl_core.env.normalize import NormalizeVector as NormalizeVector
    from parl_core.env.vector import make_vector_env as make_vector_env
    from parl_core.seeding import seed_everything as seed_everything
    from parl_core.training.actor_learner import ActorLearnerSettings as ActorLearnerSettings
    from parl_core.training.actor_learner import train_actor_learner as train_actor_learner
    from parl_core.training.apex import ApexSettings as ApexSettings
    from parl_core.training.apex import train_apex as train_apex
    from parl_core.training.callbacks import ConfirmedReturn as ConfirmedReturn
    from parl_core.training.callbacks import KeepBest as KeepBest
    from parl_core.training.callbacks import KeepLatest as KeepLatest
    from parl_core.training.callbacks import NoImprovement as NoImprovement
    from parl_core.training.callbacks import Progress as Progress
    from parl_core.training.callbacks import StepBudget as StepBudget
    from parl_core.training.callbacks import TimeBudget as TimeBudget
    from parl_core.training.callbacks import standard_callbacks as standard_callbacks
    from parl_core.training.checkpoints import Checkpoints as Checkpoints
    from parl_core.training.curves import LearningCurve as LearningCurve
    from parl_core.training.episodes import run_episode as run_episode
    from parl_core.training.episodes import train_by_episodes as train_by_episodes
    from parl_core.training.evaluation import EvaluateInActor as EvaluateInActor
    from parl_core.training.evaluation import RecordVideo as RecordVideo
    from parl_core.training.evaluation import evaluate as evaluate
    from parl_core.training.events import Callback as Callback
    from parl_core.training.events import Ended as Ended
    from parl_core.training.events import Episode as Episode
    from parl_core.training.events import Evaluation as Evaluation
    from parl_core.training.events import Stop as Stop
    from parl_core.training.events import Update as Update
    from parl_core.training.logs import CsvTables as CsvTables
    from parl_core.training.logs import JsonLines as JsonLines
    from parl_core.training.logs import TensorBoard as TensorBoard
    from parl_core.training.novelty import NoveltyReward as NoveltyReward
    from parl_core.training.off_policy import OffPolicySettings as OffPolicySettings
    from parl_core.training.off_policy import train_off_policy as train_off_policy
    from parl_core.training.offline import OfflineSettings as OfflineSettings
    from parl_core.training.offline import evaluate_with_target_return as evaluate_with_target_return
    from parl_core.training.offline import record_episodes as record_episodes
    from parl_core.training.offline import train_offline as train_offline
    from parl_core.training.on_policy import OnPolicySettings as OnPolicySettings
    from parl_core.training.on_policy import train_on_policy as train_on_policy
    from parl_core.training.recipes import Recipe as Recipe
    from parl_core.training.recipes import find_recipe as find_recipe
    from parl_core.training.run import Run as Run
    from parl_core.training.run import open_run as open_run
    from parl_core.training.run import parse_settings as parse_settings
    from parl_core.training.run import run_again as run_again
    from parl_core.training.self_play import AgainstOpponents as AgainstOpponents
    from parl_core.training.self_play import Arena as Arena
    from parl_core.training.self_play import Match as Match
    from parl_core.training.self_play import OpponentPool as OpponentPool
    from parl_core.training.self_play import Results as Results
    from parl_core.training.session import Session as Session
    from parl_core.training.trained import StandardEnv as StandardEnv

_MODULES = {
    "ActorLearnerSettings": "parl_core.training.actor_learner",
    "AgainstOpponents": "parl_core.training.self_play",
    "ApexSettings": "parl_core.training.apex",
    "Arena": "parl_core.training.self_play",
    "Callback": "parl_core.training.events",
    "Checkpoints": "parl_core.training.checkpoints",
    "ConfirmedReturn": "parl_core.training.callbacks",
    "CsvTables": "parl_core.training.logs",
    "Ended": "parl_core.training.events",
    "Episode": "parl_core.training.events",
    "Evaluation": "parl_core.training.events",
    "JsonLines": "parl_core.training.logs",
    "KeepBest": "parl_core.training.callbacks",
    "KeepLatest": "parl_core.training.callbacks",
    "Learners": "parl_core.backends",
    "LearningCurve": "parl_core.training.curves",
    "Match": "parl_core.training.self_play",
    "NoImprovement": "parl_core.training.callbacks",
    "NormalizeVector": "parl_core.env.normalize",
    "NoveltyReward": "parl_core.training.novelty",
    "OffPolicySettings": "parl_core.training.off_policy",
    "OfflineSettings": "parl_core.training.offline",
    "OnPolicySettings": "parl_core.training.on_policy",
    "OpponentPool": "parl_core.training.self_play",
    "Progress": "parl_core.training.callbacks",
    "Recipe": "parl_core.training.recipes",
    "EvaluateInActor": "parl_core.training.evaluation",
    "RecordVideo": "parl_core.training.evaluation",
    "Results": "parl_core.training.self_play",
    "Run": "parl_core.training.run",
    "Session": "parl_core.training.session",
    "StandardEnv": "parl_core.training.trained",
    "StepBudget": "parl_core.training.callbacks",
    "Stop": "parl_core.training.events",
    "TensorBoard": "parl_core.training.logs",
    "TimeBudget": "parl_core.training.callbacks",
    "Update": "parl_core.training.events",
    "choose_actors": "parl_core.actors",
    "evaluate": "parl_core.training.evaluation",
    "evaluate_with_target_return": "parl_core.training.offline",
    "find_recipe": "parl_core.training.recipes",
    "join_learners": "parl_core.backends",
    "make_vector_env": "parl_core.env.vector",
    "open_actors": "parl_core.actors",
    "open_run": "parl_core.training.run",
    "parse_settings": "parl_core.training.run",
    "record_episodes": "parl_core.training.offline",
    "run_again": "parl_core.training.run",
    "run_episode": "parl_core.training.episodes",
    "seed_everything": "parl_core.seeding",
    "standard_callbacks": "parl_core.training.callbacks",
    "train_actor_learner": "parl_core.training.actor_learner",
    "train_apex": "parl_core.training.apex",
    "train_by_episodes": "parl_core.training.episodes",
    "train_off_policy": "parl_core.training.off_policy",
    "train_offline": "parl_core.training.offline",
    "train_on_policy": "parl_core.training.on_policy",
}

__all__ = [
    "ActorLearnerSettings",
    "AgainstOpponents",
    "ApexSettings",
    "Arena",
    "Callback",
    "Checkpoints",
    "ConfirmedReturn",
    "CsvTables",
    "Ended",
    "Episode",
    "EvaluateInActor",
    "Evaluation",
    "JsonLines",
    "KeepBest",
    "KeepLatest",
    "Learners",
    "LearningCurve",
    "Match",
    "NoImprovement",
    "NormalizeVector",
    "NoveltyReward",
    "OffPolicySettings",
    "OfflineSettings",
    "OnPolicySettings",
    "OpponentPool",
    "Progress",
    "Recipe",
    "RecordVideo",
    "Results",
    "Run",
    "Session",
    "StandardEnv",
    "StepBudget",
    "Stop",
    "TensorBoard",
    "TimeBudget",
    "Update",
    "choose_actors",
    "evaluate",
    "evaluate_with_target_return",
    "find_recipe",
    "join_learners",
    "make_vector_env",
    "open_actors",
    "open_run",
    "parse_settings",
    "record_episodes",
    "run_again",
    "run_episode",
    "seed_everything",
    "standard_callbacks",
    "train_actor_learner",
    "train_apex",
    "train_by_episodes",
    "train_off_policy",
    "train_offline",
    "train_on_policy",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
