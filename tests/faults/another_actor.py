"""A path that keeps the calls which a lost connection gives back."""

from typing import Any

from parl_remote._data.calls import Call
from parl_remote._future import RemoteFuture
from parl_remote._program.outbox import OpenPath


class AnotherActor(OpenPath):
    """The path to the actor that was made again."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def send(self, call: Call, future: RemoteFuture[Any]) -> bool:
        self.calls.append(call)
        return True

    def names_changed(self) -> bool:
        return False
