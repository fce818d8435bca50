"""Checkpoints of loops, with agents of numpy: what is saved, what is refused, what a fault leaves."""

import errno
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeReward

import parl_core.training.run
from parl_core.actors import open_actors
from parl_core.checkpoint import CheckpointStore
from parl_core.env.normalize import NormalizeVector, wrap_rms
from parl_core.env.vector import make_vector_env
from parl_core.errors import CheckpointError, DivergedError, HyperparameterError, RunExistsError, RunInUseError
from parl_core.offline import OfflineDataset
from parl_core.replay import ReplayMemory
from parl_core.schedules import LinearDecayScheduler
from parl_core.training import (
    Callback,
    Checkpoints,
    ConfirmedReturn,
    CsvTables,
    Ended,
    Episode,
    EvaluateInActor,
    Evaluation,
    NoImprovement,
    OfflineSettings,
    OffPolicySettings,
    OnPolicySettings,
    Run,
    StepBudget,
    Stop,
    train_off_policy,
    train_offline,
    train_on_policy,
)
from parl_core.training.checkpoints import LoopParts
from parl_core.training.session import Session

EVERY = 20


class Linear:
    """Acts and learns with one matrix; what it does depends on everything that it ever saw."""

    FIGURES = ("loss",)
    gamma = 0.9
    training = True
    obs_ndim = None

    def __init__(self) -> None:
        self.weights = np.zeros((4, 2))
        self.rng = np.random.default_rng(3)
        self.updates = 0
        self.spoil_from = 10**9

    @property
    def alg(self) -> Any:
        return self

    def sample(self, obs: Any, **exploration: float) -> Any:
        return (obs @ self.weights + self.rng.normal(size=(len(obs), 2))).argmax(axis=1)

    def explore(self, obs: Any) -> Any:
        return self.value(obs), self.sample(obs), np.zeros(len(obs), np.float32)

    def value(self, obs: Any) -> Any:
        return (obs @ self.weights).max(axis=1)

    def learn(self, obs: Any, action: Any, reward: Any, *_: Any, **__: Any) -> float:
        self.updates += 1
        self.weights += 0.01 * obs[: len(reward)].T @ np.stack([reward, np.roll(reward, 1)], axis=1)
        self.weights /= max(1.0, float(np.abs(self.weights).max()))
        return float("nan") if self.updates >= self.spoil_from else float(self.weights.sum())

    def learn_rollout(self, batch: Any, *, rng: np.random.Generator, **_: Any) -> dict[str, float]:
        order = rng.permutation(len(batch.action))
        return {"loss": self.learn(batch.obs[order], batch.action[order], batch.advantage[order])}

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, weights=self.weights, updates=self.updates)

    def restore(self, path: Path) -> None:
        with np.load(path) as saved:
            self.weights, self.updates = saved["weights"], int(saved["updates"])


def cart_poles(num_envs: int = 2, **options: Any) -> Any:
    return make_vector_env("CartPole-v1", num_envs, **options)


def others(mode: AutoresetMode = AutoresetMode.DISABLED) -> Any:
    return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, autoreset_mode=mode)


def learn_on_policy(run: Run, *callbacks: Callback, envs: Any = None, agent: Any = None, **options: Any) -> Any:
    agent = agent or Linear()
    with closing(cart_poles() if envs is None else envs) as stepped:
        train_on_policy(
            agent,
            stepped,
            OnPolicySettings(120, n_steps=6),
            callbacks=[CsvTables(run), *callbacks],
            checkpoints=Checkpoints(run, EVERY, **options),
            seed=4,
        )
    return agent


def learn_off_policy(
    run: Run, *callbacks: Callback, envs: Any = None, total_steps: int = 120, agent: Any = None, **options: Any
) -> Any:
    agent = agent or Linear()
    with closing(cart_poles() if envs is None else envs) as stepped:
        train_off_policy(
            agent,
            stepped,
            OffPolicySettings(total_steps, learning_starts=10, batch_size=8, memory_size=60, n_step=3, report_every=10),
            callbacks=[CsvTables(run), *callbacks],
            checkpoints=Checkpoints(run, EVERY, **options),
            seed=4,
        )
    return agent


