"""The actors-and-learner loop, with agents and environments whose numbers can be followed by hand."""

import contextlib
import logging
import math
import threading
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest

from parl_core._subprocess_actors import SubprocessActors
from parl_core.actors import InProcessActors
from parl_core.checks import check_finite
from parl_core.contracts.batches import RolloutBatch
from parl_core.errors import DivergedError, EnvironmentContractError, HyperparameterError, LostActor
from parl_core.training import (
    ActorLearnerSettings,
    Callback,
    Ended,
    Evaluation,
    Stop,
    Update,
    evaluate,
    train_actor_learner,
)
from parl_core.training._group_actor import GroupActor

pytestmark = pytest.mark.usefixtures("importable_classes")


class Counting(gymnasium.Env[Any, Any]):
    """Observes how many steps its episode has taken; the reward is 1; ends or is cut after some steps."""

    observation_space: Any = gymnasium.spaces.Box(0.0, 1000.0, (1,), np.float32)
    action_space: Any = gymnasium.spaces.Discrete(2)

    def __init__(self, ends: int = 1000, cut: int = 1000) -> None:
        self._ends, self._cut, self._count = ends, cut, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._count += 1
        return np.full(1, self._count, np.float32), 1.0, self._count == self._ends, self._count == self._cut, {}


class Random(Counting):
    """Its rewards and observations come from its own generator and the actions."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.random(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs = self.np_random.random(1, np.float32) + np.float32(action)
        ends = self.np_random.random(2) < 0.1
        return obs, float(obs[0]), bool(ends[0]), bool(ends[1]), {}


class VTraceLoss(NamedTuple):
    total_loss: float
    updates: float


class Actor:
    """Acts and learns like IMPALA: its weights count its updates, its logits are its observations."""

    sample_batch_steps = 4

    def __init__(self, updates: float = 0.0) -> None:
        self.weights = {"updates": np.array(updates)}
        self.batches: list[dict[str, Any]] = []

    def logits(self, obs: Any) -> Any:
        return np.concatenate([obs, self.weights["updates"] + 0.0 * obs], axis=1)

    def value(self, obs: Any) -> Any:
        return obs[:, 0]

    def learn(self, obs: Any, action: Any, logits: Any, reward: Any, done: Any, **more: Any) -> Any:
        names = ("obs", "action", "logits", "reward", "done")
        batch = dict(zip(names, (obs, action, logits, reward, done), strict=True)) | more
        self.batches.append({name: np.copy(value) for name, value in batch.items() if value is not None})
        self.weights["updates"] += 1.0
        return VTraceLoss(float(np.sum(reward)), float(self.weights["updates"])), 0.5

    def get_weights(self) -> dict[str, Any]:
        return {name: array.copy() for name, array in self.weights.items()}

    def set_weights(self, weights: dict[str, Any]) -> None:
        self.weights = {name: array.copy() for name, array in weights.items()}

    @property
    def versions(self) -> list[list[int]]:
        """Of each batch, the updates that the weights had seen which acted, by fragment row."""
        return [batch["logits"][:, 1].astype(int).tolist() for batch in self.batches]


class OnPolicy:
    """Values an observation at ten times its count, always takes action 1, and learns nothing."""

    def __init__(self) -> None:
        self.batches: list[RolloutBatch] = []
        self.options: dict[str, Any] = {}

    def explore(self, obs: Any) -> Any:
        return self.value(obs), np.ones(len(obs), np.int64), np.full(len(obs), -1.0)

    def value(self, obs: Any) -> Any:
        return 10.0 * obs[:, 0]

    def learn_rollout(self, batch: RolloutBatch, **options: Any) -> dict[str, float]:
        self.batches.append(batch)
        self.options = options
        return {"policy_loss": 0.0}

    def get_weights(self) -> dict[str, Any]:
        return {}

    def set_weights(self, weights: dict[str, Any]) -> None:
        assert not weights


class Recorder(Callback):
    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.ended: Ended | None = None

    def on_update(self, update: Update) -> None:
        self.updates.append(update)

    def on_end(self, ended: Ended) -> None:
        self.ended = ended


def settings(**changes: Any) -> ActorLearnerSettings:
    small = {"total_steps": 48, "n_actors": 2, "envs_per_group": 3, "n_steps": 4, "report_every": 1, "max_lag": 1}
    return ActorLearnerSettings(**{**small, **changes})


def learned(env: Any = Random, agent: Any = None, seed: int = 3, **changes: Any) -> list[dict[str, Any]]:
    agent = agent or Actor()
    train_actor_learner(agent, type(agent), env, settings(**changes), seed=seed)
    found: list[dict[str, Any]] = agent.batches
    return found


class MaskByMethod(Counting):
    """Tells the possible actions as sb3-contrib asks for them."""

    def action_masks(self) -> list[bool]:
        return [False, True]


class MaskInInfo(Counting):
    """Tells the possible actions as Gymnasium's Taxi does."""

    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0], {"action_mask": np.array([0, 1], np.int8)}


