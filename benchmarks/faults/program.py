"""A program that will be killed: python program.py ADDRESS ACTORS idle|busy; prints its actors' processes."""

from __future__ import annotations

import os
import sys
import time

import parl_remote as parl


@parl.remote_class
class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    def process(self) -> int:
        return os.getpid()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def grow(self, mib: int) -> None:
        self.hoard = bytearray(os.urandom(2**20) * mib)

    def write(self, path: str, mib: int) -> None:
        with open(path, "wb") as file:
            file.write(bytes(mib * 2**20))

    def say(self, text: str, times: int) -> int:
        for _ in range(times):
            print(text)
        return times


def main() -> None:
    address, actors, state = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if address == "local":
        parl.connect(cpu_num=actors)
    else:
        parl.connect(address)
    made = [Counter() for _ in range(actors)]
    print(*(actor.process() for actor in made), flush=True)
    waiting = [parl.submit(actor.sleep, 600) for actor in made] if state == "busy" else []
    print("ready", flush=True)
    sys.stdin.read()
    del waiting


if __name__ == "__main__":
    main()
