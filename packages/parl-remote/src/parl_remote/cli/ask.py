"""Asking a running cluster's master how it is."""

from __future__ import annotations

from collections.abc import Callable

from parl_remote.config import Limits
from parl_remote.links.inquiry import Inquiry
from parl_remote.messages import Role, Status, StatusRequest
from parl_remote.transport import Channel

__all__ = ["ask_status"]


def ask_status(connect: Callable[[], Channel], limits: Limits) -> Status:
    """The cluster's status, with its nodes and clients.

    Args:
        connect: Opens a channel to the master.
        limits: How long to wait.

    Raises:
        RemoteError: It cannot be reached, refuses, or does not answer in time.
    """
    with Inquiry(connect(), Role.MASTER, limits, "xparl status") as master:
        return master.ask(StatusRequest, Status)
