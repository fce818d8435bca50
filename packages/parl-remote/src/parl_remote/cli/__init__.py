"""The command `xparl`: start a cluster, join one, inspect it, stop it."""

from parl_remote.cli._commands import main

__all__ = ["main"]
