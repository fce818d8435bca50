"""Shared parts of the commands: options, exit codes, errors, and functions that open an agent.

0 success   1 a permission is missing or the disk is full   2 wrong usage   3 nothing new
4 damaged or foreign input   5 the guard returned to the trusted model   6 another update is in progress
"""

import errno
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import wraps
from math import isfinite
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from parl_evokit import _solver_dir
from parl_evokit._directories import read_unchanged
from parl_evokit._report import UpdateReport
from parl_evokit.agent import ESAgent
from parl_evokit.environments import load_object, users_code
from parl_evokit.errors import (
    EvaluationFailed,
    EvolutionError,
    LayoutMismatch,
    LogError,
    NoiseDataError,
    NothingToUpdate,
    RecordError,
    SolverError,
    StorageError,
    UpdateLocked,
)
from parl_evokit.models._find import adapt, built_in, model_in
from parl_evokit.models.adapter import ModelAdapter
from parl_evokit.models.numpy_model import WEIGHTS

__all__ = [
    "CONFIG_PATH",
    "DAMAGED",
    "DIFFERENT",
    "ENV",
    "EPISODES",
    "JSON",
    "LOG_PATHS",
    "MAX_DAMAGE",
    "MODEL",
    "MODEL_DIR",
    "REVERTED",
    "WAIT",
    "Commands",
    "FiniteRange",
    "exits",
    "open_agent",
    "open_solver",
    "option",
    "print_result",
    "report_fields",
    "to_json",
]


FAILED, USAGE, NOTHING_NEW, DAMAGED, REVERTED, LOCKED = 1, 2, 3, 4, 5, 6
DIFFERENT = DAMAGED
CODES: dict[type[Exception], int] = {
    StorageError: FAILED,
    UpdateLocked: LOCKED,
    LayoutMismatch: DAMAGED,
    LogError: DAMAGED,
    NoiseDataError: DAMAGED,
    RecordError: DAMAGED,
    SolverError: DAMAGED,
}
# Caused by the system, not by the input: no space, no permission, no descriptors.
PREVENTED = {
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
}  # fmt: skip
NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # click 8.1 shows the help itself
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """The type of a number between bounds that is neither infinite nor NaN, which `click.FloatRange` lets through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def option(name: str, *more: str, **settings: Any) -> Callable[[F], F]:
    """Return a click option in both spellings: --model_dir, as in the PARL 1.x manual, and --model-dir."""
    spellings = dict.fromkeys((name.replace("-", "_").replace("__", "--", 1), name))
    return click.option(*spellings, *more, **settings)


MODEL_DIR = option("--model-dir", required=True, type=Path, help="Directory of the weights and the solver.")
CONFIG_PATH = option(
    "--config-path", required=True, type=Path, help="File with the settings: .prototxt, .toml or .json."
)
LOG_PATHS = option(
    "--log-path",
    "log_paths",
    required=True,
    multiple=True,
    type=Path,
    help="Directory or file of a log; may be repeated.",
)
MODEL = option(
    "--model",
    help="Model: `cartpole` (4-20-2), another built-in one such as mlp:4-32-2:tanh, or package.module:function that "
    "returns a model. Default: the built-in model that the solver names, or the inference program in the directory.",
)
ENV = option(
    "--env", default="cartpole", show_default=True, help="Environment: `cartpole`, or package.module:function."
)
EPISODES = option("--episodes", default=10, show_default=True, type=click.IntRange(min=1), help="Episodes per round.")
MAX_DAMAGE = option(
    "--max-damage",
    default=0.01,
    show_default=True,
    type=FiniteRange(0.0, 1.0),
    help="Share of the bytes read that may be damaged; if more is, the most damaged files are left out.",
)
WAIT = option(
    "--wait",
    "wait_s",
    default=60.0,
    show_default=True,
    type=FiniteRange(min=0.0),
    help="Maximum time to wait for another update of the same directory, in seconds.",
)
JSON = option("--json", "as_json", is_flag=True, help="Print one JSON object.")


class Commands(click.Group):
    """A group of commands that may be written with `_`, as in the PARL 1.x manual, or with `-`."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command; errors of usage are printed in one line, too."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
        except click.ClickException as error:
            if isinstance(error, NO_ARGUMENTS):
                error.show()
                sys.exit(error.exit_code)
            where = getattr(error, "ctx", None)
            name = f" ({where.command_path} --help says more)" if where is not None else ""
            click.echo(f"error: {' '.join(error.format_message().split())}{name}", err=True)
            sys.exit(error.exit_code)
        except click.Abort:
            click.echo("error: aborted", err=True)
            sys.exit(FAILED)
        sys.exit(code if isinstance(code, int) else 0)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with a name, in which underscores count as hyphens."""
        return super().get_command(ctx, cmd_name.replace("_", "-"))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, in which underscores count as hyphens."""
        return super().resolve_command(ctx, [args[0].replace("_", "-"), *args[1:]])