@pytest.mark.parametrize(("env", "told"), [(MaskByMethod, "action_masks()"), (MaskInInfo, "info['action_mask']")])
def test_a_mask_that_is_not_looked_at_is_warned_of_once(env: Any, told: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "parl"):
        learned(env, total_steps=24, max_lag=0)
    messages = [record.getMessage() for record in caplog.records if "possible actions" in record.getMessage()]
    assert len(messages) == 1
    assert f"in {told}, which is not looked at" in messages[0]


def test_a_batch_holds_each_environments_steps_one_after_another() -> None:
    batch = learned(Counting, total_steps=24, max_lag=0)[0]
    np.testing.assert_array_equal(batch["obs"].reshape(6, 4), np.tile([0, 1, 2, 3], (6, 1)))
    np.testing.assert_array_equal(batch["last_obs"], np.full((6, 1), 4))
    np.testing.assert_array_equal(batch["reward"], np.ones(24))
    assert not batch["done"].any()
    assert "final_obs" not in batch


def test_a_fragment_goes_on_where_the_one_before_stopped() -> None:
    first, second = learned(lambda: Counting(ends=6), max_lag=0)
    np.testing.assert_array_equal(first["obs"].reshape(6, 4)[0], [0, 1, 2, 3])
    np.testing.assert_array_equal(second["obs"].reshape(6, 4)[0], [4, 5, 0, 1])
    np.testing.assert_array_equal(second["done"].reshape(6, 4)[0], [False, True, False, False])


def test_a_truncated_step_has_its_last_observation_and_a_terminated_one_has_not() -> None:
    batch = learned(lambda: Counting(cut=3), total_steps=24, max_lag=0)[0]
    np.testing.assert_array_equal(batch["final_rows"], np.arange(6) * 4 + 2)
    np.testing.assert_array_equal(batch["final_obs"], np.full((6, 1), 3))
    assert "final_rows" not in learned(lambda: Counting(ends=3, cut=3), total_steps=24, max_lag=0)[0]


def test_samples_are_of_the_newest_weights_in_rounds() -> None:
    agent = Actor()
    learned(agent=agent, total_steps=72, max_lag=0)
    assert agent.versions == [[0] * 24, [1] * 24, [2] * 24]


def test_the_lag_grows_to_its_limit_and_no_further() -> None:
    agent, recorder = Actor(), Recorder()
    chosen = settings(total_steps=120, max_lag=2, deterministic=True)
    train_actor_learner(agent, Actor, Random, chosen, callbacks=[recorder], seed=0)
    assert [versions[0] for versions in agent.versions] == [0, 0, 0, 1, 2]
    assert [update.metrics["lag/max"] for update in recorder.updates] == [0, 1, 2, 2, 2]
    assert recorder.updates[-1].metrics["lag/limit"] == 2


