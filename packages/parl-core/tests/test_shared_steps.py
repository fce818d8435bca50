"""Steps through shared memory give what steps by calls give, whatever happens to the other end."""

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parl_core._subprocess_actors import SubprocessActors
from parl_core.actors import ActorFuture, wait_any
from parl_core.env._steps import GroupSpaces, StepMemory, can_share, packed, unpacked
from parl_core.env.vector import VectorEnv, _CallLink, _SharedLink, make_vector_env
from parl_core.errors import ActorProcessLost, ParlError

DEADLINE_S = 60.0
pytestmark = pytest.mark.usefixtures("importable_classes")
MODES = list(AutoresetMode)


class Diary(gymnasium.Env[Any, Any]):
    """Observes what it was told and how often; ends after as many steps as the seed says, talks where it is asked to.

    A push of 7 makes it raise, one of 8 never return, one of 9 ends its process.
    """

    observation_space = gymnasium.spaces.Dict(
        {
            "count": gymnasium.spaces.Discrete(1000),
            "told": gymnasium.spaces.Dict({"push": gymnasium.spaces.Box(-99.0, 99.0, (2,), np.float64)}),
        }
    )
    action_space = gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32)

    def __init__(self, talks: bool = False) -> None:
        self._talks, self._length, self._count = talks, 3, 0
        self._kept: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._length = 2 + seed % 4
        self._count = 0
        return self._seen(np.zeros(2)), {"options": str(options)} if self._talks else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action[0] == 7:
            raise LookupError("seven")
        if action[0] == 8:
            threading.Event().wait()
        if action[0] == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        self._count += 1
        self._kept = [*self._kept[-1:], action]  # the array itself: it may not change later
        over = self._count >= self._length
        info = {"dtype": str(action.dtype)} if self._talks else {}
        return self._seen(self._kept[0]), float(action.sum()), over, over and self._length == 4, info

    def _seen(self, push: Any) -> Any:
        return {"count": self._count, "told": {"push": np.asarray(push, np.float64)}}


@pytest.fixture(scope="module")
def actors() -> Iterator[SubprocessActors]:
    with SubprocessActors(2) as system:
        yield system


def drive(envs: VectorEnv, steps: int, dtype: Any = np.float32) -> list[tuple[Any, ...]]:
    envs.action_space.seed(3)
    log: list[tuple[Any, ...]] = [envs.reset(seed=11)]
    disabled = envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    for _ in range(steps):
        log.append(envs.step(envs.action_space.sample().astype(dtype)))
        if disabled and (over := log[-1][2] | log[-1][3]).any():
            log.append(envs.reset(options={"reset_mask": over}))
    envs.close()
    for *_, infos in log:
        if "final_obs" in infos:  # numpy compares no arrays of objects that have arrays in them
            infos["final_obs"] = infos["final_obs"].tolist()
    return log


def links_of(envs: VectorEnv) -> list[_CallLink]:
    return envs._groups


@pytest.mark.parametrize(("mode", "talks"), [(mode, mode is not AutoresetMode.NEXT_STEP) for mode in MODES])
def test_shared_memory_changes_no_number(actors: SubprocessActors, mode: AutoresetMode, talks: bool) -> None:
    options: dict[str, Any] = {"env_kwargs": {"talks": talks}, "autoreset_mode": mode, "with_infos": talks}
    here = drive(make_vector_env(Diary, 5, **options), 30)
    envs = make_vector_env(Diary, 5, actors=actors, envs_per_actor=3, **options)
    assert {type(link) for link in links_of(envs)} == {_SharedLink}
    np.testing.assert_equal(drive(envs, 30), here)


def test_one_group_of_shared_memory_gives_arrays_that_later_steps_leave_alone(actors: SubprocessActors) -> None:
    there = drive(make_vector_env("CartPole-v1", 2, actors=actors, envs_per_actor=2), 40, np.int64)
    np.testing.assert_equal(there, drive(make_vector_env("CartPole-v1", 2), 40, np.int64))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, object])
def test_an_environment_sees_actions_in_the_dtype_in_which_they_were_given(
    actors: SubprocessActors, dtype: Any
) -> None:
    options: dict[str, Any] = {"env_kwargs": {"talks": True}, "with_infos": True}
    here = drive(make_vector_env(Diary, 3, **options), 6, dtype)
    assert here[1][-1]["dtype"][0] == np.dtype(dtype)
    np.testing.assert_equal(drive(make_vector_env(Diary, 3, actors=actors, **options), 6, dtype), here)


