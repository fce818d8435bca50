"""Reading control messages from a channel within a loop."""

from __future__ import annotations

from parl_remote.errors import ChannelClosed, RemoteProtocolError, ResultTimeout
from parl_remote.messages import Message, decode
from parl_remote.transport import Channel

__all__ = ["arrived_messages"]


def arrived_messages(channel: Channel) -> list[Message | None]:
    """All control messages that have arrived; None at the end if the peer is gone or talks nonsense."""
    messages: list[Message | None] = []
    try:
        while True:
            messages.append(decode(channel.receive(0.0)[0]))
    except ResultTimeout:
        pass
    except (ChannelClosed, RemoteProtocolError):
        messages.append(None)
    return messages
