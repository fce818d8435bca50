"""The only module that imports ray, and what its exceptions mean here."""

from __future__ import annotations

import importlib
import re
from typing import Any

from parl_remote.death import DeathCause, DeathKind
from parl_remote.errors import RemoteError

__all__ = ["NAMESPACE", "cause_of", "ray"]

NAMESPACE = "parl"  # of named actors, so that all programs of a cluster find them
_EXIT_CODE = re.compile(r"exit code[: ]+(\d+)")


def ray() -> Any:
    """The module.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ImportError(
            'connecting to Ray needs its package, which is not installed: pip install "parl-remote[ray]"', name="ray"
        ) from error


def cause_of(error: Exception) -> DeathCause | None:
    """Why an actor ended, from what Ray says; None if it did not end."""
    exceptions = ray().exceptions
    text = " ".join(str(error).split())
    if isinstance(error, exceptions.OutOfMemoryError) or "OutOfMemory" in text or "memory monitor" in text:
        return DeathCause(DeathKind.OUT_OF_MEMORY, detail=text)
    if isinstance(error, exceptions.NodeDiedError) or "node has died" in text:
        return DeathCause(DeathKind.NODE_LOST, detail=text)
    if isinstance(error, exceptions.RayActorError | exceptions.WorkerCrashedError | exceptions.OwnerDiedError):
        if "ray.kill" in text:
            return DeathCause(DeathKind.KILLED_BY_USER, detail=text)
        if "owner" in text and "died" in text:
            return DeathCause(DeathKind.CLIENT_GONE, detail=text)
        code = _EXIT_CODE.search(text)
        return DeathCause(DeathKind.EXIT, exit_code=int(code[1]) if code else None, detail=text)
    if isinstance(error, RemoteError) or not isinstance(error, exceptions.RayError):
        raise TypeError(f"Ray does not raise {error!r}")
    return None