def check_the_same(learn: Any, tmp_path: Path, make_envs: Any = cart_poles, **options: Any) -> None:
    with Run.at(tmp_path / "whole") as run:
        whole = learn(run, envs=make_envs(), **options)
    with Run.at(tmp_path / "parts") as run:
        learn(run, StepBudget(50), envs=make_envs(), **options)
    with Run.resume(tmp_path / "parts") as run:
        parts = learn(run, envs=make_envs(), **options)
    np.testing.assert_array_equal(parts.weights, whole.weights)
    np.testing.assert_array_equal(parts.rng.random(3), whole.rng.random(3))
    rows = [(tmp_path / name / "updates.csv").read_text().count("\n") for name in ("parts", "whole")]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("learn", [learn_on_policy, learn_off_policy])
@pytest.mark.parametrize(
    "make_envs",
    [
        cart_poles,
        lambda: NormalizeVector(cart_poles()),
        lambda: cart_poles(autoreset_mode=AutoresetMode.NEXT_STEP),
        others,
        lambda: NormalizeVector(others()),
    ],
    ids=["ours", "normalised", "next step", "of others", "of others, normalised"],
)
def test_environments_of_every_kind_go_on(learn: Any, make_envs: Any, tmp_path: Path) -> None:
    check_the_same(learn, tmp_path, make_envs)


def test_statistics_of_other_vectors_go_on(tmp_path: Path) -> None:
    check_the_same(learn_on_policy, tmp_path, lambda: NormalizeReward(others(AutoresetMode.SAME_STEP)))


def normalised_cart_pole() -> Any:
    inner = gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1"))
    return gymnasium.wrappers.NormalizeReward(inner)


def cart_pole_of_wrap_rms() -> Any:
    return wrap_rms(gymnasium.make("CartPole-v1"), 0.99)


@pytest.mark.parametrize("make_env", [normalised_cart_pole, cart_pole_of_wrap_rms])
@pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv])
def test_statistics_inside_of_other_vectors_go_on(vector: Any, make_env: Any, tmp_path: Path) -> None:
    check_the_same(learn_on_policy, tmp_path, lambda: vector([make_env] * 2, autoreset_mode=AutoresetMode.SAME_STEP))


@pytest.mark.parametrize("make_env", [normalised_cart_pole, cart_pole_of_wrap_rms])
def test_statistics_inside_of_our_vectors_go_on_where_episodes_do_not(make_env: Any, tmp_path: Path) -> None:
    check_the_same(learn_on_policy, tmp_path, lambda: make_vector_env(make_env, 2), environments="reset")


def test_statistics_inside_of_our_vectors_go_on_with_fresh_episodes(tmp_path: Path) -> None:
    with Run.at(tmp_path / "run") as run:
        learn_on_policy(run, StepBudget(50), envs=make_vector_env(normalised_cart_pole, 2))
    envs = make_vector_env(normalised_cart_pole, 2)
    counted: list[float] = []

    class Counts(Callback):
        def on_end(self, ended: Ended) -> None:
            for layers in envs.get_statistics():
                kept = [layer.get("statistics", {}) for layer in layers]
                counted.extend(one["obs_rms"]["count"] for one in kept if "obs_rms" in one)

    with Run.resume(tmp_path / "run") as run:
        learn_on_policy(run, Counts(), envs=envs, fresh_episodes=True)
    assert len(counted) == 2
    assert min(counted) > 60, "120 steps in 2 environments, and their resets"


def test_environments_that_are_one_program_go_on(tmp_path: Path) -> None:
    check_the_same(learn_off_policy, tmp_path, lambda: CartPoleVectorEnv(2))


