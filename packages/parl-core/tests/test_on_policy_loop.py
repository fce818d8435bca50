"""The on-policy loop, with an agent whose numbers can be followed by hand."""

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

from parl_core.contracts.batches import RolloutBatch
from parl_core.env.normalize import NormalizeVector
from parl_core.env.vector import make_vector_env
from parl_core.errors import DivergedError, EnvironmentContractError, HyperparameterError, ModelContractError
from parl_core.schedules import constant, linear, piecewise
from parl_core.training import (
    Callback,
    Ended,
    Episode,
    Evaluation,
    OnPolicySettings,
    Stop,
    Update,
    train_on_policy,
)
from parl_core.training.callbacks import ConfirmedReturn, KeepBest
from parl_core.training.on_policy import RolloutCollector


class Counting(gymnasium.Env[Any, Any]):
    """Observes how many steps its episode has taken; the reward is 1; ends or is cut after some steps."""

    observation_space: Any = gymnasium.spaces.Box(0.0, 1000.0, (1,), np.float32)
    action_space: Any = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, ends: int = 1000, cut: int = 1000) -> None:
        self._ends, self._cut, self._count = ends, cut, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert abs(float(action[0])) <= 1.0, "the loop must clip what a Gaussian draws"
        self._count += 1
        return np.full(1, self._count, np.float32), 1.0, self._count == self._ends, self._count == self._cut, {}


class TenTimesTheCount:
    """Values an observation at ten times its count; draws an action outside of the box; learns nothing."""

    def __init__(self, losses: list[float] | None = None) -> None:
        self.batches: list[RolloutBatch] = []
        self.given: list[dict[str, Any]] = []
        self.weights: dict[str, float] = {"updates": 0.0}
        self.saved: dict[Path, float] = {}
        self._losses = losses or []

    def value(self, obs: Any) -> Any:
        return 10.0 * obs[:, 0]

    def explore(self, obs: Any) -> Any:
        return self.value(obs), np.full((len(obs), 1), 3.0, np.float32), np.full(len(obs), -1.0)

    def learn_rollout(self, batch: RolloutBatch, **given: Any) -> dict[str, float]:
        self.batches.append(batch)
        self.given.append(given)
        self.weights = {"updates": self.weights["updates"] + 1.0}
        return {"policy_loss": self._losses.pop(0) if self._losses else 0.0}

    def get_weights(self) -> dict[str, float]:
        return dict(self.weights)

    def set_weights(self, weights: dict[str, float]) -> None:
        self.weights = dict(weights)

    def save(self, path: Path) -> None:
        self.saved[path] = self.weights["updates"]

    def restore(self, path: Path) -> None:
        self.weights = {"updates": self.saved[path]}


class Recorder(Callback):
    def __init__(self) -> None:
        self.events: list[Update | Evaluation | Ended] = []

    def on_update(self, update: Update) -> None:
        self.events.append(update)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.events.append(evaluation)

    def on_end(self, ended: Ended) -> None:
        self.events.append(ended)


def settings(**changes: Any) -> OnPolicySettings:
    return OnPolicySettings(**{"total_steps": 3, "n_steps": 3, "gamma": 0.5, "gae_lambda": 1.0, **changes})


def learned_from(env_kwargs: dict[str, int], **others: Any) -> RolloutBatch:
    agent = TenTimesTheCount()
    train_on_policy(agent, make_vector_env(Counting, 1, env_kwargs=env_kwargs), settings(**others))
    return agent.batches[0]


def test_a_truncated_episode_bootstraps_from_its_last_observation() -> None:
    # Observations 0 1 | 0, values 0 10 | 0; the cut step led to observation 2, worth 20, the last one to 1, worth 10.
    # A_2 = 1 + 0.5*10 - 0 = 6; A_1 = 1 + 0.5*20 - 10 = 1; A_0 = 1 + 0.5*10 - 0 + 0.5*A_1 = 6.5
    batch = learned_from({"cut": 2})
    np.testing.assert_allclose(batch.obs[:, 0], [0.0, 1.0, 0.0])
    np.testing.assert_allclose(batch.advantage, [6.5, 1.0, 6.0])
    np.testing.assert_allclose(batch.return_, [6.5, 11.0, 6.0])


def test_a_terminated_episode_does_not_bootstrap() -> None:
    # As above, but A_1 = 1 - 10 = -9 and A_0 = 6 + 0.5*A_1 = 1.5
    batch = learned_from({"ends": 2})
    np.testing.assert_allclose(batch.advantage, [1.5, -9.0, 6.0])


