"""Checkpoints on disk: whatever ends the program, and at whatever moment, the last complete one is there."""

import errno
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_core.checkpoint import CheckpointStore, from_tree, to_tree
from parl_core.errors import CheckpointError

# What a program asks of the system while it writes; a test stops it before any one of these calls.
WRITE_POINTS = ("open", "fsync", "replace", "rename", "mkdir", "rmdir", "unlink", "close")


def state_of(step: int) -> dict[str, Any]:
    return {"step": step, "numbers": np.full(1000, step), "text": f"at {step}", "half": 0.1 * step}


def agent_of(step: int) -> Any:
    return lambda path: path.write_bytes(b"agent" * step)


def write(store: CheckpointStore, step: int) -> None:
    store.write(step, state_of(step), save_agent=agent_of(step), backend="numpy", segments=[f"piece-{step}"])


def check_whole(store: CheckpointStore, *steps: int) -> None:
    found = store.read_latest()
    assert found is not None
    assert found.step in steps
    assert found.state["text"] == f"at {found.step}"
    assert found.state["half"] == 0.1 * found.step
    np.testing.assert_array_equal(found.state["numbers"], np.full(1000, found.step))
    assert found.agent.read_bytes() == b"agent" * found.step
    assert found.segments == (f"piece-{found.step}",)
    assert store.needed_segments() == {f"piece-{step}" for step in store.steps()}


@contextmanager
def stopped_before(number: int, stop: Any) -> Iterator[list[str]]:
    """`stop(name)` is called before the call to the system with this number; the list fills with their names."""
    calls: list[str] = []
    real = {name: getattr(os, name) for name in WRITE_POINTS}

    def counted(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) - 1 == number:
                stop(name)
            return real[name](*args, **kwargs)

        return call

    for name in WRITE_POINTS:
        setattr(os, name, counted(name))
    try:
        yield calls
    finally:
        for name in WRITE_POINTS:
            setattr(os, name, real[name])


@pytest.mark.slow
def test_after_a_kill_at_any_moment_of_writing_the_last_complete_checkpoint_is_there(tmp_path: Path) -> None:
    number, ended_by_itself = 0, False
    while not ended_by_itself:
        folder = tmp_path / str(number)
        store = CheckpointStore(folder, keep=1)
        write(store, 10)
        child = os.fork()
        if child == 0:
            with stopped_before(number, lambda _name: os.kill(os.getpid(), signal.SIGKILL)):
                write(store, 20)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        ended_by_itself = os.waitstatus_to_exitcode(status) == 0
        check_whole(store, 10, 20)
        write(store, 30)  # the next one cleans up, too
        check_whole(store, 30)
        assert [path.name for path in folder.iterdir()] == ["000000000030"]
        number += 1
    assert number > 10


def test_a_full_disk_at_any_moment_leaves_the_last_complete_checkpoint_and_nothing_half_written(tmp_path: Path) -> None:
    def full(name: str) -> None:
        if name in ("open", "fsync", "replace", "rename", "mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    number, failures, calls = 0, 0, [""]
    while number <= len(calls):
        store = CheckpointStore(tmp_path / str(number), keep=2)
        write(store, 10)
        with stopped_before(number, full) as calls:
            failed = False
            try:
                write(store, 20)
            except OSError as error:
                failed = error.errno == errno.ENOSPC
            failures += failed
        check_whole(store, 10, 20)
        write(store, 20)
        assert sorted(path.name for path in store.folder.iterdir()) == ["000000000010", "000000000020"]
        number += 1
    assert failures > 5


def test_so_many_are_kept_as_was_asked_for(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c", keep=2)
    assert store.read_latest() is None
    for step in (10, 20, 30):
        write(store, step)
    assert store.steps() == [20, 30]
    check_whole(store, 30)


def test_a_checkpoint_of_a_newer_version_is_refused_and_stays(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    write(store, 10)
    write(store, 20)
    path = tmp_path / "000000000020" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "version": 99, "written_by": "parl-core 9.9"}))
    with pytest.raises(CheckpointError, match=r"version 99, written by parl-core 9\.9.*upgrade parl-core"):
        store.read_latest()
    assert store.steps() == [10, 20]


@pytest.mark.parametrize("name", ["state.json", "arrays.npz", "manifest.json", "agent.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_one_is_put_aside_and_the_one_before_it_is_taken(name: str, damage: str, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    write(store, 10)
    write(store, 20)
    path = tmp_path / "000000000020" / name
    content = bytearray(path.read_bytes())
    content[0 if name == "manifest.json" else len(content) // 2] ^= 255
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flipped" else content[: len(content) // 2])
    check_whole(store, 10)
    assert store.steps() == [10]
    assert any(path.name.startswith("damaged-000000000020") for path in tmp_path.iterdir())


def test_where_all_are_damaged_the_message_names_the_newest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (10, 20):
        write(store, step)
        (tmp_path / f"{step:012d}" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"000000000020/state\.json is damaged"):
        store.read_latest()


def test_states_come_back_with_all_their_bits() -> None:
    state = {
        "numbers": [1, -(2**80), 0.1, float("inf"), True, None, "text"],
        "records": np.zeros(3, np.dtype([("a", np.uint8, (2,)), ("b", np.float32)])),
        "a/b": {"bytes": b"\x00\xff", "empty": np.zeros((0, 4)), "scalar": np.array(3.5), "half": np.float32(0.1)},
    }
    tree, arrays = to_tree(state)
    again = from_tree(json.loads(json.dumps(tree)), arrays)
    assert again["numbers"] == state["numbers"]
    assert again["records"].dtype == state["records"].dtype  # type: ignore[attr-defined]  # an array
    assert again["a/b"]["bytes"] == b"\x00\xff"
    assert again["a/b"]["empty"].shape == (0, 4)
    assert again["a/b"]["scalar"] == 3.5
    assert again["a/b"]["half"] == float(np.float32(0.1))


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": [object()]}, "a/0 is object"),
        ({"a": {1: 2}}, "a is dict"),
        (np.array([None]), "the state is ndarray"),
        ({"$array": "x"}, "the state is dict"),
    ],
)
def test_what_no_checkpoint_can_hold_is_named(state: Any, place: str) -> None:
    with pytest.raises(CheckpointError, match=place):
        to_tree(state)