class Greedy(Linear):
    """Explores less and less by a number, a scheduler and a generator of its own, as agents of PARL 1.x do."""

    def __init__(self) -> None:
        super().__init__()
        self.e_greed, self.small, self.seen = 1.0, np.float32(1.0), np.zeros(4)
        self.decay = LinearDecayScheduler(1.0, 200)
        self.dice = np.random.default_rng(8)

    def sample(self, obs: Any, **exploration: float) -> Any:
        self.e_greed, self.small = 0.99 * self.e_greed, np.float32(0.9) * self.small
        self.seen = 0.9 * self.seen + obs.mean(axis=0)
        epsilon = self.e_greed * self.decay.step() + float(self.small)
        at_random = self.dice.random(len(obs)) < epsilon
        return np.where(at_random, self.dice.integers(2, size=len(obs)), super().sample(obs - self.seen, **exploration))


@pytest.mark.parametrize("learn", [learn_on_policy, learn_off_policy])
def test_numbers_schedulers_and_generators_of_an_agent_go_on(learn: Any, tmp_path: Path) -> None:
    def with_greedy(run: Run, *callbacks: Callback, envs: Any) -> Any:
        return learn(run, *callbacks, envs=envs, agent=Greedy())

    check_the_same(with_greedy, tmp_path)


def test_the_environments_may_live_elsewhere_after_a_resume(tmp_path: Path) -> None:
    with Run.at(tmp_path / "whole") as run:
        whole = learn_off_policy(run)
    with Run.at(tmp_path / "parts") as run, open_actors("subprocess") as actors:
        learn_off_policy(run, StepBudget(50), envs=cart_poles(actors=actors, envs_per_actor=1))
    with Run.resume(tmp_path / "parts") as run:
        parts = learn_off_policy(run)
    np.testing.assert_array_equal(parts.weights, whole.weights)


def test_learning_from_logged_data_goes_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {name: rng.normal(size=(50, 4)).astype(np.float32) for name in ("obs", "next_obs")}
    dataset = OfflineDataset(
        **columns,
        action=rng.integers(0, 2, 50),
        reward=rng.normal(size=50).astype(np.float32),
        terminal=np.zeros(50, bool),
        truncated=np.zeros(50, bool),
    )

    def learn(run: Run, *callbacks: Callback, envs: Any = None) -> Any:
        del envs
        agent = Linear()
        settings = OfflineSettings(updates=120, batch_size=8, report_every=10)
        watched: dict[str, Any] = {"callbacks": [CsvTables(run), *callbacks], "checkpoints": Checkpoints(run, EVERY)}
        train_offline(agent, dataset, settings, seed=1, **watched)
        return agent

    check_the_same(learn, tmp_path)


class Counts(Callback):
    """Counts evaluations."""

    def __init__(self) -> None:
        self.count = self.restored = 0

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.count += 1

    def get_state(self) -> int:
        return self.count

    def set_state(self, state: Any) -> None:
        self.count = state
        self.restored += 1


class Weighed(Linear):
    """Has weights to copy."""

    def get_weights(self) -> Any:
        return {"w": self.weights.copy()}

    def set_weights(self, weights: Any) -> None:
        self.weights = weights["w"]

    def predict(self, obs: Any) -> Any:
        return (obs @ self.weights).argmax(axis=1)

    def train(self) -> None: ...

    def eval(self) -> None: ...


def test_callbacks_have_attributes_of_their_own_and_call_others_in_turn() -> None:
    class Counting(Callback):
        calls = 0

    class Around(Callback):
        def __init__(self, *inner: Callback) -> None:
            self.called_callbacks = inner

    innermost = Counting()
    around = Around(Around(innermost, innermost))
    with Session(10, callbacks=[around, Counting()]) as session:
        assert [*session._named_callbacks()] == ["Around-0", "Counting-0", "Around-1", "Counting-1"]
        assert session._named_callbacks()["Counting-1"] is innermost


