"""A settings dataclass as a command line: each field's text is its help.

In a program:

    @dataclass(frozen=True)
    class Settings:
        seed: Annotated[int, "of weights, environments and sampling"] = 0
        smoke: Annotated[bool, "a few updates only"] = False

    settings = parse_settings(Settings)        # --seed 3 --smoke

With a field `resume`, `--resume RUN` takes the settings of that run (see `program_run`), which further flags change.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, TypeVar, get_args, get_type_hints

from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.training.program_run import read_settings

__all__ = ["parse_settings"]

Settings = TypeVar("Settings")


def parse_settings(
    settings: type[Settings], arguments: Sequence[str] | None = None, description: str | None = None
) -> Settings:
    """Build a settings object from the command line.

    Args:
        settings: a dataclass whose fields all have defaults and are annotated `Annotated[type, "help"]`, with type
            `int`, `float`, `str` or `bool`. A flag that is off by default is `--name`, one that is on `--no-name`.
        arguments: default: those of the program. `--env_num` is read as `--env-num`.
        description: shown by `--help`; default: the class's docstring.

    Raises:
        SystemExit: `--help` was asked for, or an argument is wrong; argparse has said what.
    """
    parser = argparse.ArgumentParser(
        description=description or settings.__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    hints = get_type_hints(settings, include_extras=True)
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]  # a TypeVar cannot say "a dataclass"
        kind, text = _annotation(field.name, hints[field.name])
        flag = f"--{field.name.replace('_', '-')}"
        options: dict[str, Any] = {"dest": field.name, "default": field.default, "help": text}
        if kind is bool:
            action = argparse.BooleanOptionalAction if field.default else "store_true"
            parser.add_argument(flag, action=action, **options)
        else:
            parser.add_argument(flag, type=kind, metavar=kind.__name__.upper(), **options)
    given = [_with_dashes(argument) for argument in (sys.argv[1:] if arguments is None else arguments)]
    found = parser.parse_args(given)
    if getattr(found, "resume", ""):
        parser.set_defaults(**_resumed(parser, found))
        found = parser.parse_args(given)
    return settings(**vars(found))


def _with_dashes(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value


def _resumed(parser: argparse.ArgumentParser, found: argparse.Namespace) -> dict[str, Any]:
    """The settings of the run to resume, which then stand for the defaults."""
    try:
        saved = read_settings(found.resume)
    except CheckpointError as error:
        parser.error(str(error))
    if unknown := sorted(saved.keys() - vars(found).keys()):
        parser.error(f"{found.resume} is a run of another program or version: it has the settings {', '.join(unknown)}")
    return saved


def _annotation(name: str, hint: Any) -> tuple[type, str]:
    kind, *texts = get_args(hint) or (hint,)
    if kind not in (int, float, str, bool) or len(texts) != 1 or not isinstance(texts[0], str):
        raise HyperparameterError(
            f'the setting {name!r} must be annotated Annotated[int | float | str | bool, "help"], got {hint}'
        )
    return kind, texts[0].replace("%", "%%")
