"""The `parl` command; it needs the extra `train`, and says so where that is missing."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process."""
    try:
        from parl_core.cli._commands import parl
    except ModuleNotFoundError as missing:
        if missing.name not in ("click", "gymnasium"):
            raise
        sys.exit(f"the parl command needs {missing.name}; install it with: pip install 'parl-core[train]'")
    parl()
