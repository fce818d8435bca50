"""A relay without memory for a call ends that caller's connection with the cause."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from parl_remote._links.call_messages import refusal_of
from parl_remote._links.loop import Loop
from parl_remote._transport.unix import UnixListener, UnixPeers
from parl_remote._worker.relay import Relay


def test_a_call_without_memory_ends_its_connection_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, link = Loop(), Mock()
    listener = UnixListener(str(tmp_path / "actor.sock"))
    relay = Relay(loop)
    relay.attach(link, str(tmp_path / "actor.sock"))
    monkeypatch.setattr(UnixPeers, "send", Mock(side_effect=MemoryError("no memory is left")))
    relay.forward(link, [memoryview(b"\x01 a call")])
    link.send.assert_called_once_with(refusal_of("no memory is left"))
    link.drop.assert_called_once_with()
    assert not relay.carries(link)
    relay.close()
    listener.close()
    loop.close()