def test_the_first_arrival_is_within_the_lag_too() -> None:
    agent = Actor()
    learned(agent=agent, total_steps=240, max_lag=2)
    assert {max(update - version for version in rows) for update, rows in enumerate(agent.versions)} == {0, 1, 2}


@pytest.mark.parametrize("inference", ["actors", "learner"])
@pytest.mark.parametrize("max_lag", [0, 1])
def test_the_number_of_actors_changes_nothing_in_the_deterministic_mode(inference: str, max_lag: int) -> None:
    def run(n_actors: int) -> list[dict[str, Any]]:
        agent = Actor()
        changes = {"groups": 4, "envs_per_group": 2, "deterministic": True, "inference": inference}
        chosen = settings(total_steps=160, n_actors=n_actors, max_lag=max_lag, **changes)
        train_actor_learner(agent, Actor, Random, chosen, seed=7)
        return agent.batches

    alone = run(1)
    assert len({batch["obs"].tobytes() for batch in alone}) == len(alone) == 5
    for n_actors in (2, 4):
        np.testing.assert_equal(run(n_actors), alone)


@pytest.mark.slow
def test_processes_give_the_same_numbers_as_none() -> None:
    here, there = Actor(), Actor()
    chosen = settings(total_steps=96, groups=4, deterministic=True)
    train_actor_learner(here, Actor, Random, chosen, seed=7)
    with SubprocessActors(2) as actors:
        train_actor_learner(there, Actor, Random, chosen, actors=actors, seed=7)
    np.testing.assert_equal(there.batches, here.batches)


def test_advantages_are_those_of_the_rollout_loop() -> None:
    # Observations 0 1 | 0, values 0 10 | 0; the cut step led to observation 2, worth 20, the last one to 1, worth 10.
    # A_2 = 1 + 0.5*10 - 0 = 6; A_1 = 1 + 0.5*20 - 10 = 1; A_0 = 1 + 0.5*10 - 0 + 0.5*A_1 = 6.5
    agent = OnPolicy()
    learned(lambda: Counting(cut=2), agent, n_steps=3, gamma=0.5, max_lag=0, total_steps=18)
    np.testing.assert_allclose(agent.batches[0].advantage, np.tile([6.5, 1.0, 6.0], 6))
    np.testing.assert_allclose(agent.batches[0].return_, np.tile([6.5, 11.0, 6.0], 6))
    np.testing.assert_allclose(agent.batches[0].log_prob, np.full(18, -1.0))


def test_passes_over_a_batch_and_rates_are_those_of_the_settings() -> None:
    agent = OnPolicy()
    learned(Counting, agent, max_lag=0, epochs=3, minibatch_size=8, rates={"clip": 0.2, "lr": lambda step: step + 1.0})
    assert isinstance(agent.options.pop("rng"), np.random.Generator)
    assert agent.options == {"epochs": 3, "minibatch_size": 8, "clip": 0.2, "lr": 25.0}


def test_inference_on_the_learner_gives_the_same_kind_of_fragments() -> None:
    agent = OnPolicy()
    changes: dict[str, Any] = {"n_steps": 3, "gamma": 0.5, "max_lag": 0, "total_steps": 36, "inference": "learner"}
    learned(lambda: Counting(cut=2), agent, **changes)
    np.testing.assert_allclose(agent.batches[0].advantage, np.tile([6.5, 1.0, 6.0], 6))
    np.testing.assert_array_equal(agent.batches[1].obs.reshape(6, 3), np.tile([1, 0, 1], (6, 1)))


def test_inference_on_the_learner_uses_the_newest_weights_for_every_step() -> None:
    agent = Actor()
    learned(agent=agent, total_steps=96, max_lag=2, inference="learner", batch_fragments=1)
    assert agent.versions[:2] == [[0] * 12, [0] * 12]  # two groups' first fragments were made together
    assert all(lag <= 2 for update, rows in enumerate(agent.versions) for lag in (update - version for version in rows))