def test_callbacks_that_a_callback_calls_go_on_each_once(tmp_path: Path) -> None:
    def learn(run: Run, *callbacks: Callback) -> tuple[EvaluateInActor, Counts, Counts]:
        agent, inner, both = Weighed(), Counts(), Counts()
        with open_actors() as actors:
            watching = EvaluateInActor(agent, Weighed, "CartPole-v1", actors, every=10, callbacks=[inner, both])
            learn_on_policy(run, watching, both, *callbacks, agent=agent)
        return watching, inner, both

    with Run.at(tmp_path / "run") as run:
        before, *_ = learn(run, StepBudget(50))
    with Run.resume(tmp_path / "run") as run:
        watching, *counts = learn(run)
    assert len(watching.evaluations) > len(before.evaluations) > 1
    for one in counts:
        assert (one.count, one.restored) == (len(watching.evaluations), 1)


@pytest.mark.parametrize("learn", [learn_on_policy, learn_off_policy])
def test_a_budget_below_the_steps_taken_ends_a_resumed_run_at_once(learn: Any, tmp_path: Path) -> None:
    ends: list[Ended] = []

    class Ends(Callback):
        def on_end(self, ended: Ended) -> None:
            ends.append(ended)

    with Run.at(tmp_path / "run") as run:
        before = learn(run, StepBudget(50))
    with Run.resume(tmp_path / "run") as run:
        agent = learn(run, StepBudget(30), Ends())
    np.testing.assert_array_equal(agent.weights, before.weights)
    assert ends[0].step == CheckpointStore(tmp_path / "run" / "checkpoints").steps()[-1]
    assert ends[0].reason == "the portion of 30 steps is done"


def test_exactness_that_environments_cannot_give_is_refused_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(HyperparameterError, match=r'SyncVectorEnv does not give its state.*"reset"'):
        learn_on_policy(Run.at(tmp_path / "run"), envs=others(), environments="exact")
    with pytest.raises(HyperparameterError, match='"auto", "exact" or "reset", got \'never\''):
        learn_on_policy(Run.at(tmp_path / "other"), environments="never")


class Unrepeatable(gymnasium.Env[Any, Any]):
    """Observes numbers that follow from nothing."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.frombuffer(os.urandom(4), np.uint8).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.frombuffer(os.urandom(4), np.uint8).astype(np.float32), 1.0, False, False, {}


class DrawsGlobally(Unrepeatable):
    """Observes numbers of the global generators."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._drawn(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._drawn(), random.random(), False, False, {}

    def _drawn(self) -> Any:
        return np.random.normal(size=4).astype(np.float32)


@pytest.mark.parametrize("learn", [learn_on_policy, learn_off_policy])
def test_environments_that_draw_from_global_generators_go_on_where_they_are_reset(learn: Any, tmp_path: Path) -> None:
    def make_envs() -> Any:
        np.random.seed(5)
        random.seed(5)
        return make_vector_env(DrawsGlobally, 2)

    check_the_same(learn, tmp_path, make_envs, environments="reset")


def test_what_fresh_episodes_cut_stays_cut_when_the_run_is_resumed_once_more(tmp_path: Path) -> None:
    def learn(run: Run, stop: int, *, fresh: bool) -> ReplayMemory:
        memory = ReplayMemory(200, 4, 0, n_envs=2, n_step=3, gamma=0.9, seed=0)
        settings = OffPolicySettings(120, learning_starts=10, batch_size=8, memory_size=200, n_step=3, report_every=10)
        checkpoints = Checkpoints(run, EVERY, fresh_episodes=fresh)
        with closing(cart_poles()) as envs:
            train_off_policy(
                Linear(), envs, settings, memory=memory, callbacks=[StepBudget(stop)], checkpoints=checkpoints, seed=4
            )
        return memory

    with Run.at(tmp_path / "run") as run:
        learn(run, 40, fresh=False)
    with Run.resume(tmp_path / "run") as run:
        cut = learn(run, 60, fresh=True)
    with Run.resume(tmp_path / "run") as run:
        again = learn(run, 80, fresh=False)
    assert cut.truncated[:60].any()
    np.testing.assert_array_equal(again.truncated[:60], cut.truncated[:60])