@pytest.mark.slow
def test_where_the_memory_cannot_be_opened_steps_are_calls(
    actors: SubprocessActors, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = StepMemory.create

    def on_another_host(spaces: GroupSpaces, count: int) -> StepMemory:
        memory = create(spaces, count)
        assert memory.ticket is not None
        memory.ticket = memory.ticket._replace(token=bytes(16))
        return memory

    monkeypatch.setattr(StepMemory, "create", on_another_host)
    envs = make_vector_env(Diary, 4, actors=actors, envs_per_actor=2)
    assert {type(link) for link in links_of(envs)} == {_CallLink}
    np.testing.assert_equal(drive(envs, 12), drive(make_vector_env(Diary, 4), 12))


@pytest.mark.parametrize("dtype", [">f4", "M8[s]", "U3", [("x", "f4"), ("y", "i2")]])
def test_arrays_of_messages_keep_their_dtype(dtype: Any) -> None:
    array = np.ones(3, dtype)
    found = unpacked(*packed(array))
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_spaces_without_arrays_of_a_known_size_are_not_shared() -> None:
    box, text = gymnasium.spaces.Box(0.0, 1.0, (2,)), gymnasium.spaces.Text(5)
    assert can_share(GroupSpaces(gymnasium.spaces.Dict(a=box), box, {}))
    assert not can_share(GroupSpaces(gymnasium.spaces.Dict(a=text), box, {}))
    assert not can_share(GroupSpaces(box, gymnasium.spaces.Tuple([box, box]), {}))


def test_environments_in_this_process_share_nothing_because_they_need_not() -> None:
    assert {type(link) for link in links_of(make_vector_env("CartPole-v1", 2))} == {_CallLink}


def push(envs: VectorEnv, at: int, number: float) -> Any:
    actions = np.zeros((envs.num_envs, 2), np.float32)
    actions[at] = number
    return envs.step(actions)


def test_an_environment_that_raises_is_named_and_all_go_on_after_a_reset(actors: SubprocessActors) -> None:
    with make_vector_env(Diary, 4, actors=actors, envs_per_actor=2) as envs:
        envs.reset(seed=0)
        push(envs, 0, 1.0)
        with pytest.raises(LookupError, match="seven") as caught:
            push(envs, 1, 7.0)
        assert "its actor holds environments 0 to 1 of 4" in caught.value.__notes__
        with pytest.raises(ParlError, match="reset"):
            push(envs, 0, 0.0)
        envs.reset(seed=0)
        assert push(envs, 3, 4.0)[1].tolist() == [0.0, 0.0, 0.0, 8.0]


def test_an_actor_killed_in_a_step_or_between_two_is_an_error_that_names_its_environments() -> None:
    with SubprocessActors(2) as system:
        envs = make_vector_env(Diary, 4, actors=system, envs_per_actor=2)
        envs.reset(seed=0)
        with pytest.raises(ActorProcessLost, match="signal 9") as caught:
            push(envs, 2, 9.0)
        assert "its actor holds environments 2 to 3 of 4" in caught.value.__notes__
        with pytest.raises(ActorProcessLost, match="signal 9"):
            envs.reset(seed=0)
        envs.close()


@pytest.mark.slow
def test_a_step_that_was_interrupted_does_not_answer_the_next_one(actors: SubprocessActors) -> None:
    with make_vector_env(Diary, 4, actors=actors, envs_per_actor=2) as envs:
        envs.reset(seed=0)
        for link in links_of(envs):  # as if Ctrl-C had come while the answers were awaited
            link.begin_step(np.ones((2, 2), np.float32))
        obs, _ = envs.reset(seed=0)
        assert obs["count"].tolist() == [0, 0, 0, 0]
        assert push(envs, 0, 2.0)[0]["count"].tolist() == [1, 1, 1, 1]


@contextmanager
def interrupted_after(lines: int) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt before the next line of our own after so many; gives a list of the lines counted."""
    counted = [0]

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        if "parl_core" not in frame.f_code.co_filename or frame.f_code.co_name in ("__del__", "close"):
            return None
        if event == "line":
            counted[0] += 1
            if counted[0] > lines:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield counted
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)


@pytest.mark.slow
@pytest.mark.parametrize("through_memory", [True, False])
def test_an_interruption_anywhere_in_a_step_changes_no_later_one(
    actors: SubprocessActors, monkeypatch: pytest.MonkeyPatch, through_memory: bool
) -> None:
    if not through_memory:
        monkeypatch.setattr("parl_core.env.vector.can_share", lambda _: False)
    with make_vector_env(Diary, 2, actors=actors, envs_per_actor=1) as envs:
        for lines in itertools.count():
            envs.reset(seed=2)
            with interrupted_after(lines) as counted:
                push(envs, 0, 5.0)
            envs.reset(seed=2)
            for number in (1, 2):
                obs, rewards, *_ = push(envs, 1, number)
                assert obs["count"].tolist() == [number, number], f"after an interruption after {lines} lines"
                assert rewards.tolist() == [0.0, 2.0 * number], f"after an interruption after {lines} lines"
            if counted[0] <= lines:
                break
    assert lines > 30


@pytest.mark.slow
def test_an_interrupted_step_is_not_closed_by_asking_for_something_else(actors: SubprocessActors) -> None:
    with make_vector_env(Diary, 2, actors=actors, envs_per_actor=1) as envs:
        envs.record_episodes()
        envs.reset(seed=0)
        with interrupted_after(20):
            push(envs, 0, 1.0)
        envs.get_state()
        with pytest.raises(ParlError, match="call reset"):
            push(envs, 0, 1.0)


@pytest.mark.slow
def test_environments_that_hang_are_ended_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parl_core.env.vector.CLOSE_TIMEOUT_S", 0.1)
    monkeypatch.setattr("parl_core._subprocess_actors.STUCK_TIMEOUT_S", 0.0)
    done: list[tuple[str, float]] = []

    def noted(name: str) -> Callable[..., Any]:
        method = getattr(_SharedLink, name)

        def note(link: _SharedLink, *args: Any) -> Any:
            done.append((name, *args))
            return method(link, *args)

        return note

    steps = ("begin_close", "finish", "begin_end", "close")
    with SubprocessActors(4) as system:
        envs = make_vector_env(Diary, 4, actors=system, envs_per_actor=1)
        envs.reset(seed=0)
        for link in links_of(envs):
            link.begin_step(np.full((1, 2), 8.0, np.float32))
        for name in steps:
            monkeypatch.setattr(_SharedLink, name, noted(name))
        envs.close()
    assert [name for name, *_ in done] == [name for name in steps for _ in range(4)], "each of all before the next"
    assert sum(seconds[0] for _, *seconds in done if seconds) < 0.2, "a hanging one leaves the others the time of all"


class Gated(Diary):
    """Closes when somebody writes into a pipe."""

    def __init__(self, gate: str) -> None:
        super().__init__()
        self._gate = Path(gate)

    def close(self) -> None:
        self._gate.read_text()


@pytest.mark.parametrize(("push", "ended"), [(8.0, -signal.SIGKILL), (1.0, 0)])
def test_close_waits_long_for_the_end_of_an_environment_and_not_for_that_of_a_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, push: float, ended: int
) -> None:
    monkeypatch.setattr("parl_core.env.vector.CLOSE_TIMEOUT_S", 0.0)
    monkeypatch.setattr("parl_core._subprocess_actors.CLOSE_TIMEOUT_S", DEADLINE_S)
    monkeypatch.setattr("parl_core._subprocess_actors.STUCK_TIMEOUT_S", 0.0)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with SubprocessActors(1) as system:
        envs = make_vector_env(Gated, 1, actors=system, env_kwargs={"gate": str(gate)})
        envs.reset(seed=0)
        link: Any = links_of(envs)[0]
        link.begin_step(np.full((1, 2), push, np.float32))
        if push != 8:
            link.finish_step()
            envs.get_attr("spec")  # the actor has left the call of steps
        process = link._group._process

        def wait(timeout: float | None = None) -> int:
            if timeout:  # it is waited for: the environment may close
                assert ended == 0
                gate.write_text("")
            return subprocess.Popen.wait(process, timeout)

        monkeypatch.setattr(process, "wait", wait)
        envs.close()
        assert process.poll() == ended


def serving(link: _CallLink) -> ActorFuture:
    assert isinstance(link, _SharedLink)
    assert link._serving is not None
    return link._serving


def test_an_actor_that_was_not_needed_for_a_while_is_free_for_other_calls_and_comes_back(
    actors: SubprocessActors,
) -> None:
    with make_vector_env(Diary, 2, actors=actors, envs_per_actor=2) as envs:
        envs.reset(seed=0)
        for expected in (1, 2):
            obs = push(envs, 0, 1.0)[0]
            assert obs["count"].tolist()[1] == expected
            assert wait_any([serving(links_of(envs)[0])], DEADLINE_S)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
def test_neither_close_nor_a_forgotten_environment_leaves_descriptors(actors: SubprocessActors) -> None:
    before = descriptors()
    for closes in (True, False):
        envs = make_vector_env(Diary, 2, actors=actors, envs_per_actor=1)
        envs.reset(seed=0)
        push(envs, 0, 1.0)
        if closes:
            envs.close()
        del envs
        gc.collect()
    # The second one's actors are the system's to close, with one socket and one lifeline each.
    assert descriptors() <= before + 4
