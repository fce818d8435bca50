"""A namespace for settings that the modules from a program share, as in PARL's examples."""

import argparse
from types import SimpleNamespace

from parl_core import logger

__all__ = ["GlobalConfig", "global_config"]


class GlobalConfig(SimpleNamespace):
    """Settings as attributes: `global_config.batch_size = 18`."""

    def load_argument(self, args: argparse.Namespace) -> None:
        """Set all command-line arguments; one that changes a setting is logged.

        Raises:
            TypeError: It is not an `argparse.Namespace`.
        """
        if not isinstance(args, argparse.Namespace):
            raise TypeError(f"load_argument needs what ArgumentParser.parse_args() returns, got {args!r}")
        for name, value in vars(args).items():
            if hasattr(self, name) and getattr(self, name) != value:
                logger.warning("setting %s changes from %r to %r", name, getattr(self, name), value)
            setattr(self, name, value)


global_config = GlobalConfig()
"""The shared instance."""
