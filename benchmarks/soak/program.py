"""A program under load: several actors, each called by its own thread, with records of every call's outcome.

python benchmarks/soak/program.py ADDRESS FOLDER ACTORS SEED      ends with SIGTERM
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import random
import signal
import sys
import threading
import time
import traceback
import uuid
from collections import Counter, deque
from pathlib import Path
from typing import Any

import late
import numpy as np
from ledger import Calls, Count, carried_out

import parl_remote as parl

HUNG_S = 90.0  # nothing in a cluster may take this long without an error
LARGE = 2**17  # float64 values, 1 MiB
EXPECTED = (parl.ActorLost, parl.NoResources, parl.ClusterUnreachable, parl.NotConnected)


@parl.remote_class
class Worker:
    def __init__(self, done: str, again: bool = False) -> None:
        self.file = carried_out(Path(done), again=again)

    def step(self, number: int, data: Any, nap_s: float, fail: bool) -> tuple[int, Any]:
        os.write(self.file, number.to_bytes(8, "little"))
        if nap_s:
            time.sleep(nap_s)
        if fail:
            raise KeyError(number)
        return number, data


class _Sent:
    """A call, the call whose result is its argument (if any), and its future."""

    def __init__(self, number: int, expected: Any, depends_on: _Sent | None, future: Any) -> None:
        self.number = number
        self.expected = expected
        self.depends_on = depends_on
        self.future = future
        self.answer: Any = None

    def is_right(self) -> bool:
        """Return whether the result equals the value that was sent."""
        number, back = self.answer
        if self.depends_on is None:
            return bool(number == self.number and np.array_equal(back, self.expected))
        before = self.depends_on
        return bool(number == self.number and back[0] == before.number and _same(back[1], before.answer[1]))

    def fails_as(self, error: KeyError) -> bool:
        """Return whether the error is that of a call on which this one depends."""
        before = self.depends_on
        return before is not None and (error.args == (before.number,) or before.fails_as(error))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return one[0] == other[0] and _same(one[1], other[1])
    return bool(np.array_equal(one, other))


class Caller:
    """A thread that uses one actor after another."""

    def __init__(self, folder: Path, seed: int, stopping: threading.Event, notes: Counter[str]) -> None:
        self._folder = folder
        self._dice = random.Random(seed)
        self._stopping = stopping
        self._notes = notes
        self._large = np.random.default_rng(seed).random(LARGE)
        self._shared: Any = None

    def run(self) -> None:
        while not self._stopping.is_set():
            name = uuid.uuid4().hex
            calls = Calls(self._folder, name)
            done = str(self._folder / f"{name}.done")
            try:
                if self._dice.random() < 0.3:
                    self._live(parl.with_options(Worker, max_restarts=5)(done, True), calls, restarts=5)
                else:
                    self._live(Worker(done), calls)
            except EXPECTED as error:
                self._notes[f"making an actor: {type(error).__name__}"] += 1
                self._stopping.wait(0.2)
            except BaseException as error:
                traceback.print_exc(file=sys.stdout)
                self._fail(f"unexpected {type(error).__name__}: {error}")
                self._stopping.wait(0.2)
            calls.close()

    def _live(self, actor: Any, calls: Calls, restarts: int = 0) -> None:
        """Call an actor for some time, or until it is lost permanently."""
        number = 0
        last = self._dice.randrange(50, 3000)
        while not self._stopping.is_set() and number < last:
            burst: deque[_Sent] = deque()
            refused = False
            for _ in range(self._dice.choice((1, 1, 4, 16, 80))):
                depends_on = self._dice.choice(burst) if burst and self._dice.random() < 0.1 else None
                data, expected = self._some_data(number) if depends_on is None else (depends_on.future, None)
                nap_s, fail = self._dice.choice((0, 0, 0, 0.001, 0.05)), self._dice.random() < 0.05
                try:
                    future = parl.submit(actor.step, number, data, nap_s, fail)
                except EXPECTED as error:
                    self._notes[f"refused at once: {type(error).__name__}"] += 1
                    refused = isinstance(error, parl.ActorLost)
                    break  # it was never sent
                calls.add(Count.SENT)
                burst.append(_Sent(number, expected, depends_on, future))
                number += 1
                if self._dice.random() < 0.03:
                    self._dice.choice(burst).future.cancel()
            if self._dice.random() < 0.3:
                concurrent.futures.wait([one.future for one in burst], HUNG_S)
            lost = refused
            while burst:
                lost |= self._settle(actor, burst.popleft(), calls)
            if lost and restarts:
                restarts -= 1  # calls in flight are lost; later ones wait for the restart
            elif lost:
                self._must_stay_lost(actor)
                return
            self._stopping.wait(self._dice.expovariate(10.0))
        if self._dice.random() < 0.3:
            actor.destroy()

    def _some_data(self, number: int) -> tuple[Any, Any]:
        """Return a value to send, and the expected result."""
        throw = self._dice.random()
        if throw < 0.03:
            return self._large, self._large
        if throw < 0.05:
            if self._shared is None or self._dice.random() < 0.2:
                self._shared = parl.put(self._large)  # the previous one is released, with its memory on all nodes
            return self._shared, self._large
        if throw < 0.2:  # a burst that exceeds the capacity of a socket
            text = bytes([number % 256]) * 30_000
            return text, text
        return number * 3, number * 3

    def _settle(self, actor: Any, sent: _Sent, calls: Calls) -> bool:
        """Wait for one call, and return whether its actor was lost."""
        try:
            answered, back = self._result(actor, sent.future)
        except concurrent.futures.CancelledError:
            calls.add(Count.WITHDRAWN)
            return False
        except parl.SerializationError as error:  # a stored value whose node was killed
            self._notes["a value was lost with its node"] += "ObjectLost" in str(error)
            calls.add(Count.LOST if "ObjectLost" in str(error) else Count.WRONG)
            self._shared = None
            return False
        except KeyError as error:
            failed = error.args == (sent.number,)
            calls.add(Count.ANSWERED if failed else Count.WITHDRAWN if sent.fails_as(error) else Count.WRONG)
            return False
        except parl.ActorLost as error:
            self._notes[f"lost: {error.cause.kind.value}"] += 1
            calls.add(Count.LOST)
            return True
        except parl.ResultTimeout:
            calls.add(Count.HUNG)
            self._fail("a call hung")
            return True
        sent.answer = answered, back
        calls.add(Count.ANSWERED if sent.is_right() else Count.WRONG)
        return False

    def _result(self, actor: Any, future: Any) -> Any:
        """Return the result of a call or raise its error; report on it if it is late."""
        try:
            return future.result(late.LATE_S)
        except parl.ResultTimeout:
            self._notes["late"] += 1
            late.report(actor, future)
        return future.result(HUNG_S - late.LATE_S)

    def _must_stay_lost(self, actor: Any) -> None:
        began = time.monotonic()
        with contextlib.suppress(*EXPECTED):
            actor.step(-1, None, 0, False)
            self._fail("a lost actor answered")
        if time.monotonic() - began > 5.0:
            self._fail("a lost actor refused a call late")

    def _fail(self, what: str) -> None:
        self._notes[f"FAULT {what}"] += 1
        print(f"{time.strftime('%H:%M:%S')} FAULT {what}", flush=True)


def main() -> None:
    address, folder, actors, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    if address == "local":
        parl.connect(cpu_num=actors, lease_timeout_s=30)
    else:
        parl.connect(address, lease_timeout_s=30)
    notes: Counter[str] = Counter()
    threads = [
        threading.Thread(target=Caller(folder, seed + number, stopping, notes).run, daemon=True)
        for number in range(actors)
    ]
    for thread in threads:
        thread.start()
    print("runs", flush=True)
    stopping.wait()
    for thread in threads:
        thread.join(HUNG_S)
    parl.disconnect()
    for what, times in sorted(notes.items()):
        print(f"{times:6} {what}", flush=True)
    sys.exit(any(thread.is_alive() for thread in threads) or any(what.startswith("FAULT") for what in notes))


if __name__ == "__main__":
    main()
