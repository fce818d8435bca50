"""Options and exit codes that the commands share."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import click

from parl_evokit.agent import ESAgent
from parl_evokit.environments import load_object
from parl_evokit.errors import (
    EvolutionError,
    LayoutMismatch,
    LogError,
    NoiseDataError,
    NothingToUpdate,
    RecordError,
    SolverError,
)
from parl_evokit.models import ModelAdapter, adapt, mlp
from parl_evokit.report import UpdateReport

__all__ = [
    "CONFIG_PATH",
    "JSON",
    "LOG_PATHS",
    "MODEL",
    "MODEL_DIR",
    "REVERTED",
    "Commands",
    "exits",
    "open_agent",
    "print_update",
]

USAGE, NOTHING_NEW, DAMAGED, REVERTED = 2, 3, 4, 5
INPUT_ERRORS = (LayoutMismatch, LogError, NoiseDataError, RecordError, SolverError)
P = ParamSpec("P")

# Both spellings, because the documents write --model_dir and the rest of the world --model-dir.
MODEL_DIR = click.option(
    "--model_dir", "--model-dir", required=True, type=Path, help="Directory of weights and solver."
)
CONFIG_PATH = click.option(
    "--config_path", "--config-path", required=True, type=Path, help=".prototxt, .toml or .json."
)
LOG_PATHS = click.option(
    "--log_path", "--log-path", "log_paths", required=True, multiple=True, type=Path, help="Log; may be given often."
)
MODEL = click.option(
    "--model",
    default="cartpole",
    show_default=True,
    help="Code: `cartpole` (4-20-2, no hidden activation), or package.module:function that returns a model.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")


class Commands(click.Group):
    """A group whose commands may be spelt with `_` as the documents do, or with `-`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click."""
        return super().get_command(ctx, cmd_name.replace("_", "-"))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click."""
        return super().resolve_command(ctx, [args[0].replace("_", "-"), *args[1:]])


def exits(command: Callable[P, None]) -> Callable[P, None]:
    """Turn errors into one line and an exit code: 2 usage, 3 nothing new, 4 damaged or foreign input."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except NothingToUpdate as error:
            click.echo(f"nothing to update: {error}", err=True)
            sys.exit(DAMAGED if error.report is not None and error.report.set_aside.foreign else NOTHING_NEW)
        except EvolutionError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(DAMAGED if isinstance(error, INPUT_ERRORS) else USAGE)

    return wrapped


def open_agent(model_dir: Path, config_path: Path, model: str) -> ESAgent:
    """An agent with its settings and weights, without a solver."""
    agent = ESAgent()
    agent.load_config(config_path)
    agent.load_inference_model(model_dir, model=_model(model))
    return agent


def print_update(report: UpdateReport, as_json: bool, **more: Any) -> None:
    """The outcome of an update, for people or for programs."""
    if report.rolled_back:
        click.echo(f"reverted to the model before: {report.rolled_back}", err=True)
    numbers = {name: value for name, value in asdict(report).items() if name != "parameters"}
    if as_json:
        click.echo(json.dumps(numbers | {"parameters_sha256": report.parameters_sha256} | more))
        return
    click.echo(
        f"model {report.model_iter_id}: {report.used} samples ({report.pairs} pairs), "
        f"mean reward {report.mean_reward:.4g}, best {report.best_reward:.4g}; "
        f"stale {sum(report.stale.values())}, set aside: {report.set_aside}"
    )


def _model(name: str) -> ModelAdapter:
    return mlp([4, 20, 2], activation="linear") if name == "cartpole" else adapt(load_object(name))
