"""Where each of the facade's names comes from, and what to install when its package is missing."""

import os
import re
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

BACKEND = ("Agent", "Algorithm", "Model")
SUBMODULES = ("algorithms", "env", "layers", "networks", "optim", "training", "utils")

_OLD = re.compile(r"parl-\d.*\.(dist-info|egg-info)", re.IGNORECASE)


def backends() -> ModuleType:
    """`parl_core.backends`, which reads the installed entry points and so is not imported with the facade."""
    return import_module("parl_core.backends")


def from_remote(name: str) -> Any:
    """The attribute `name` of parl-remote.

    Raises:
        ImportError: parl-remote is not installed; the message is the `pip install` line.
    """
    try:
        package = import_module("parl_remote")
    except ModuleNotFoundError as error:
        if error.name != "parl_remote":
            raise
        raise ImportError(f"parl.{name} needs parl-remote:\n    pip install parl-remote", name="parl_remote") from None
    return getattr(package, name)


def refuse_old_distribution() -> None:
    """Stop when PARL 1.x or 2.x is installed beside this one: both own the import name `parl`.

    Raises:
        ImportError: with the two commands that repair the installation.
    """
    for folder in sys.path:
        try:
            entries = os.listdir(folder or os.curdir)
        except OSError:
            continue
        for entry in entries:
            if _OLD.fullmatch(entry):
                raise ImportError(
                    f"the old distribution {entry.rsplit('.', 1)[0]!r} in {folder!r} owns the import name 'parl' too;"
                    " remove it and put this one's files back:\n"
                    "    pip uninstall parl\n"
                    "    pip install --force-reinstall --no-deps parl-core"
                )
