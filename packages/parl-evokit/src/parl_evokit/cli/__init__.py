"""The `evokit` command."""

from parl_evokit.cli.main import main

__all__ = ["main"]