def test_episodes_metrics_and_losses_are_reported() -> None:
    recorder = Recorder()
    chosen = settings(report_every=30)
    train_actor_learner(Actor(), Actor, lambda: Counting(ends=4), chosen, callbacks=[recorder], seed=0)
    (update,) = recorder.updates
    assert (update.step, len(update.episodes), update.episodes[0].episode_return) == (48, 12, 4.0)
    assert update.losses == {"total_loss": 24.0, "updates": 1.5, "kl": 0.5}
    shares = {name: value for name, value in update.metrics.items() if name.partition("/")[0] in ("actors", "learner")}
    counts = {shares.pop(name) for name in ("actors/lost", "actors/failed")}
    assert counts == {0.0}
    assert all(0.0 <= share <= 1.0 for share in shares.values())
    for group in ("actors", "learner"):
        assert math.isclose(sum(share for name, share in shares.items() if name.startswith(group)), 1.0)


def test_rates_follow_the_steps_that_were_learned_from() -> None:
    batches = learned(total_steps=72, rates={"learning_rate": lambda step: 1.0 - step / 72, "entropy_coeff": -0.5})
    assert [float(batch["learning_rate"]) for batch in batches] == pytest.approx([1.0, 2 / 3, 1 / 3])
    assert float(batches[0]["entropy_coeff"]) == -0.5


def test_evaluations_come_when_they_are_due() -> None:
    class Greedy(Actor):
        training = True

        def train(self) -> None: ...

        def eval(self) -> None: ...

        def predict(self, obs: Any) -> Any:
            return np.ones(len(obs), np.int64)

    agent = Greedy()

    def evaluator() -> Evaluation:
        return evaluate(agent, lambda: Counting(ends=5), episodes=2)

    ended = train_actor_learner(
        agent, Actor, Random, settings(total_steps=96), evaluator=evaluator, evaluate_every=48, seed=0
    )
    assert [(each.step, each.mean) for each in ended.evaluations] == [(48, 5.0), (96, 5.0)]
    assert ended.stop is Stop.BUDGET


class Failing(Random):
    """Fails in its 3rd step, until files say that so many have done so."""

    def __init__(self, folder: str, often: int) -> None:
        super().__init__()
        self._folder, self._often, self._steps = Path(folder), often, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == 3 and any(self._is_first(number) for number in range(self._often)):
            self.fail()
        return super().step(action)

    def _is_first(self, number: int) -> bool:
        with contextlib.suppress(FileExistsError), (self._folder / str(number)).open("x"):
            return True
        return False

    def fail(self) -> None:
        raise LookupError("lost its map")


class Hanging(Failing):
    def fail(self) -> None:
        threading.Event().wait()


class Ending(Failing):
    def fail(self) -> None:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("inference", ["actors", "learner"])
def test_an_environment_that_raises_is_made_anew_and_the_run_goes_on(tmp_path: Path, inference: str) -> None:
    agent, recorder = Actor(), Recorder()
    ended = train_actor_learner(
        agent,
        Actor,
        Failing,
        settings(inference=inference),
        env_kwargs={"folder": str(tmp_path), "often": 2},
        callbacks=[recorder],
        seed=0,
    )
    assert ended.step == 48
    assert recorder.updates[-1].metrics["actors/failed"] == 2
    assert recorder.updates[-1].metrics["actors/lost"] == 0


@pytest.mark.parametrize("inference", ["actors", "learner"])
def test_an_environment_that_raises_too_often_ends_the_run_with_its_own_error(tmp_path: Path, inference: str) -> None:
    recorder = Recorder()
    with pytest.raises(LookupError, match="lost its map") as caught:
        train_actor_learner(
            Actor(),
            Actor,
            Failing,
            settings(inference=inference, max_failures=2),
            env_kwargs={"folder": str(tmp_path), "often": 100},
            callbacks=[recorder],
        )
    notes = "\n".join(caught.value.__notes__)
    assert "raised in step by environment 0 of the 3 of its actor" in notes
    assert "failed 3 times in a row; max_failures=2 were allowed" in notes
    assert recorder.ended is not None
    assert recorder.ended.stop is Stop.FAILED


