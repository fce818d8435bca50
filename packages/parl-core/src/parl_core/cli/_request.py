"""The run that a command line asks for: options that several commands share, and how they are read."""

import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from parl_core import backends
from parl_core.checks import check_all_known
from parl_core.errors import HyperparameterError
from parl_core.training.recipe_run import ACTING_APART, RecipeRun, preset, with_actors
from parl_core.training.settings import algorithm_named, as_text, read_setting

__all__ = ["ENV_OPTION", "FILE", "SEED", "WHAT", "asked_by", "columns", "options", "pairs", "toml_value"]

SEED = click.IntRange(0, 2**31 - 1)
FILE = click.Path(path_type=Path)
_Command = Callable[..., Any]


def options(*chosen: _Command) -> _Command:
    """Put several options on a command, in this order in its help."""

    def put(command: _Command) -> _Command:
        for option in reversed(chosen):
            command = option(command)
        return command

    return put


def _finite(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no finite number.")
    return value


def pairs(_context: click.Context, _option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE options by name."""
    for one in given:
        if "=" not in one:
            raise click.BadParameter(f"{one!r} is no NAME=VALUE.")
    return {name.strip(): value for name, _, value in (one.partition("=") for one in given)}


def _values(context: click.Context, option: click.Parameter, given: Sequence[str]) -> dict[str, Any]:
    """Return NAME=VALUE options by name, numbers and flags as such."""
    return {name: read_setting(value) for name, value in pairs(context, option, given).items()}


ENV_OPTION = click.option(
    "--env-option",
    "env_options",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_values,
    help="An option of ENV itself, such as continuous=true. May be repeated.",
)

WHAT = options(
    click.argument("algorithm", metavar="[ALGORITHM]", required=False),
    click.argument("env", metavar="[ENV]", required=False),
    click.option(
        "--config",
        type=FILE,
        help="A TOML file with algorithm, env, steps, … and a table [settings], or the folder of a run to repeat; "
        "options win.",
    ),
    click.option(
        "--set",
        "given",
        metavar="NAME=VALUE",
        multiple=True,
        callback=pairs,
        help="Another setting than the preset's, such as lr=3e-4 or network.width=256; `parl settings ALGORITHM ENV` "
        "lists them. May be repeated.",
    ),
    click.option(
        "--steps",
        type=click.IntRange(1),
        help="Environment steps, of which the last rollout is completed (of logged data: updates); default: the "
        "preset's.",
    ),
    click.option(
        "--goal",
        type=float,
        callback=_finite,
        help="Stop when two evaluations in a row reach this return; default: the preset's.",
    ),
    click.option("--backend", help="torch or paddle; default: the one installed."),
    click.option("--device", help="cpu, cuda, cuda:1, …; default: a GPU if there is one."),
    click.option("--compile", "compiled", is_flag=True, help="Compile the updates."),
    click.option("--env-module", "module", help="Import this module first: it registers ENV."),
    ENV_OPTION,
    click.option("--data", help="Logged transitions, FILE.npz or minari:NAME, for algorithms that learn from them."),
)
"""What is trained, where and with which numbers; `asked_by` reads it."""


def asked_by(
    *,
    given: Mapping[str, Any],
    env_options: Mapping[str, Any],
    config: Path | None = None,
    device: str | None = None,
    compiled: bool = False,
    actors: int | None = None,
    checkpoint_every: int = 10_000,
    **options: Any,
) -> RecipeRun:
    """Return the run that the options ask for; those that are given win over a configuration's.

    Raises:
        click.UsageError: algorithm or environment are missing.
        ParlError: there is no such algorithm, or a configuration cannot be read.
    """
    read = _read_config(config) if config is not None else {}
    values = read | {name: value for name, value in options.items() if value is not None}
    for name in ("algorithm", "env"):
        if not values.get(name):
            raise click.UsageError(f"{name.upper()} is missing: parl train ALGORITHM ENV, or --config with both.")
    values["env_options"] = {**read.get("env_options", {}), **env_options}
    settings = {**read.get("given", {}), **given}
    settings |= {"device": device} if device else {}
    settings |= {"compile": True} if compiled else {}
    if values.get("backend"):
        backends.set_backend(values["backend"])
    current = backends.current()
    values["backend"] = current.name
    values["algorithm"] = algorithm_named(values["algorithm"], current.algorithms.__all__)
    if actors:
        settings |= _actors_as_settings(values, actors, settings)
    return RecipeRun(**{**values, "checkpoint_every": checkpoint_every, "given": settings})


def _actors_as_settings(values: Mapping[str, Any], actors: int, given: Mapping[str, Any]) -> dict[str, int]:
    """Return the settings of loops whose actors are part of what is learned."""
    loop = preset(values["algorithm"], values["env"], values.get("module", ""), values["env_options"]).loop
    if not isinstance(loop, ACTING_APART) or "n_actors" in given:
        return {}
    changed = with_actors(loop, actors)
    groups = {} if changed.groups is None or "groups" in given else {"groups": changed.groups}
    return {**groups, "n_actors": actors}


def _read_config(path: Path) -> dict[str, Any]:
    """Return the values of a configuration by the names of `RecipeRun`.

    Raises:
        HyperparameterError: it is no TOML, or has another key.
    """
    if path.is_dir():
        asked = RecipeRun.read(path)
        return {
            name: value
            for name, value in vars(asked).items()
            if name not in ("recipe", "extended_to", "checkpoint_every")
        }
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HyperparameterError(f"{path} is no TOML file: {error}") from error
    known = ("algorithm", "env", "seed", "steps", "goal", "backend", "env_module", "env_options", "data", "settings")
    check_all_known(str(path), values, known)
    found = {
        ("module" if name == "env_module" else name): value for name, value in values.items() if name != "settings"
    }
    return found | {"given": dict(_flat(values.get("settings", {})))}


def _flat(table: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        found += _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else [(before + name, value)]
    return found


def toml_value(value: Any) -> str:
    """Return a setting as TOML has it; a schedule as the text that `--set` takes."""
    if isinstance(value, (list, tuple)):
        return json.dumps(list(value))
    return json.dumps(as_text(value) if callable(value) else value, ensure_ascii=False)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table of text; the last column is as wide as it is."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )
