"""`evokit config`: check and convert configurations."""

from pathlib import Path

import click

from parl_evokit.cli.options import JSON, Commands, exits, print_result
from parl_evokit.config import Config

__all__ = ["config_group"]


@click.group("config", cls=Commands)
def config_group() -> None:
    """Check and convert configurations."""


@config_group.command("check")
@click.argument("path", type=Path)
@JSON
@exits
def config_check(path: Path, as_json: bool) -> None:
    """Say whether a configuration can be used."""
    config = Config.load(path)
    print_result(as_json, {"path": str(path), "solver": config.solver.type.name}, f"{path} is a configuration")


@config_group.command("convert")
@click.argument("path", type=Path)
@JSON
@exits
def config_convert(path: Path, as_json: bool) -> None:
    """Print a configuration, of whichever form, with all its settings in the nested form."""
    text = Config.load(path).to_prototxt()
    print_result(as_json, {"prototxt": text}, text.removesuffix("\n"))
