"""Environments with Gymnasium's and with gym's API, under the names that programs import; each is loaded at first use.

    from parl.env import ActionMappingWrapper, VectorEnv
    from parl.env.atari_wrappers import wrap_deepmind

All names are defined in `parl_core.env`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from parl import _names

if TYPE_CHECKING:
    from parl_core.env.atari import wrap_deepmind as wrap_deepmind
    from parl_core.env.autoreset import in_same_step as in_same_step
    from parl_core.env.check import check_env as check_env
    from parl_core.env.compat import V_GYM_CHANGED as V_GYM_CHANGED
    from parl_core.env.compat import V_NPRANDOM_CHANGED as V_NPRANDOM_CHANGED
    from parl_core.env.compat import CompatWrapper as CompatWrapper
    from parl_core.env.compat import api_of as api_of
    from parl_core.env.compat import as_gymnasium as as_gymnasium
    from parl_core.env.compat import is_gym_version_ge as is_gym_version_ge
    from parl_core.env.goals import SparseGrid as SparseGrid
    from parl_core.env.joint import JointEnv as JointEnv
    from parl_core.env.joint import make_joint_env as make_joint_env
    from parl_core.env.matrix_games import MatrixGame as MatrixGame
    from parl_core.env.matrix_games import TwoStepGame as TwoStepGame
    from parl_core.env.multi_agent import MAenv as MAenv
    from parl_core.env.multi_agent import ParallelAgents as ParallelAgents
    from parl_core.env.multi_agent import SMACGame as SMACGame
    from parl_core.env.multi_agent import TupleGame as TupleGame
    from parl_core.env.native import make_native_vector_env as make_native_vector_env
    from parl_core.env.normalize import NormalizeVector as NormalizeVector
    from parl_core.env.normalize import wrap_rms as wrap_rms
    from parl_core.env.vector import make_vector_env as make_vector_env
    from parl_core.env.wrappers import ActionMappingWrapper as ActionMappingWrapper
    from parl_core.env.wrappers import VectorEnv as VectorEnv

if find_spec("gymnasium") is None:
    raise ImportError('parl.env needs gymnasium:\n    pip install "parl-core[train]"', name="gymnasium")

_HOME = {
    "ActionMappingWrapper": "parl_core.env.wrappers",
    "CompatWrapper": "parl_core.env.compat",
    "JointEnv": "parl_core.env.joint",
    "MAenv": "parl_core.env.multi_agent",
    "MatrixGame": "parl_core.env.matrix_games",
    "NormalizeVector": "parl_core.env.normalize",
    "ParallelAgents": "parl_core.env.multi_agent",
    "SMACGame": "parl_core.env.multi_agent",
    "SparseGrid": "parl_core.env.goals",
    "TupleGame": "parl_core.env.multi_agent",
    "TwoStepGame": "parl_core.env.matrix_games",
    "V_GYM_CHANGED": "parl_core.env.compat",
    "V_NPRANDOM_CHANGED": "parl_core.env.compat",
    "VectorEnv": "parl_core.env.wrappers",
    "check_env": "parl_core.env.check",
    "in_same_step": "parl_core.env.autoreset",
    "api_of": "parl_core.env.compat",
    "as_gymnasium": "parl_core.env.compat",
    "is_gym_version_ge": "parl_core.env.compat",
    "make_joint_env": "parl_core.env.joint",
    "make_native_vector_env": "parl_core.env.native",
    "make_vector_env": "parl_core.env.vector",
    "wrap_deepmind": "parl_core.env.atari",
    "wrap_rms": "parl_core.env.normalize",
}

__all__ = [
    "ActionMappingWrapper",
    "CompatWrapper",
    "JointEnv",
    "MAenv",
    "MatrixGame",
    "NormalizeVector",
    "ParallelAgents",
    "SMACGame",
    "SparseGrid",
    "TupleGame",
    "TwoStepGame",
    "VectorEnv",
    "api_of",
    "as_gymnasium",
    "check_env",
    "in_same_step",
    "is_gym_version_ge",
    "make_joint_env",
    "make_native_vector_env",
    "make_vector_env",
    "wrap_deepmind",
    "wrap_rms",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    return _names.of_old_package("parl.env", name)


def __dir__() -> list[str]:
    return sorted(__all__)
