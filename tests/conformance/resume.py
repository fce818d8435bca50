"""A run that was stopped and resumed is the run that was never stopped, to the last bit.

However it was stopped: by a portion of steps, by Ctrl-C, by SIGKILL in the middle of writing a checkpoint. Compared are
all weights, targets, moments and counters, and all logged figures but those that a clock gives.
"""

import csv
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from conformance.programs import environment
from parl_core import backends, logger
from parl_core.actors import ActorSystem, open_actors
from parl_core.env.vector import make_vector_env
from parl_core.replay import Prioritized
from parl_core.schedules import linear
from parl_core.training.actor_learner import ActorLearnerSettings, train_actor_learner
from parl_core.training.callbacks import KeepBest, StepBudget
from parl_core.training.checkpoints import Checkpoints
from parl_core.training.evaluation import evaluate
from parl_core.training.events import Callback, Ended, Update
from parl_core.training.logs import CsvTables, JsonLines
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.on_policy import OnPolicySettings, train_on_policy
from parl_core.training.run import Run
from parl_core.training.trained import Trained

__all__ = ["KINDS", "ResumeConformance", "train"]


class Kind(NamedTuple):
    """One kind of run: what learns where, and how the loop is set."""

    algorithm: str
    env: str
    loop: OnPolicySettings | OffPolicySettings | ActorLearnerSettings


def _off_policy(**changes: Any) -> OffPolicySettings:
    given = {"total_steps": 220, "learning_starts": 40, "batch_size": 8, "memory_size": 100, "report_every": 30}
    return OffPolicySettings(**{**given, **changes})


def _actors(**changes: Any) -> ActorLearnerSettings:
    given = {"total_steps": 256, "n_actors": 2, "envs_per_group": 2, "n_steps": 4, "report_every": 30}
    return ActorLearnerSettings(**{**given, "deterministic": True, **changes})


_EPSILON = {"epsilon": linear(1.0, 0.1, 150)}

KINDS = {
    "PPO": Kind("PPO", "CartPole-v1", OnPolicySettings(256, n_steps=16, epochs=2, lr=1e-3, clip=0.2, decay=True)),
    "DQN": Kind("DQN", "CartPole-v1", _off_policy(n_step=2, exploration=_EPSILON)),
    "prioritised DQN": Kind("DQN", "CartPole-v1", _off_policy(prioritized=Prioritized(), exploration=_EPSILON)),
    "SAC": Kind("SAC", "Pendulum-v1", _off_policy(total_steps=180, train_every=2)),
    "IMPALA with actors": Kind("IMPALA", "CartPole-v1", _actors(max_lag=1)),
    "GA3C": Kind("A3C", "CartPole-v1", _actors(max_lag=1, inference="learner", batch_fragments=1)),
    "A2C with actors": Kind("A2C", "CartPole-v1", _actors(max_lag=0, deterministic=False, gae_lambda=0.9)),
    "PPO with actors": Kind("PPO", "CartPole-v1", _actors(max_lag=0, epochs=2, minibatch_size=12)),
}
"""A checkpoint every 40 steps, in the middle of episodes. Loops without actors have two environments."""

_ARGUMENTS: dict[str, dict[str, Any]] = {"IMPALA": {"sample_batch_steps": 4, "learning_rate": 0.01}}


def make_agent(backend: str, kind: str) -> Any:
    """A new agent, also in actors."""
    algorithm, env, _ = KINDS[kind]
    backends.set_backend(backend)
    return Trained(algorithm, env, backend, (16,), _ARGUMENTS.get(algorithm, {}), seed=3).make_agent()


