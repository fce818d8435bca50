"""Ten thousand futures of eight actors at once, again and again, through everything that waits for futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from typing import Any

import pytest

import parl_remote
from parl_remote import RemoteFuture

ACTORS = 8
FUTURES = 10_000
ROUNDS = int(os.environ.get("PARL_FUTURES_ROUNDS", "10"))  # `hatch run long futures`: a hundred
PATIENCE_S = 120.0


@parl_remote.remote_class(wait=False)
class Echo:
    """Answers."""

    def same(self, value: int) -> int:
        return value


def submit_all(actors: list[Any], count: int) -> list[RemoteFuture[int]]:
    return [actors[n % len(actors)].same(n) for n in range(count)]


def through_wait(actors: list[Any], count: int) -> None:
    futures = submit_all(actors, count)
    done, others = concurrent.futures.wait(futures, PATIENCE_S)
    assert (len(done), len(others)) == (count, 0)
    assert [future.result(0) for future in futures] == list(range(count))


def through_as_completed(actors: list[Any], count: int) -> None:
    futures = submit_all(actors, count)
    assert sorted(future.result(0) for future in concurrent.futures.as_completed(futures, PATIENCE_S)) == list(
        range(count)
    )


def through_callbacks(actors: list[Any], count: int) -> None:
    seen: list[int] = []
    over = threading.Event()

    def note(future: RemoteFuture[int]) -> None:
        seen.append(future.result(0))
        if len(seen) == count:
            over.set()

    for future in submit_all(actors, count):
        future.add_done_callback(note)  # type: ignore[arg-type]  # a future of a call
    assert over.wait(PATIENCE_S)
    assert sorted(seen) == list(range(count))


def through_asyncio(actors: list[Any], count: int) -> None:
    async def main() -> list[int]:
        return await asyncio.gather(*map(asyncio.wrap_future, submit_all(actors, count)))

    assert asyncio.run(main()) == list(range(count))


def through_cancellation(actors: list[Any], count: int) -> None:
    futures = submit_all(actors, count)
    cancelled = [future.cancel() for future in futures[::2]]
    done, others = concurrent.futures.wait(futures, PATIENCE_S)
    assert (len(done), len(others)) == (count, 0)
    for was, future in zip(cancelled, futures[::2], strict=True):
        assert future.cancelled() == was
    assert [future.result(0) for future in futures[1::2]] == list(range(1, count, 2))


def through_parl_wait(actors: list[Any], count: int) -> None:
    left: list[RemoteFuture[int]] = submit_all(actors, count)
    got: list[int] = []
    while left:
        done, left = parl_remote.wait(left, num_returns=min(len(left), max(1, count // 4)), timeout=PATIENCE_S)
        got += [future.result(0) for future in done]
    assert sorted(got) == list(range(count))


WAYS = [through_wait, through_as_completed, through_callbacks, through_asyncio, through_cancellation, through_parl_wait]


@pytest.mark.parametrize("way", WAYS)
def test_each_of_many_futures_is_reported_once(shared_cluster: None, way: Any) -> None:
    actors = [Echo() for _ in range(ACTORS)]
    for _ in range(3):
        way(actors, 500)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS)
def test_ten_thousand_futures_again_and_again(shared_cluster: None, way: Any) -> None:
    actors = [Echo() for _ in range(ACTORS)]
    for _ in range(ROUNDS):
        way(actors, FUTURES)
