"""What can go wrong with a fault itself."""

from __future__ import annotations

from parl_remote.errors import RemoteError

__all__ = ["FaultUnavailable"]


class FaultUnavailable(RemoteError):
    """This machine or user cannot have the fault: the message says what is missing. Tests skip themselves on it."""
