"""Agents for the commands: weights and solver from a directory, code from the option or from what is built in."""

from pathlib import Path

from parl_evokit import solver_dir
from parl_evokit.agent import ESAgent
from parl_evokit.directories import read_unchanged
from parl_evokit.environments import load_object
from parl_evokit.errors import SolverError
from parl_evokit.models import ModelAdapter, adapt
from parl_evokit.models.built_in import built_in
from parl_evokit.models.directory import model_in
from parl_evokit.models.numpy_model import WEIGHTS

__all__ = ["open_agent", "open_solver"]


def open_agent(model_dir: Path, config_path: Path, model: str | None) -> ESAgent:
    """An agent with its settings and weights, without a solver."""
    agent = ESAgent()
    agent.load_config(config_path)
    agent.load_inference_model(model_dir, model=_model(model_dir, model))
    return agent


def open_solver(model_dir: Path, config_path: Path, model: str | None) -> ESAgent:
    """An agent with its settings, weights and solver, all of one moment."""

    def opened() -> ESAgent:
        agent = open_agent(model_dir, config_path, model)
        agent.load_solver(model_dir)
        return agent

    return read_unchanged(model_dir, opened)


def _model(directory: Path, name: str | None) -> ModelAdapter:
    if name is not None:
        return built_in(name) or _users(name)
    found = model_in(directory)
    if found is not None:
        return found
    if (directory / solver_dir.SUMMARY).exists():
        raise SolverError(
            f"the solver in {directory} belongs to a model of your own, and files never name code: "
            "give --model package.module:function"
        )
    default = built_in("cartpole")
    assert default is not None
    if not (directory / WEIGHTS).exists():
        raise SolverError(
            f"{directory} holds neither a program of paddle nor weights of a built-in model ({WEIGHTS}): check the "
            "path, or give --model package.module:function for a model of your own"
        )
    return default


def _users(name: str) -> ModelAdapter:
    found = load_object(name)
    return adapt(found() if isinstance(found, type) else found)
