"""Asking a running cluster's master one thing, as a client that has no actors."""

from __future__ import annotations

import os
from collections.abc import Callable

from parl_remote.config import Limits
from parl_remote.errors import RemoteProtocolError
from parl_remote.handshake import greet
from parl_remote.identity import host_id, new_id, versions
from parl_remote.messages import PROTOCOL_MAX, PROTOCOL_MIN, Hello, Role, Status, StatusRequest, decode, encode
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
    channel = connect()
    hello = Hello(
        Role.CLIENT,
        Role.MASTER,
        new_id("client"),
        PROTOCOL_MIN,
        PROTOCOL_MAX,
        host_id(),
        os.getpid(),
        versions(),
        "xparl status",
    )
    greet(channel, hello, limits.connect_timeout_s)
    try:
        channel.send([encode(StatusRequest(1))], limits.connect_timeout_s)
        answer = decode(channel.receive(limits.connect_timeout_s)[0])
    finally:
        channel.close()
    if not isinstance(answer, Status):
        raise RemoteProtocolError(f"the master answered a request for its status with {type(answer).__name__}")
    return answer