def train(
    backend: str,
    kind: str,
    run: Run,
    *callbacks: Callback,
    environments: Any = "auto",
    actors: ActorSystem | None = None,
    n_actors: int | None = None,
) -> tuple[dict[str, Any], Ended]:
    """Train in a run's folder and return all that was learned, and how it ended.

    Args:
        backend: its name.
        kind: of `KINDS`.
        run: a new or a resumed one.
        callbacks: besides logs and the best weights.
        environments: see `Checkpoints`.
        actors: where they live, of loops with some.
        n_actors: another number of them.
    """
    _, env, loop = KINDS[kind]
    agent = make_agent(backend, kind)
    watched: dict[str, Any] = {
        "callbacks": [KeepBest(agent), CsvTables(run), JsonLines(run), *callbacks],
        "checkpoints": Checkpoints(run, every=40, environments=environments),
        "evaluator": lambda: evaluate(agent, env, 1, seed=9),
        "evaluate_every": 100,
        "seed": 5,
    }
    if isinstance(loop, ActorLearnerSettings):
        there = replace(loop, groups=loop.n_groups, n_actors=n_actors or loop.n_actors)
        ended = train_actor_learner(agent, partial(make_agent, backend, kind), env, there, actors=actors, **watched)
        return _learned(agent), ended
    with make_vector_env(env, 2) as envs:
        if isinstance(loop, OnPolicySettings):
            ended = train_on_policy(agent, envs, loop, **watched)
        else:
            ended = train_off_policy(agent, envs, loop, **watched)
    return _learned(agent), ended


def _learned(agent: Any) -> dict[str, Any]:
    state = agent.alg.get_state()
    return {**state.arrays, **{name: np.array(count) for name, count in state.counters.items()}}


class PressCtrlC(Callback):
    """Sends this process the signal of Ctrl-C after the first update from a step on."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_update(self, update: Update) -> None:
        if update.step >= self._step:
            signal.raise_signal(signal.SIGINT)


_KILLED = """
import os, signal, sys
from pathlib import Path
from conformance.resume import train
from parl_core.training.run import Run

backend, kind, folder = sys.argv[1:]
rename, left = os.rename, 3

def killed_before_the_third_checkpoint_has_its_name(*args):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(*args)

os.rename = killed_before_the_third_checkpoint_has_its_name
with Run.at(folder) as run:
    train(backend, kind, run)
"""


_KILLED_AT_RANDOM = """
import sys, time
from conformance.resume import train
from parl_core.training.events import Callback
from parl_core.training.run import Run

backend, kind, folder = sys.argv[1:]

class SayWhenOneIsThere(Callback):
    said = False

    def on_update(self, update):
        if update.step > 80 and not self.said:
            self.said = True
            print(update.seconds, flush=True)

with Run.at(folder) as run:
    train(backend, kind, run, SayWhenOneIsThere())