def test_a_truncated_episode_has_ended_where_the_limit_is_part_of_the_task() -> None:
    np.testing.assert_allclose(learned_from({"cut": 2}, bootstrap_truncated=False).advantage, [1.5, -9.0, 6.0])


def test_an_episode_that_ends_and_is_cut_in_the_same_step_has_ended() -> None:
    np.testing.assert_allclose(learned_from({"ends": 2, "cut": 2}).advantage, [1.5, -9.0, 6.0])


def test_observations_without_numbers_are_learned_from() -> None:
    class Blind(Counting):
        observation_space = gymnasium.spaces.Box(0.0, 1.0, (0,), np.float32)

        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            return super().reset(**options)[0][1:], {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return np.zeros(0, np.float32), *super().step(action)[1:]

    class Guessing(TenTimesTheCount):
        def value(self, obs: Any) -> Any:
            return np.zeros(len(obs))

    agent = Guessing()
    with make_vector_env(Blind, 2) as envs:
        train_on_policy(agent, envs, settings(total_steps=8, n_steps=4))
    assert agent.batches[0].obs.shape == (8, 0)


class Masked(Counting):
    """Observes a dictionary, with a mask that leaves no action after some steps."""

    observation_space = gymnasium.spaces.Dict(
        {"count": Counting.observation_space, "action_mask": gymnasium.spaces.MultiBinary(2)}
    )
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, stuck: int) -> None:
        super().__init__()
        self._stuck = stuck

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._masked(super().reset(seed=seed)[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, *others = super().step([action])
        return self._masked(obs), *others  # type: ignore[return-value]  # the four that the base returns

    def _masked(self, obs: Any) -> dict[str, Any]:
        return {"count": obs, "action_mask": np.full(2, obs[0] < self._stuck, np.int8)}


class FirstChoice(TenTimesTheCount):
    """Chooses 0 from observations in parts."""

    def value(self, obs: Any) -> Any:
        return super().value(obs["count"])

    def explore(self, obs: Any) -> Any:
        return self.value(obs), np.zeros(len(obs["count"]), np.int64), np.full(len(obs["count"]), -1.0)


@pytest.mark.parametrize(("stuck", "when"), [(0, "a reset"), (2, "the step just taken")])
def test_an_observation_without_a_possible_action_is_named(stuck: int, when: str) -> None:
    envs = make_vector_env(Masked, 2, env_kwargs={"stuck": stuck})
    with pytest.raises(EnvironmentContractError, match=f"environment 0 .* leaves no action after {when}"):
        train_on_policy(FirstChoice(), envs, settings())


def test_a_rollout_goes_on_where_the_one_before_stopped() -> None:
    collector = RolloutCollector(TenTimesTheCount(), make_vector_env(Counting, 2, env_kwargs={"ends": 5}), 4, seed=0)
    first, second = collector.collect(), collector.collect()
    np.testing.assert_array_equal(first.obs[:, 1, 0], [0, 1, 2, 3])
    np.testing.assert_array_equal(second.obs[:, 1, 0], [4, 0, 1, 2])
    assert first.episodes == ()
    assert second.episodes == (Episode(5.0, 5), Episode(5.0, 5))


def test_returns_are_those_of_the_environment_where_a_wrapper_scales_what_is_learned_from() -> None:
    envs = NormalizeVector(make_vector_env(Counting, 2, env_kwargs={"ends": 5}), obs=False)
    rollout = RolloutCollector(TenTimesTheCount(), envs, 5, seed=0).collect()
    assert rollout.episodes == (Episode(5.0, 5), Episode(5.0, 5))
    assert not np.allclose(rollout.reward, 1.0)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_gymnasiums_own_vector_gives_the_same_rollout_whichever_way_it_resets(mode: AutoresetMode) -> None:
    def make() -> Counting:
        return Counting(cut=3)

    theirs = SyncVectorEnv([make, make], autoreset_mode=mode)
    expected = RolloutCollector(TenTimesTheCount(), make_vector_env(make, 2), 7, seed=0).collect()
    found = RolloutCollector(TenTimesTheCount(), theirs, 7, seed=0).collect()
    np.testing.assert_equal(vars(found), vars(expected))
    assert len(found.episodes) == 4


class WholeNumbers(VectorWrapper):
    """Gives flags as 0 and 1."""

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        return obs, reward, terminated.astype(np.int8), truncated.astype(np.int8), infos


def test_ends_may_be_0_and_1() -> None:
    expected, found = (
        RolloutCollector(TenTimesTheCount(), wrap(make_vector_env(lambda: Counting(cut=3), 3)), 7, seed=0).collect()
        for wrap in (lambda envs: envs, WholeNumbers)
    )
    np.testing.assert_equal(vars(found), vars(expected))


def test_environments_that_do_not_say_when_they_reset_are_refused() -> None:
    envs = SyncVectorEnv([Counting])
    envs.metadata = {}
    with pytest.raises(HyperparameterError, match="does not say when it resets"):
        RolloutCollector(TenTimesTheCount(), envs, 4)


def test_observations_that_are_no_arrays_are_refused_with_the_wrapper_that_helps() -> None:
    envs = make_vector_env(Counting, 1)
    envs.single_observation_space = gymnasium.spaces.Dict(said=gymnasium.spaces.Text(3))
    with pytest.raises(HyperparameterError, match="FlattenObservation"):
        RolloutCollector(TenTimesTheCount(), envs, 4)


def test_actions_are_learned_as_they_were_drawn_although_the_environment_gets_them_clipped() -> None:
    np.testing.assert_array_equal(learned_from({}).action, [[3.0], [3.0], [3.0]])


def test_learning_rate_and_clip_range_decay_linearly_only_when_asked_to() -> None:
    for decay, factors in ((True, [1.0, 2 / 3, 1 / 3]), (False, [1.0, 1.0, 1.0])):
        agent = TenTimesTheCount()
        train_on_policy(agent, make_vector_env(Counting, 1), settings(total_steps=9, lr=0.3, clip=0.6, decay=decay))
        np.testing.assert_allclose([given["lr"] for given in agent.given], 0.3 * np.array(factors))
        np.testing.assert_allclose([given["clip"] for given in agent.given], 0.6 * np.array(factors))


def test_a_schedule_is_followed_as_it_is_while_the_other_number_decays() -> None:
    now = settings(total_steps=8, lr=lambda step: 0.5 - step / 16, clip=0.2, decay=True)
    assert [now.scheduled(step) for step in (0, 4)] == [{"lr": 0.5, "clip": 0.2}, {"lr": 0.25, "clip": 0.1}]
    with pytest.raises(HyperparameterError, match="got lr=None"):
        settings(clip=0.2, decay=True)


def test_callbacks_receive_every_update_and_evaluation_and_the_end_once() -> None:
    recorder = Recorder()
    ticks = iter(range(100))
    ended = train_on_policy(
        TenTimesTheCount(),
        make_vector_env(Counting, 2, env_kwargs={"cut": 4}),
        settings(total_steps=20, n_steps=2),
        evaluator=lambda: Evaluation([Episode(7.0, 7)]),
        evaluate_every=8,
        callbacks=[recorder],
        clock=lambda: float(next(ticks)),
    )
    kinds = [type(event).__name__ for event in recorder.events]
    assert kinds == ["Update", "Update", "Evaluation", "Update", "Update", "Evaluation", "Update", "Ended"]
    assert [event.step for event in recorder.events] == [4, 8, 8, 12, 16, 16, 20, 20]
    assert recorder.events[-1] is ended
    assert ended.stop is Stop.BUDGET
    assert [evaluation.step for evaluation in ended.evaluations] == [8, 16]
    second = recorder.events[1]
    assert isinstance(second, Update)
    assert list(second.episodes) == [Episode(4.0, 4)] * 2


def test_two_confirmed_evaluations_stop_the_loop_and_the_best_weights_come_back() -> None:
    means = iter([480.0, 300.0, 490.0, 480.0, 500.0])
    agent = TenTimesTheCount()
    ended = train_on_policy(
        agent,
        make_vector_env(Counting, 1),
        settings(total_steps=300),
        evaluator=lambda: Evaluation([Episode(next(means), 1)]),
        evaluate_every=3,
        callbacks=[KeepBest(agent), ConfirmedReturn(475.0, times=2)],
    )
    assert ended.stop is Stop.CALLBACK
    assert ended.step == 12
    assert "475: 490.0, 480.0" in ended.reason
    assert agent.weights["updates"] == 3.0


def test_a_loss_that_is_not_finite_stops_the_loop_with_a_message_and_ends_the_callbacks() -> None:
    recorder = Recorder()
    agent = TenTimesTheCount(losses=[0.5, math.nan])
    with pytest.raises(DivergedError, match="policy_loss is nan"):
        train_on_policy(agent, make_vector_env(Counting, 1), settings(total_steps=30), callbacks=[recorder])
    *_, last_update, ended = recorder.events
    assert isinstance(last_update, Update)
    assert last_update.step == 3
    assert isinstance(ended, Ended)
    assert ended.stop is Stop.FAILED
    assert "DivergedError" in ended.reason


def test_a_reward_that_is_not_finite_ends_the_loop_before_anything_is_learned_from_it() -> None:
    class Exploding(Counting):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, _, *rest = super().step(action)
            return observation, math.inf if self._count == 5 else 1.0, *rest

    agent = TenTimesTheCount()
    with pytest.raises(DivergedError, match=r"environment 0 gave the reward inf at step 1 .*clip or repair"):
        train_on_policy(agent, make_vector_env(Exploding, 1), settings(total_steps=30))
    assert len(agent.batches) == 1


def test_an_observation_that_is_not_finite_ends_the_loop_and_says_where_it_was() -> None:
    class Blurred(Counting):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, *rest = super().step(action)
            return observation + (np.nan if self._count == 5 else 0.0), *rest

    agent = TenTimesTheCount()
    with pytest.raises(DivergedError, match=r"environment 0 observed nan in obs\[0\] .*repair observations"):
        train_on_policy(agent, make_vector_env(Blurred, 1), settings(total_steps=30))
    assert len(agent.batches) == 1


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_the_last_observation_of_a_truncated_episode_is_looked_at_like_the_others(number: float) -> None:
    class Blurred(Counting):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, reward, *_ = super().step(action)
            is_last = self._count == 3
            return np.where(is_last, np.float32(number), observation), reward, False, is_last, {}

    agent, kinds = TenTimesTheCount(), iter([Counting, Blurred])
    with pytest.raises(DivergedError, match=rf"environment 1 observed {number} in obs\[0\] at the end of an episode"):
        train_on_policy(agent, make_vector_env(lambda: next(kinds)(), 2), settings(total_steps=30))
    assert not agent.batches


@pytest.mark.parametrize("size", [1, 4])
def test_a_model_needs_one_value_for_each_observation_and_a_single_one_is_not_repeated(size: int) -> None:
    class OneForAll(TenTimesTheCount):
        def value(self, obs: Any) -> Any:
            return np.ones(size, np.float32)

    with pytest.raises(ModelContractError, match=rf"gave values \[{size}\] for observations of \[2\]: .*value\(obs\)"):
        RolloutCollector(OneForAll(), make_vector_env(Counting, 2), 3).collect()


def test_an_interruption_is_raised_after_the_callbacks_ended() -> None:
    class Interrupting(Callback):
        def on_update(self, update: Update) -> None:
            raise KeyboardInterrupt

    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        train_on_policy(
            TenTimesTheCount(), make_vector_env(Counting, 1), settings(), callbacks=[Interrupting(), recorder]
        )
    (ended,) = recorder.events
    assert isinstance(ended, Ended)
    assert ended.stop is Stop.INTERRUPTED


class FailingAtTheEnd(Callback):
    def on_end(self, ended: Ended) -> None:
        raise OSError("disk full")


def test_a_callback_that_fails_at_the_end_does_not_stop_the_others() -> None:
    recorder = Recorder()
    with pytest.raises(OSError, match="disk full"):
        train_on_policy(
            TenTimesTheCount(), make_vector_env(Counting, 1), settings(), callbacks=[FailingAtTheEnd(), recorder]
        )
    assert isinstance(recorder.events[-1], Ended)


def test_a_callback_that_fails_at_the_end_does_not_hide_the_error_that_ended_the_loop() -> None:
    with pytest.raises(DivergedError):
        train_on_policy(
            TenTimesTheCount(losses=[math.nan]),
            make_vector_env(Counting, 1),
            settings(),
            callbacks=[FailingAtTheEnd()],
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_steps": 0}, "n_steps"),
        ({"gamma": 1.5}, "gamma"),
        ({"lr": 0.0}, "lr"),
        ({"entropy_coef": -0.1}, "entropy_coef"),
        ({"lr": linear(1e-3, -1e-3, 100)}, r"lr of linear\(0.001, -0.001, 100\) must be at least 0, got -0.001"),
        ({"clip": constant(-0.1)}, r"clip of constant\(-0.1\) must be at least 0"),
        ({"entropy_coef": piecewise([(0, 0.1), (5, -0.1)])}, "entropy_coef of piecewise.* must be at least 0"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(HyperparameterError, match=message):
        settings(**change)