def test_environments_that_cannot_be_had_again_are_named_and_fresh_episodes_go_on(tmp_path: Path) -> None:
    def envs() -> Any:
        return make_vector_env(Unrepeatable, 2)

    with Run.at(tmp_path / "run") as run:
        learn_off_policy(run, StepBudget(50), envs=envs())
    with pytest.raises(CheckpointError, match="fresh_episodes=True") as refused, Run.resume(tmp_path / "run") as run:
        learn_off_policy(run, envs=envs())
    assert "environment 0" in " ".join(refused.value.__notes__)
    with Run.resume(tmp_path / "run") as run:
        assert learn_off_policy(run, envs=envs(), fresh_episodes=True).updates > 50


@pytest.mark.parametrize("call", ["fsync", "replace", "rename"])
def test_a_full_disk_stops_training_with_what_is_left_and_what_to_do(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(os, call)
    path = tmp_path / "run"

    class Fills(Callback):
        def on_update(self, update: Any) -> None:
            if update.step >= 50:
                monkeypatch.setattr(os, call, full)

    def full(*args: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(CheckpointError, match="No space left on device") as failed, Run.at(path) as run:
        learn_off_policy(run, Fills())
    message = str(failed.value)
    assert "The newest complete one is that of step 40" in message
    assert f"Free space on that disk, then continue with: Run.resume('{path}')" in message
    assert not list(path.rglob("*.part"))
    assert not [found for found in path.rglob("*") if ".writing" in found.name]
    monkeypatch.setattr(os, call, real)
    with Run.at(tmp_path / "whole") as run:
        whole = learn_off_policy(run)
    with Run.resume(path) as run:
        resumed = learn_off_policy(run)
    np.testing.assert_array_equal(resumed.weights, whole.weights)


def test_a_loss_that_is_not_a_number_costs_the_last_interval_and_no_more(tmp_path: Path) -> None:
    spoiled = Linear()
    spoiled.spoil_from = 40
    run = Run.at(tmp_path / "run")
    with pytest.raises(DivergedError, match=r"loss is nan.*go back to the last checkpoint") as failed, run:
        learn_off_policy(run, agent=spoiled)
    assert "checkpoint of step 40" in " ".join(failed.value.__notes__)
    with Run.at(tmp_path / "whole") as run:
        whole = learn_off_policy(run)
    with Run.resume(tmp_path / "run") as run:
        np.testing.assert_array_equal(learn_off_policy(run).weights, whole.weights)


def test_a_run_that_has_all_its_steps_goes_on_with_more(tmp_path: Path) -> None:
    with Run.at(tmp_path / "whole") as run:
        whole = learn_off_policy(run, total_steps=160)
    with Run.at(tmp_path / "run") as run:
        learn_off_policy(run)
    with Run.resume(tmp_path / "run") as run:
        np.testing.assert_array_equal(learn_off_policy(run, total_steps=160).weights, whole.weights)


@pytest.mark.parametrize("rule", [lambda: ConfirmedReturn(5.0), lambda: NoImprovement(2)])
def test_a_run_that_a_rule_had_ended_takes_no_further_step_and_one_with_a_higher_goal_does(
    rule: Any, tmp_path: Path
) -> None:
    def learn(run: Run, rule: Callback) -> Ended:
        settings = OffPolicySettings(120, learning_starts=10, batch_size=8, memory_size=60)
        with closing(cart_poles()) as envs:
            return train_off_policy(
                Linear(),
                envs,
                settings,
                evaluator=lambda: Evaluation([Episode(7.0, 10)]),
                evaluate_every=20,
                callbacks=[rule],
                checkpoints=Checkpoints(run, EVERY),
                seed=4,
            )

    with Run.at(tmp_path / "run") as run:
        first = learn(run, rule())
    assert (first.stop, first.step < 120) == (Stop.CALLBACK, True)
    with Run.resume(tmp_path / "run") as run:
        again = learn(run, rule())
    assert (again.stop, again.step, again.reason) == (first.stop, first.step, first.reason)
    with Run.resume(tmp_path / "run") as run:
        assert learn(run, ConfirmedReturn(8.0)).step == 120


def test_a_folder_that_exists_is_no_new_run(tmp_path: Path) -> None:
    with Run.at(tmp_path / "run") as run:
        (run.path / "precious").write_text("kept")
    with pytest.raises(RunExistsError, match=rf"parl resume {tmp_path}/run.*Run\.resume\('{tmp_path}/run'\)"):
        Run.at(tmp_path / "run")
    assert (tmp_path / "run" / "precious").read_text() == "kept"


def test_two_programs_do_not_write_into_one_run(tmp_path: Path) -> None:
    with Run.at(tmp_path / "run") as run:
        assert run.path.is_dir()
        with pytest.raises(RunInUseError, match="another program is writing"):
            Run.resume(tmp_path / "run")
    with Run.resume(tmp_path / "run") as again:
        assert again.resumed


def test_what_cannot_be_resumed_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a folder of a run"):
        Run.resume(tmp_path / "nothing")
    with Run.at(tmp_path / "run") as run:
        run.path.joinpath("note").write_text("")
    run = Run.resume(tmp_path / "run")
    with pytest.raises(CheckpointError, match="the run ended before the first one"), run:
        learn_off_policy(run)


def test_checkpoints_hold_the_agent_that_took_the_place_of_the_first(tmp_path: Path) -> None:
    with Run.at(tmp_path / "run") as run:
        checkpoints, first, second = Checkpoints(run), Linear(), Linear()
        with pytest.raises(CheckpointError, match=r"call keep\("):
            checkpoints.set_agent(second)
        assert checkpoints.keep(LoopParts(first)) is None
        second.weights += 7.0
        checkpoints.set_agent(second)
        checkpoints.save(1, dict)
    with Run.resume(tmp_path / "run") as run:
        agent = Linear()
        Checkpoints(run).keep(LoopParts(agent))
    assert (agent.weights == 7.0).all()
    assert (first.weights == 0.0).all()


def test_a_checkpoint_of_another_loop_or_other_environments_is_refused(tmp_path: Path) -> None:
    with Run.at(tmp_path / "run") as run:
        learn_off_policy(run, StepBudget(50))
    with pytest.raises(CheckpointError, match="another kind of loop"), Run.resume(tmp_path / "run") as run:
        learn_on_policy(run)
    with pytest.raises(CheckpointError, match="n_envs=2"), Run.resume(tmp_path / "run") as run:
        learn_off_policy(run, envs=cart_poles(4))


def test_a_checkpoint_of_another_algorithm_of_the_same_shape_is_refused(tmp_path: Path) -> None:
    class OtherRule(Linear):
        pass

    with Run.at(tmp_path / "run") as run:
        learn_on_policy(run, StepBudget(50))
    wanted = r"of a run with Linear, and this agent has OtherRule: resume the run with Linear; .*start a new run"
    agent = OtherRule()
    with pytest.raises(CheckpointError, match=wanted), Run.resume(tmp_path / "run") as run:
        learn_on_policy(run, agent=agent)
    assert agent.updates == 0


class OnDevice(Linear):
    def __init__(self, device: str, chosen: bool = True) -> None:
        super().__init__()
        self.device, self._device_chosen = device, chosen


@pytest.mark.parametrize("gpu", ["cuda:1", "gpu:1"])
def test_a_run_on_a_gpu_continues_on_the_cpu_where_that_was_chosen(
    gpu: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Run.at(tmp_path / "run") as run:
        before = learn_on_policy(run, StepBudget(50), agent=OnDevice(gpu))
    found = OnDevice("cpu", chosen=False)
    wanted = r"of a run on cuda:1, and no GPU was found here; to continue on the CPU, put PARL_DEVICE=cpu before"
    with pytest.raises(CheckpointError, match=wanted), Run.resume(tmp_path / "run") as run:
        learn_on_policy(run, agent=found)
    assert found.updates == 0
    assert not caplog.records
    with Run.resume(tmp_path / "run") as run:
        assert learn_on_policy(run, agent=OnDevice("cpu")).updates > before.updates
    told = [record.getMessage() for record in caplog.records if "cuda" in record.getMessage()]
    assert told == [
        "The run began on cuda:1 and continues on cpu, which rounds differently and draws other random numbers"
    ]


def test_checkpoints_of_older_versions_name_no_algorithm_and_no_device_and_are_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = CheckpointStore.write

    def older(store: CheckpointStore, step: int, state: dict[str, Any], **rest: Any) -> Path:
        del state["algorithm"], state["device"]
        return write(store, step, state, **rest)

    monkeypatch.setattr(CheckpointStore, "write", older)
    with Run.at(tmp_path / "run") as run:
        before = learn_on_policy(run, StepBudget(50))
    with Run.resume(tmp_path / "run") as run:
        assert learn_on_policy(run).updates > before.updates


def test_a_memory_that_cannot_be_saved_is_refused_before_the_first_step(tmp_path: Path) -> None:
    class Memory:
        obs = np.zeros(1, np.float32)

    settings = OffPolicySettings(100, batch_size=8, memory_size=60)
    checkpoints = Checkpoints(Run.at(tmp_path / "run"))
    with pytest.raises(CheckpointError, match="Memory cannot be part of a checkpoint"), cart_poles() as envs:
        train_off_policy(Linear(), envs, settings, memory=Memory(), checkpoints=checkpoints, seed=1)


class Interrupts(Callback):
    """Presses Ctrl-C after step 30, in the middle of a round."""

    def on_update(self, update: Any) -> None:
        if update.step >= 30:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("learn", [learn_on_policy, learn_off_policy])
def test_ctrl_c_ends_a_round_with_a_checkpoint(learn: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit), Run.at(tmp_path / "run") as run:
        learn(run, Interrupts())
    steps = CheckpointStore(tmp_path / "run" / "checkpoints").steps()
    assert 30 <= steps[-1] < 40, "between two that are written anyway"
    with Run.resume(tmp_path / "run") as run:
        resumed = learn(run)
    with Run.at(tmp_path / "whole") as run:
        whole = learn(run)
    np.testing.assert_array_equal(resumed.weights, whole.weights)


def test_ctrl_c_ends_at_once_where_a_checkpoint_would_change_the_run(tmp_path: Path) -> None:
    with pytest.raises(SystemExit), Run.at(tmp_path / "run") as run:
        learn_on_policy(run, Interrupts(), environments="reset")
    assert CheckpointStore(tmp_path / "run" / "checkpoints").steps()[-1] < 30


def test_ctrl_c_does_not_wait_for_a_round_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Waits(Interrupts):
        def on_update(self, update: Any) -> None:
            super().on_update(update)
            if update.step >= 30:
                threading.Event().wait(200)

    monkeypatch.setattr(parl_core.training.run, "SECONDS_OF_A_ROUND", 0.01)
    with pytest.raises(SystemExit), Run.at(tmp_path / "run") as run:
        learn_on_policy(run, Waits())
    assert CheckpointStore(tmp_path / "run" / "checkpoints").steps()[-1] < 30


TWICE = """
import signal, sys, threading
from parl_core.training import Run

with Run("r", sys.argv[1]):
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        print("cleaning up", flush=True)
        signal.raise_signal(signal.SIGINT)
        threading.Event().wait(60)
        print("never", flush=True)
"""


def test_ctrl_c_twice_ends_at_once(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", TWICE, tmp_path], capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == -signal.SIGINT
    assert ended.stdout == "cleaning up\n"
    assert "Interrupted again: ended at once." in ended.stderr