def exits(command: Callable[P, None]) -> Callable[P, None]:
    """Turn errors into one line on stderr and an exit code, and with --json also into an object on stdout."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (EvolutionError, OSError) as error:
            code, more = _code(error), {}
            if isinstance(error, NothingToUpdate):
                click.echo(f"nothing to update: {_one_line(error)}", err=True)
                more = {} if error.report is None else {"report": report_fields(error.report)}
            else:
                click.echo(f"error: {_one_line(error)}", err=True)
            if kwargs.get("as_json"):
                click.echo(to_json({"error": type(error).__name__, "message": str(error), "exit": code} | more))
            sys.exit(code)

    return wrapped


def _one_line(error: BaseException) -> str:
    """Return a message as one line: of a failed evaluation without the traceback of its worker."""
    if isinstance(error, EvaluationFailed):
        return f"evaluate raised {error.summary}"
    return " ".join(str(error).split())


def print_result(as_json: bool, fields: dict[str, Any], text: str) -> None:
    """Print the result of a command as JSON or as text."""
    click.echo(to_json(fields) if as_json else text)


def to_json(value: Any) -> str:
    """Return a value as JSON, with null for numbers that are not finite."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    match value:
        case float() if not isfinite(value):
            return None
        case dict():
            return {name: _finite(part) for name, part in value.items()}
        case list() | tuple():
            return [_finite(part) for part in value]
    return value


def report_fields(report: UpdateReport) -> dict[str, Any]:
    """Return the report of an update for JSON, with the digest of the parameters instead of the parameters."""
    fields = {name: value for name, value in asdict(report).items() if name != "parameters"}
    return fields | {"parameters_sha256": report.parameters_sha256}


def _code(error: Exception) -> int:
    if isinstance(error, NothingToUpdate):
        aside = None if error.report is None else error.report.set_aside
        return DAMAGED if aside is not None and aside.total > aside.too_old + aside.used else NOTHING_NEW
    if isinstance(error, OSError) or getattr(error.__cause__, "errno", None) in PREVENTED:
        return FAILED
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), USAGE)


def open_agent(model_dir: Path, config_path: Path, model: str | None) -> ESAgent:
    """Return an agent with its settings and weights, without a solver."""
    agent = ESAgent()
    agent.load_config(config_path)
    agent.load_inference_model(model_dir, model=_model(model_dir, model))
    return agent


def open_solver(model_dir: Path, config_path: Path, model: str | None) -> ESAgent:
    """Return an agent with its settings, weights and solver, all from the same version of the directory."""

    def opened() -> ESAgent:
        agent = open_agent(model_dir, config_path, model)
        agent.load_solver(model_dir)
        return agent

    return read_unchanged(model_dir, opened)


def _model(directory: Path, name: str | None) -> ModelAdapter:
    if name is not None:
        with users_code(name):
            return built_in(name) or _users(name)
    found = model_in(directory)
    if found is not None:
        return found
    if (directory / _solver_dir.SUMMARY).exists():
        raise SolverError(
            f"the solver in {directory} belongs to a model of your own, and files contain no code: "
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