@pytest.mark.parametrize("inference", ["actors", "learner"])
def test_an_environment_that_raises_and_cannot_be_closed_ends_the_run_with_its_first_error(
    tmp_path: Path, inference: str
) -> None:
    class Locked(Failing):
        def close(self) -> None:
            raise OSError("the door is locked")

    with pytest.raises(LookupError, match="lost its map"):
        train_actor_learner(
            Actor(),
            Actor,
            Locked,
            settings(inference=inference, max_failures=0),
            env_kwargs={"folder": str(tmp_path), "often": 100},
        )


@pytest.mark.slow
@pytest.mark.parametrize("inference", ["actors", "learner"])
def test_an_actor_that_dies_is_replaced_and_the_run_goes_on(tmp_path: Path, inference: str) -> None:
    recorder = Recorder()
    with SubprocessActors(2) as actors:
        ended = train_actor_learner(
            Actor(),
            Actor,
            Ending,
            settings(inference=inference, deterministic=True),  # which waits for everybody
            actors=actors,
            env_kwargs={"folder": str(tmp_path), "often": 1},
            callbacks=[recorder],
        )
    assert ended.step == 48
    assert recorder.updates[-1].metrics["actors/lost"] == 1


def test_another_actor_that_is_lost_while_it_is_made_counts_as_well(tmp_path: Path) -> None:
    class Disconnected(Failing):
        def fail(self) -> None:
            raise LostActor("the connection closed")

    class LostHost(LostActor):
        from_outside = True

    class Unlucky(InProcessActors):
        def __init__(self, lost: int, hosts: int) -> None:
            super().__init__()
            self._calls, self._lost, self._hosts = 0, lost, hosts

        def create(self, cls: type[object], /, *args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            if 2 < self._calls <= 2 + self._lost:  # after the two that the run begins with
                raise LostActor("its process ended in the constructor")
            if 2 < self._calls <= 2 + self._lost + self._hosts:
                raise LostHost("its node was lost")
            return super().create(cls, *args, **kwargs)

    def run(lost: int, hosts: int = 0) -> float:
        recorder = Recorder()
        train_actor_learner(
            Actor(),
            Actor,
            Disconnected,
            settings(max_failures=2, deterministic=True),
            actors=Unlucky(lost, hosts),
            env_kwargs={"folder": str(tmp_path), "often": 1},
            callbacks=[recorder],
        )
        return recorder.updates[-1].metrics["actors/lost"]

    assert run(1) == 2
    (tmp_path / "0").unlink()
    assert run(1, 20) == 22
    (tmp_path / "0").unlink()
    with pytest.raises(LostHost) as outside:
        run(0, 21)
    assert "failed 21 times in a row; max_failures=2 were allowed, or 20 losses of hosts" in outside.value.__notes__[-1]
    (tmp_path / "0").unlink()
    with pytest.raises(LostActor, match="ended in the constructor") as caught:
        run(2)
    assert "failed 3 times in a row; max_failures=2 were allowed" in caught.value.__notes__[-1]


@pytest.mark.slow
def test_an_environment_that_hangs_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    with (
        SubprocessActors(2) as actors,
        pytest.raises(LostActor, match=r"within timeout_s=3.0 seconds.*hangs") as caught,
    ):
        train_actor_learner(
            Actor(),
            Actor,
            Hanging,
            settings(timeout_s=3.0, max_failures=0, deterministic=True),
            actors=actors,
            env_kwargs={"folder": str(tmp_path), "often": 1},
        )
    assert "max_failures=0 were allowed" in caught.value.__notes__[-1]


def test_a_reward_that_is_no_number_ends_the_run_and_names_its_environment() -> None:
    class Spoiled(Counting):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, reward, *rest = super().step(action)
            return obs, math.nan if obs[0] == 2 else reward, *rest  # type: ignore[return-value]

    agent = Actor()
    with pytest.raises(
        DivergedError, match=r"environment 0 of group 0 gave the reward nan at step 1 of its fragment 0"
    ):
        train_actor_learner(agent, Actor, Spoiled, settings())
    assert not agent.batches


class Masked(Counting):
    """Allows no action after some steps."""

    observation_space = gymnasium.spaces.Dict(
        observation=Counting.observation_space, action_mask=gymnasium.spaces.MultiBinary(2)
    )

    def reset(self, **options: Any) -> Any:
        return self._seen(super().reset(**options)[0]), {}

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return self._seen(obs), *rest

    def _seen(self, obs: Any) -> dict[str, Any]:
        return {"observation": obs, "action_mask": np.full(2, self._count != self._ends, np.int8)}


class ActorOfMasked(Actor):
    def logits(self, obs: Any) -> Any:
        return super().logits(obs["observation"])


class Stuck(Masked):
    """Goes on where no action is possible."""

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, False, truncated, info


@pytest.mark.parametrize("inference", ["actors", "learner"])
@pytest.mark.parametrize(("steps", "when"), [(0, "after a reset"), (2, "after the step just taken")])
def test_a_mask_that_leaves_no_action_ends_the_run_and_names_its_environment(
    steps: int, when: str, inference: str
) -> None:
    message = f"environment 0 observed an action_mask that leaves no action {when}"
    with pytest.raises(EnvironmentContractError, match=message):
        learned(lambda: Stuck(ends=steps), ActorOfMasked(), inference=inference)


def test_an_environment_without_an_action_is_numbered_among_all_of_the_run() -> None:
    ends = iter([5, 5, 1])
    actor = GroupActor(lambda: Stuck(ends=next(ends)), {}, lives={1: 0}, size=3, seed=0)
    actor.begin(1)
    with pytest.raises(EnvironmentContractError, match="environment 5 observed an action_mask that leaves no action"):
        actor.step(1, [0, 0, 0])


def test_the_last_observation_of_an_episode_that_terminated_may_leave_no_action() -> None:
    assert learned(lambda: Masked(ends=2), ActorOfMasked())


def test_an_infinite_observation_ends_the_run_and_names_its_environment() -> None:
    class Spoiled(Counting):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, *rest = super().step(action)
            return np.where(obs == 2, np.float32(math.inf), obs), *rest  # type: ignore[return-value]

    agent = Unread(1.0)
    with pytest.raises(
        DivergedError, match=r"environment 0 of group 0 observed inf in obs\[0\] before step 2 of its fragment 0"
    ):
        train_actor_learner(agent, Unread, Spoiled, settings())
    assert not agent.learned


@pytest.mark.parametrize(
    ("limit", "bad", "where"), [(3, 3, "after step 2 of its fragment 0"), (1000, 4, "after step 3 of its fragment 0")]
)
def test_an_observation_that_is_only_bootstrapped_from_is_looked_at_like_the_others(
    limit: int, bad: int, where: str
) -> None:
    class Spoiled(Counting):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, *rest = super().step(action)
            return np.where(obs == bad, np.float32(math.nan), obs), *rest  # type: ignore[return-value]

    agent = Unread(1.0)
    with pytest.raises(DivergedError, match=rf"environment 0 of group 0 observed nan in obs\[0\] {where}"):
        train_actor_learner(agent, Unread, lambda: Spoiled(cut=limit), settings(n_steps=4))
    assert not agent.learned


class Unread(Actor):
    """Learns whole batches without reading what comes of them, and notes after how many updates it was read."""

    takes_batches = True

    def __init__(self, *losses: float) -> None:
        super().__init__()
        self.learned, self.reads = 0, list[int]()
        self._losses = losses

    def logits(self, obs: Any) -> Any:
        return np.zeros((len(obs), 2), np.float32)

    def learn_unread(self, batch: Any, **_: Any) -> int:
        self.learned += len(batch) > 0
        return self.learned - 1

    def read(self, result: int) -> Any:
        self.reads.append(self.learned)
        loss = self._losses[result % len(self._losses)]
        check_finite("update", {"loss": loss})
        return VTraceLoss(loss, 0.0), 0.0


ALONE: dict[str, Any] = {"n_actors": 1, "envs_per_group": 2, "max_lag": 0}  # 8 steps an update


def test_losses_are_read_for_reports_and_after_a_hundred_updates() -> None:
    agent, recorder = Unread(1.0, 3.0), Recorder()
    chosen = settings(**ALONE, total_steps=8 * 250, report_every=8 * 150)
    train_actor_learner(agent, Unread, Random, chosen, callbacks=[recorder], seed=0)
    assert agent.reads == [100] * 100 + [150] * 50 + [250] * 100
    assert [update.losses["total_loss"] for update in recorder.updates] == [2.0, 2.0]


def test_a_spoiled_agent_is_not_evaluated() -> None:
    agent, evaluated = Unread(1.0, 1.0, math.nan), list[int]()

    def evaluator() -> Evaluation:
        evaluated.append(agent.learned)
        return Evaluation([], 0, 0.0)

    chosen = settings(**ALONE, total_steps=8 * 40, report_every=8 * 40)
    with pytest.raises(DivergedError):
        train_actor_learner(agent, Unread, Random, chosen, evaluator=evaluator, evaluate_every=8 * 10, seed=0)
    assert agent.learned == 10
    assert not evaluated


def test_a_function_that_makes_environments_may_have_an_argument_of_any_name() -> None:
    def make(env: int) -> Counting:
        return Counting(cut=env)

    agent = Actor()
    train_actor_learner(agent, Actor, make, settings(total_steps=24, max_lag=0), env_kwargs={"env": 3}, seed=3)
    np.testing.assert_array_equal(agent.batches[0]["final_rows"], np.arange(6) * 4 + 2)


def test_environments_are_closed_at_the_end_and_after_an_error() -> None:
    closed: list[str] = []

    class Watched(Counting):
        def close(self) -> None:
            closed.append("closed")

    learned(Watched)
    assert len(closed) == 6
    with pytest.raises(ZeroDivisionError):
        learned(Watched, rates={"learning_rate": lambda _: 1 // 0})
    assert len(closed) == 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": 3}, "3 groups cannot be shared evenly by 2 actors"),
        ({"max_lag": 0, "batch_fragments": 1}, "max_lag=0 makes rounds, so batch_fragments must be a multiple"),
        ({"max_lag": -1}, "max_lag must be at least 0"),
        ({"inference": "nowhere"}, "inference must be 'actors' or 'learner', got 'nowhere'"),
        ({"timeout_s": 0.0}, "timeout_s must be above 0"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"minibatch_size": 64}, "learns once from each batch: leave out epochs and minibatch_size"),
        ({"n_steps": 5}, "sample_batch_steps=4 steps, the loop makes some of n_steps=5"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(HyperparameterError, match=message):
        learned(**changes)


def test_agents_of_other_kinds_are_refused() -> None:
    with pytest.raises(
        TypeError, match="actors and a learner need an agent with IMPALA, A2C, A3C or PPO; object learns"
    ):
        train_actor_learner(object(), object, Counting, settings())


def test_actors_that_choose_their_actions_need_an_agent() -> None:
    with pytest.raises(HyperparameterError, match="need make_agent"):
        train_actor_learner(Actor(), None, Counting, settings())


def test_a_callback_can_stop_it() -> None:
    class StopAtOnce(Callback):
        def on_update(self, update: Update) -> str:
            return f"seen {update.step} steps"

    ended = train_actor_learner(Actor(), Actor, Counting, settings(), callbacks=[StopAtOnce()])
    assert (ended.stop, ended.reason) == (Stop.CALLBACK, "seen 24 steps")