"""


class ResumeConformance:
    """Stopping and resuming changes nothing."""

    backend: ClassVar[str]
    """Name of the backend under test."""

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, Any], Path]]:
        """Runs that were never stopped, each made once."""
        done: dict[str, tuple[dict[str, Any], Path]] = {}

        def make(kind: str) -> tuple[dict[str, Any], Path]:
            if kind not in done:
                with Run.at(tmp_path_factory.mktemp("whole") / "run") as run:
                    learned, ended = train(cls.backend, kind, run)
                    assert ended.step >= KINDS[kind].loop.total_steps
                    done[kind] = learned, run.path
            return done[kind]

        return make

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_run_in_two_portions_is_the_run_in_one(self, kind: str, whole: Any, tmp_path: Path) -> None:
        backend = self.backend
        with Run.at(tmp_path / "run") as run:
            _, ended = train(backend, kind, run, StepBudget(90))
        assert ended.step < 150
        with Run.resume(tmp_path / "run") as run:
            learned, _ = train(backend, kind, run)
        self._check_equal(learned, tmp_path / "run", whole(kind))

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_run_that_ctrl_c_ended_goes_on_from_its_last_checkpoint(
        self, kind: str, whole: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        backend = self.backend
        with pytest.raises(SystemExit), Run.at(tmp_path / "run") as run:
            train(backend, kind, run, PressCtrlC(130))
        assert "checkpoint of step " in capsys.readouterr().err
        with Run.resume(tmp_path / "run") as run:
            learned, _ = train(backend, kind, run)
        self._check_equal(learned, tmp_path / "run", whole(kind))

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["PPO", "prioritised DQN", "SAC", "IMPALA with actors", "A2C with actors"])
    def test_a_run_that_was_killed_while_it_wrote_goes_on_from_the_checkpoint_before(
        self, kind: str, whole: Any, tmp_path: Path
    ) -> None:
        backend, folder = self.backend, tmp_path / "run"
        killed = subprocess.run(
            [sys.executable, "-c", _KILLED, backend, kind, str(folder)],
            env={**environment(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        complete = [path.name for path in (folder / "checkpoints").iterdir() if path.name.isdigit()]
        assert len(complete) == 2
        with Run.resume(folder) as run:
            learned, _ = train(backend, kind, run)
        self._check_equal(learned, folder, whole(kind))

    def test_with_new_episodes_at_every_checkpoint_stopping_changes_nothing_either(self, tmp_path: Path) -> None:
        backend, kind = self.backend, "DQN"
        with Run.at(tmp_path / "whole") as run:
            whole, _ = train(backend, kind, run, environments="reset")
        with Run.at(tmp_path / "run") as run:
            train(backend, kind, run, StepBudget(90), environments="reset")
        with Run.resume(tmp_path / "run") as run:
            learned, _ = train(backend, kind, run, environments="reset")
        self._check_equal(learned, tmp_path / "run", (whole, tmp_path / "whole"))

    @pytest.mark.slow
    def test_a_run_that_was_killed_at_a_random_moment_goes_on_from_its_last_checkpoint(
        self, whole: Any, tmp_path: Path
    ) -> None:
        backend, kind, folder = self.backend, "DQN", tmp_path / "run"
        with subprocess.Popen(
            [sys.executable, "-c", _KILLED_AT_RANDOM, backend, kind, str(folder)],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            so_far = float(process.stdout.readline())  # seconds of about 90 of 220 steps
            delay = random.SystemRandom().uniform(0.0, 1.5 * so_far)
            try:
                process.wait(delay)
            except subprocess.TimeoutExpired:
                process.kill()
        logger.info("killed %.3f s after the first %.3f s", delay, so_far)  # shown where the test fails
        with Run.resume(folder) as run:
            learned, _ = train(backend, kind, run)
        self._check_equal(learned, folder, whole(kind))

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["IMPALA with actors", "A2C with actors"])
    def test_actors_may_live_elsewhere_and_be_others_after_a_resume(
        self, kind: str, whole: Any, tmp_path: Path
    ) -> None:
        systems: list[tuple[str, dict[str, Any]]] = [("subprocess", {"processes": 1}), ("in-process", {})]
        if find_spec("parl_remote") is not None:
            systems.append(("remote", {"cpu_num": 2}))
        budgets = [StepBudget(90), StepBudget(180)][: len(systems) - 1]
        run = Run.at(tmp_path / "run")
        for (system, options), budget in zip_longest(systems, budgets):
            with run, open_actors(system, **options) as actors:
                stops = [] if budget is None else [budget]
                n_actors = 2 if system == "in-process" else 1
                learned, _ = train(self.backend, kind, run, *stops, actors=actors, n_actors=n_actors)
            run = Run.resume(tmp_path / "run")
        self._check_equal(learned, tmp_path / "run", whole(kind))

    def _check_equal(self, learned: dict[str, Any], folder: Path, whole: tuple[dict[str, Any], Path]) -> None:
        expected, other = whole
        assert sorted(learned) == sorted(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(learned[name], array, err_msg=name, strict=True)
        for name in CsvTables.NAMES:
            assert _rows(folder / name) == _rows(other / name)
        assert _lines(folder / JsonLines.NAME) == _lines(other / JsonLines.NAME)


_OF_A_CLOCK = {"seconds", "speed/steps_per_second"} | {
    *(f"actors/{part}" for part in ("env", "policy", "idle")),
    *(f"learner/{part}" for part in ("wait", "receive", "learn", "send", "other")),
}


def _of_no_clock(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _OF_A_CLOCK}


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return [_of_no_clock(row) for row in csv.DictReader(file)]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [_of_no_clock(json.loads(line)) for line in path.read_text().splitlines()]
