"""The `evokit` command."""

from parl_evokit.cli._main import main

__all__ = ["main"]
