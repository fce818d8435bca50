"""The off-policy loop, with agents whose numbers can be followed by hand."""

import logging
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parl_core.env.normalize import NormalizeVector, wrap_rms
from parl_core.env.vector import make_vector_env
from parl_core.errors import DivergedError, EnvironmentContractError, HyperparameterError
from parl_core.replay import FrameReplayMemory, Prioritized, ReplayMemory
from parl_core.schedules import linear, piecewise
from parl_core.stats import RunningMeanStd
from parl_core.training import (
    Callback,
    ConfirmedReturn,
    Episode,
    Evaluation,
    NoImprovement,
    OffPolicySettings,
    StepBudget,
    Stop,
    TimeBudget,
    Update,
    evaluate,
    train_off_policy,
)
from parl_core.training.off_policy import TransitionCollector, make_memory, random_actions

GAMMA = 0.5


class Counting(gymnasium.Env[Any, Any]):
    """Observes how many steps its episode has taken, or always 0; the reward is 1; ends or is cut after some steps."""

    action_space: Any = gymnasium.spaces.Discrete(2)
    observation_space: Any = gymnasium.spaces.Box(0.0, 1000.0, (1,), np.float64)

    def __init__(self, ends: int = 1000, cut: int = 1000, blind: bool = False) -> None:
        self._ends, self._cut, self._blind, self._count = ends, cut, blind, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not an action of {self.action_space}"
        self._count += 1
        seen = np.zeros(1) if self._blind else np.full(1, float(self._count))
        return seen, 1.0, self._count == self._ends, self._count == self._cut, {}


class Steering(Counting):
    """Its actions are two numbers with bounds of their own."""

    action_space = gymnasium.spaces.Box(np.array([-3.0, 0.0]), np.array([5.0, 10.0]), dtype=np.float64)


class InParts(Counting):
    """Observes a dictionary, with a mask that leaves only action 1."""

    observation_space = gymnasium.spaces.Dict(
        {"count": Counting.observation_space, "action_mask": gymnasium.spaces.MultiBinary(2)}
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._in_parts(super().reset(seed=seed)[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action == 1
        obs, *others = super().step(action)
        return self._in_parts(obs), *others  # type: ignore[return-value]  # the four that the base returns

    def _in_parts(self, obs: Any) -> dict[str, Any]:
        return {"count": obs, "action_mask": np.array([0, 1], np.int8)}


class Table:
    """Values of the observed counts, learned by repeated averaging; always takes action 1, or the middle of a box."""

    FIGURES = ("loss",)
    gamma = GAMMA
    training = True
    obs_ndim = None

    def __init__(self, middle: tuple[float, ...] = (), loss: float = 0.0) -> None:
        self.values = np.zeros(1000)
        self.batches: list[dict[str, Any]] = []
        self.explored: list[dict[str, float]] = []
        self._middle, self._loss = middle, loss
        self.ACTS_IN_UNIT_BOX = bool(middle)

    @property
    def alg(self) -> Any:
        return self

    def sample(self, obs: Any, **exploration: float) -> Any:
        self.explored.append(exploration)
        n = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        return np.tile(np.array(self._middle, np.float32), (n, 1)) if self._middle else np.ones(n, np.int64)

    predict = sample

    def train(self) -> None: ...

    def eval(self) -> None: ...

    def learn(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminal: Any, **given: Any) -> Any:
        self.batches.append({"obs": obs, "action": action.copy(), **given})
        if not isinstance(obs, dict):
            discount = self.gamma if given["discount"] is None else given["discount"]
            now, later = (seen.reshape(len(seen), -1)[:, -1].astype(int) for seen in (obs, next_obs))
            target = reward + discount * ~terminal * self.values[later]
            for count in np.unique(now):
                self.values[count] += 0.5 * (target[now == count].mean() - self.values[count])
        return self._loss if given["weights"] is None else (self._loss, np.arange(1.0, 1.0 + len(action)))


class Recorder(Callback):
    def __init__(self) -> None:
        self.updates: list[Update] = []

    def on_update(self, update: Update) -> None:
        self.updates.append(update)


def settings(**changes: Any) -> OffPolicySettings:
    given = {"total_steps": 60, "learning_starts": 20, "batch_size": 16, "memory_size": 100}
    return OffPolicySettings(**{**given, **changes})


def trained(env_kwargs: dict[str, Any], num_envs: int = 1, **changes: Any) -> Table:
    agent = Table()
    envs = make_vector_env(Counting, num_envs, env_kwargs=env_kwargs)
    train_off_policy(agent, envs, settings(total_steps=120, gradient_steps=3, **changes), seed=1)
    return agent


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_time_limit_does_not_lower_the_value(n_step: int, num_envs: int) -> None:
    # Every step gives 1 and leads to the same state, for ever: V = 1 / (1 - 0.5) = 2. Were the cut after two steps
    # taken for an end, half of all steps would lead to 0, and V = 1 + 0.5 * 0.5 * V = 4 / 3.
    found = trained({"cut": 2, "blind": True}, num_envs, n_step=n_step).values[0]
    assert found == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_an_end_does(n_step: int, num_envs: int) -> None:
    # V(1) = 1 and V(0) = 1 + 0.5 * 1.
    values = trained({"ends": 2}, num_envs, n_step=n_step).values
    assert values[:3].tolist() == pytest.approx([1.5, 1.0, 0.0], abs=1e-3)


def test_an_episode_that_ends_and_is_cut_in_the_same_step_has_ended() -> None:
    assert trained({"ends": 2, "cut": 2}).values[1] == pytest.approx(1.0, abs=1e-3)


def test_what_is_remembered_is_what_the_steps_led_to() -> None:
    memory = ReplayMemory(100, 1, 0, n_envs=2)
    envs = make_vector_env(Counting, 2, env_kwargs={"cut": 2})
    train_off_policy(Table(), envs, settings(total_steps=8, learning_starts=100), memory=memory)
    assert memory.size() == 8
    assert memory.obs[:8, 0].tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert memory.next_obs[:8, 0].tolist() == [1, 1, 2, 2, 1, 1, 2, 2]
    assert memory.truncated[:8].tolist() == [False, False, True, True] * 2
    assert not memory.terminal[:8].any()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vectors_of_gymnasium_give_the_same_whenever_they_reset(mode: AutoresetMode) -> None:
    memory = ReplayMemory(100, 1, 0, n_envs=2)
    theirs = SyncVectorEnv([lambda: Counting(cut=3)] * 2, autoreset_mode=mode)
    train_off_policy(Table(), theirs, settings(total_steps=14, learning_starts=100), memory=memory)
    assert memory.obs[:14:2, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert memory.next_obs[:14:2, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]


def test_actions_are_random_until_learning_starts() -> None:
    memory, agent = ReplayMemory(400, 1, 0), Table()
    envs = make_vector_env(Counting, 1)
    train_off_policy(agent, envs, settings(total_steps=300, learning_starts=200, memory_size=400), memory=memory)
    assert len(agent.explored) == 100
    assert len(agent.batches) == 101
    assert 60 < memory.action[:200].sum() < 140
    assert memory.action[200:300].all()


@pytest.mark.parametrize(
    ("num_envs", "train_every", "gradient_steps", "updates"),
    [(1, 1, 1, 41), (1, 4, 1, 11), (1, 4, 8, 88), (4, 1, 1, 44), (4, 8, 2, 10), (6, 4, 1, 11)],
)
def test_updates_a_step_do_not_depend_on_the_number_of_environments(
    num_envs: int, train_every: int, gradient_steps: int, updates: int
) -> None:
    agent = Table()
    envs = make_vector_env(Counting, num_envs)
    # From step 20 (24 with six environments) to 60.
    loop = settings(train_every=train_every, gradient_steps=gradient_steps, memory_size=120)
    train_off_policy(agent, envs, loop)
    assert len(agent.batches) == updates


def test_prioritised_replay_gets_its_errors_back_and_beta_rises_to_one() -> None:
    class Watched(ReplayMemory):
        betas: list[float | None] = []  # noqa: RUF012 - of this test alone
        errors: list[Any] = []  # noqa: RUF012

        def sample(self, batch_size: int, *, beta: float | None = None) -> Any:
            self.betas.append(beta)
            return super().sample(batch_size, beta=beta)

        def update_priorities(self, index: Any, td_error: Any) -> None:
            self.errors.append((index, td_error))
            super().update_priorities(index, td_error)

    sampling = Prioritized(beta=0.4)
    memory = Watched(100, 1, 0, sampling=sampling)
    agent = Table()
    train_off_policy(agent, make_vector_env(Counting, 1), settings(prioritized=sampling), memory=memory, seed=0)
    assert memory.betas[0] == pytest.approx(0.4 + 0.6 * 20 / 60)
    assert memory.betas[-1] == 1.0
    assert len(memory.errors) == len(agent.batches) == 41
    assert all(error.tolist() == list(range(1, 17)) for _, error in memory.errors)
    assert all((batch["weights"] <= 1.0).all() for batch in agent.batches)


def test_schedules_reach_the_agent_and_the_reports() -> None:
    agent, recorder = Table(), Recorder()
    loop = settings(
        exploration={"epsilon": linear(1.0, 0.0, 50), "noise": 0.1},
        rates={"learning_rate": linear(1.0, 0.0, 60)},
        report_every=25,
    )
    train_off_policy(agent, make_vector_env(Counting, 1, env_kwargs={"cut": 10}), loop, callbacks=[recorder])
    assert agent.explored[0] == {"epsilon": pytest.approx(1.0 - 20 / 50), "noise": 0.1}
    assert agent.batches[-1]["learning_rate"] == 0.0
    assert [update.step for update in recorder.updates] == [25, 50, 60]
    assert recorder.updates[0].schedules == pytest.approx(
        {"epsilon": 1 - 24 / 50, "noise": 0.1, "learning_rate": 1 - 25 / 60}
    )
    assert [len(update.episodes) for update in recorder.updates] == [2, 3, 1]
    assert recorder.updates[0].episodes[0] == Episode(10.0, 10)
    assert [update.losses for update in recorder.updates] == [{"loss": 0.0}] * 3


def test_actions_go_from_the_unit_box_to_the_bounds_and_are_remembered_as_chosen() -> None:
    memory, agent = ReplayMemory(100, 1, 2), Table(middle=(-1.0, 0.5))
    received: list[Any] = []

    class Listening(Steering):
        def step(self, action: Any) -> Any:
            received.append(np.array(action))
            return super().step(action)

    train_off_policy(agent, make_vector_env(Listening, 1), settings(), memory=memory, seed=2)
    np.testing.assert_allclose(memory.action[20:60], np.tile([-1.0, 0.5], (40, 1)))
    np.testing.assert_allclose(received[20:], np.tile([-3.0, 7.5], (40, 1)))
    assert np.abs(memory.action[:20]).max() <= 1.0
    assert memory.action[:20].std() > 0.3
    assert evaluate(agent, Steering, 2, env_kwargs={"cut": 5}).returns == [5.0, 5.0]


def test_observations_in_parts_are_remembered_and_masks_are_heeded() -> None:
    agent = Table()
    loop = settings(memory_size=64)
    train_off_policy(agent, make_vector_env(InParts, 2, env_kwargs={"cut": 4}), loop, seed=3)
    batch = agent.batches[-1]
    assert set(batch["obs"]) == {"count", "action_mask"}
    assert batch["obs"]["count"].shape == (16, 1)
    assert batch["obs"]["count"].dtype == np.float32
    assert set(batch["obs"]["count"][:, 0].tolist()) <= {0.0, 1.0, 2.0, 3.0}
    assert (batch["action"] == 1).all()


@pytest.mark.parametrize("num_envs", [1, 2])
def test_stacked_frames_are_remembered_once_and_come_back_whole(num_envs: int) -> None:
    def stacked() -> Any:
        return gymnasium.wrappers.FrameStackObservation(Counting(ends=7), 4)

    class Keeping(Table):
        def learn(self, obs: Any, *columns: Any, **given: Any) -> Any:
            return super().learn(obs.copy(), *columns, **given)  # the memory uses its batches again

    runs = []
    for kind in (FrameReplayMemory, ReplayMemory):
        memory: Any = kind(100, (4, 1), 0, obs_dtype=np.float32, n_envs=num_envs, seed=4)
        agent = Keeping()
        train_off_policy(agent, make_vector_env(stacked, num_envs), settings(), memory=memory, seed=4)
        runs.append(np.stack([batch["obs"] for batch in agent.batches]))
    assert runs[0].max() == 6.0  # the last count that is acted on
    np.testing.assert_array_equal(runs[0], runs[1])


class MaskInInfo(Counting):
    """Tells the possible actions as Gymnasium's Taxi does."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**options)[0], {"action_mask": np.array([0, 1], np.int8)}


class MaskByMethod(Counting):
    """Tells the possible actions as sb3-contrib asks for them."""

    def action_masks(self) -> list[bool]:
        return [False, True]


@pytest.mark.parametrize(
    ("env", "told"),
    [(MaskInInfo, r"info['action_mask']"), (MaskByMethod, "action_masks()"), (Counting, None), (InParts, None)],
)
def test_a_mask_that_is_not_looked_at_is_warned_of_once(
    env: Any, told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "parl"):
        train_off_policy(Table(), make_vector_env(env, 2, env_kwargs={"ends": 4}), settings(), seed=3)
    messages = [record.getMessage() for record in caplog.records if "possible actions" in record.getMessage()]
    assert len(messages) == (told is not None)
    for message in messages:
        assert f"in {told}, which is not looked at" in message
        assert "'action_mask': MultiBinary(choices)" in message


class WithoutAction(InParts):
    """Its last observation leaves no action."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        mask = obs["action_mask"] * (not (terminated or truncated))
        return {**obs, "action_mask": mask}, reward, terminated, truncated, info


def test_a_truncated_episode_without_a_possible_action_is_named_where_it_ends() -> None:
    envs = make_vector_env(WithoutAction, 2, env_kwargs={"cut": 4})
    wanted = "environment 0 observed an action_mask that leaves no action after the step just taken"
    with pytest.raises(EnvironmentContractError, match=wanted):
        train_off_policy(Table(), envs, settings(learning_starts=0), seed=3)


class WithoutBeginning(InParts):
    """Its observations after some resets leave no action."""

    def __init__(self, resets: int, **ends: Any) -> None:
        super().__init__(**ends)
        self._left = resets

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed)
        self._left -= 1
        return {**obs, "action_mask": obs["action_mask"] * (self._left >= 0)}, info


@pytest.mark.parametrize(("resets", "when"), [(0, "a reset"), (1, "the step just taken")])
def test_a_beginning_without_a_possible_action_is_named(resets: int, when: str) -> None:
    envs = make_vector_env(WithoutBeginning, 2, env_kwargs={"resets": resets, "ends": 4})
    with pytest.raises(EnvironmentContractError, match=f"environment 0 .* leaves no action after {when}"):
        train_off_policy(Table(), envs, settings(learning_starts=0), seed=3)


def test_a_terminated_episode_needs_no_possible_action() -> None:
    agent = Table()
    train_off_policy(agent, make_vector_env(WithoutAction, 2, env_kwargs={"ends": 4}), settings(), seed=3)
    assert len(agent.batches)


def test_the_same_seed_gives_the_same_batches() -> None:
    runs = []
    for _ in range(2):
        agent = Table()
        train_off_policy(agent, make_vector_env(Counting, 2, env_kwargs={"cut": 7}), settings(), seed=4)
        runs.append(np.stack([batch["action"] for batch in agent.batches]))
    np.testing.assert_array_equal(runs[0], runs[1])


def test_a_loss_that_is_not_finite_ends_the_loop() -> None:
    ends: list[Any] = []

    class Last(Callback):
        def on_end(self, ended: Any) -> None:
            ends.append(ended)

    with pytest.raises(DivergedError, match="loss is nan"):
        train_off_policy(
            Table(loss=float("nan")), make_vector_env(Counting, 1), settings(report_every=30), callbacks=[Last()]
        )
    assert ends[0].stop is Stop.FAILED
    assert ends[0].step == 30


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("total_steps", 0),
        ("train_every", 0),
        ("gradient_steps", -1),
        ("batch_size", 0),
        ("n_step", 0),
        ("learning_starts", -1),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(HyperparameterError, match=name):
        settings(**{name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"exploration": 0.1}, r'exploration is a dictionary such as \{"epsilon": 0.1\}, got 0.1'),
        ({"rates": 1e-3}, r'rates is a dictionary such as \{"learning_rate": 1e-3\}, got 0.001'),
        ({"exploration": {"noise": -1.0}}, "exploration's noise must be at least 0, got -1.0"),
        ({"exploration": {"noise": linear(1.0, -1.0, 100)}}, r"noise of linear\(1.0, -1.0, 100\) must be at least 0"),
        ({"exploration": {"epsilon": piecewise([(0, 1.0), (9, 1.5)])}}, r"epsilon of piecewise.* must lie in \[0, 1\]"),
        (
            {"rates": {"actor_lr": linear(1e-3, -1.0, 100)}},
            "the rate actor_lr of linear.* must be at least 0, got -1.0",
        ),
    ],
)
def test_exploration_and_rates_that_are_none_or_become_negative_are_refused_when_made(given: Any, message: str) -> None:
    with pytest.raises(HyperparameterError, match=message):
        settings(**given)


def test_exploration_and_rates_may_begin_and_end_with_0_and_be_functions_and_options_of_ones_own() -> None:
    given = {"exploration": {"noise": linear(0.0, 1.0, 10), "own": -1.0}, "rates": {"lr": lambda step: 0.0}}
    assert settings(**given).exploration == given["exploration"]


def test_a_memory_that_is_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(HyperparameterError, match="memory_size is 10, less than batch_size 16"):
        settings(memory_size=10)


def test_spaces_that_the_loop_does_not_know_are_refused() -> None:
    class Several(Counting):
        action_space = gymnasium.spaces.MultiDiscrete([2, 3])

    class Words(Counting):
        observation_space = gymnasium.spaces.Text(5)

    with pytest.raises(HyperparameterError, match=r"act in Discrete and Box spaces, got MultiDiscrete"):
        train_off_policy(Table(), SyncVectorEnv([Several], autoreset_mode=AutoresetMode.SAME_STEP), settings())
    with pytest.raises(HyperparameterError, match="FlattenObservation"):
        train_off_policy(Table(), SyncVectorEnv([Words], autoreset_mode=AutoresetMode.SAME_STEP), settings())
    with pytest.raises(HyperparameterError, match="finite bounds"):
        random_actions(gymnasium.spaces.Box(-np.inf, np.inf, (1,)), np.zeros((2, 1)), np.random.default_rng(0))


def test_episodes_are_handed_over_once() -> None:
    envs = make_vector_env(Counting, 1, env_kwargs={"ends": 2})
    collector = TransitionCollector(Table(), envs, ReplayMemory(8, 1, 0), np.random.default_rng(0))
    for _ in range(5):
        collector.collect(at_random=False, exploration={})
    assert collector.take_episodes() == (Episode(2.0, 2), Episode(2.0, 2))
    assert collector.take_episodes() == ()


def test_returns_are_those_of_the_environment_where_a_wrapper_scales_what_is_learned_from() -> None:
    envs = NormalizeVector(make_vector_env(Counting, 2, env_kwargs={"ends": 5}), obs=False)
    memory = ReplayMemory(16, 1, 0)
    collector = TransitionCollector(Table(), envs, memory, np.random.default_rng(0))
    for _ in range(5):
        collector.collect(at_random=False, exploration={})
    assert collector.take_episodes() == (Episode(5.0, 5), Episode(5.0, 5))


def test_a_memory_holds_what_the_environments_gave_and_batches_are_normalised_when_they_are_drawn() -> None:
    class Seen(Table):
        def __init__(self) -> None:
            super().__init__()
            self.drawn: list[tuple[Any, Any, Any]] = []

        def learn(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminal: Any, **given: Any) -> Any:
            self.drawn.append((obs, reward, next_obs))
            return 0.0

    agent = Seen()
    envs = NormalizeVector(make_vector_env(Counting, 2, env_kwargs={"ends": 9, "cut": 5}), gamma=GAMMA)
    memory = ReplayMemory(40, (1,), 0, n_envs=2)
    train_off_policy(agent, envs, settings(total_steps=40, learning_starts=40, gradient_steps=1), memory=memory)
    np.testing.assert_array_equal(memory.reward, 1.0)
    np.testing.assert_array_equal(memory.obs[::2, 0], np.tile(np.arange(5.0), 4))
    np.testing.assert_array_equal(memory.next_obs[::2, 0], np.tile(np.arange(1.0, 6.0), 4))  # last ones, not first ones
    obs, reward, next_obs = agent.drawn[-1]
    assert envs.ob_rms is not None
    np.testing.assert_allclose(reward, envs.normalize_reward(np.ones(len(reward))), rtol=1e-6)
    for seen in (obs, next_obs):
        counts = seen * np.sqrt(envs.ob_rms.var + envs.epsilon) + envs.ob_rms.mean
        np.testing.assert_allclose(counts, np.round(counts), atol=1e-5)


def test_parts_of_a_tuple_are_remembered_where_rewards_alone_are_scaled() -> None:
    class InTwo(Counting):
        observation_space = gymnasium.spaces.Tuple([Counting.observation_space, gymnasium.spaces.Discrete(9)])

        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            return (super().reset(**options)[0], 0), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            seen, *others = super().step(action)
            return (seen, self._count), *others  # type: ignore[return-value]  # the four that the base returns

    envs = NormalizeVector(make_vector_env(InTwo, 2, env_kwargs={"ends": 9, "cut": 5}), obs=False)
    wanted = settings(total_steps=40)
    memory = make_memory(Table(), envs, wanted, np.random.default_rng(0))
    train_off_policy(Table(), envs, wanted, memory=memory)
    np.testing.assert_array_equal(memory.reward[:40], 1.0)
    for part in ("0", "1"):
        np.testing.assert_array_equal(memory.obs[part][:40:2].reshape(-1), np.tile(np.arange(5), 4))
        np.testing.assert_array_equal(memory.next_obs[part][:40:2].reshape(-1), np.tile(np.arange(1, 6), 4))


@pytest.mark.parametrize("wrapper", ["NormalizeObservation", "NormalizeReward"])
def test_statistics_that_a_memory_cannot_take_out_again_are_refused(wrapper: str) -> None:
    envs = getattr(gymnasium.wrappers.vector, wrapper)(SyncVectorEnv([Counting]))
    with pytest.raises(
        HyperparameterError, match=rf"{wrapper} normalises by statistics .*use parl.env.NormalizeVector"
    ):
        train_off_policy(Table(), envs, settings())


def _with_wrap_rms() -> Any:
    return wrap_rms(Counting(), 0.99)


def _with_gymnasiums() -> Any:
    return gymnasium.wrappers.NormalizeReward(Counting())


def _with_frozen_statistics() -> Any:
    return wrap_rms(Counting(), None, test=True, ob_rms=RunningMeanStd((1,)))


@pytest.mark.parametrize(("make", "name"), [(_with_wrap_rms, "VecNormalizeEnv"), (_with_gymnasiums, "NormalizeReward")])
def test_statistics_inside_of_a_vector_are_refused(make: Any, name: str) -> None:
    told = rf"{name} inside the vector normalises by statistics .*use parl.env.NormalizeVector\(envs\)"
    with make_vector_env(make, 2) as envs, pytest.raises(HyperparameterError, match=told):
        train_off_policy(Table(), envs, settings())


def test_statistics_that_do_not_change_any_more_may_be_inside_of_a_vector() -> None:
    with make_vector_env(_with_frozen_statistics, 1) as envs:
        assert train_off_policy(Table(), envs, settings()).step > 0


def test_what_changes_observations_around_the_statistics_is_refused() -> None:
    envs = NormalizeVector(make_vector_env(Counting, 1))
    doubled = gymnasium.wrappers.vector.TransformReward(envs, lambda reward: 2.0 * reward)
    with pytest.raises(HyperparameterError, match=r"is around NormalizeVector.*put it inside"):
        train_off_policy(Table(), doubled, settings())


class OutOfOrder(Counting):
    """Its third step observes or gives what is not finite."""

    def __init__(self, obs: float = 0.0, reward: float = 0.0) -> None:
        super().__init__()
        self._spoiled = obs, reward

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, *others = super().step(action)
        obs, spoiled = self._spoiled if self._count == 3 else (0.0, 0.0)
        return seen + obs, reward + spoiled, *others  # type: ignore[return-value]  # the three that the base returns


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"obs": float("nan")}, r"environment 0 observed nan in obs\[0\] .*repair observations"),
        ({"reward": float("inf")}, "environment 0 gave the reward inf .*clip or repair rewards"),
        ({"reward": 1e39}, r"environment 0 gave the reward 1e\+39 .*clip or repair rewards"),
    ],
)
def test_what_is_not_finite_is_not_remembered(wrong: dict[str, float], message: str) -> None:
    agent = Table()
    with make_vector_env(lambda: OutOfOrder(**wrong), 1) as envs:
        memory = ReplayMemory(10, (1,), 0, n_envs=1)
        with pytest.raises(DivergedError, match=message):
            train_off_policy(agent, envs, settings(), memory=memory)
        assert len(memory) == 2


class BlindAtFirst(Counting):
    """Observes what is not finite at the beginning of an episode."""

    def __init__(self, episode: int) -> None:
        super().__init__(ends=2)
        self._left = episode

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self._left -= 1
        seen, info = super().reset(**options)
        return (seen if self._left else seen + np.inf), info


@pytest.mark.parametrize(
    ("episode", "remembered", "when"), [(1, 0, "after a reset"), (3, 3, "at the beginning of an episode")]
)
@pytest.mark.parametrize("normalized", [False, True])
def test_a_first_observation_that_is_not_finite_is_not_remembered(
    episode: int, remembered: int, when: str, normalized: bool
) -> None:
    memory = ReplayMemory(10, (1,), 0, n_envs=1)
    with make_vector_env(lambda: BlindAtFirst(episode), 1) as envs:
        seen = NormalizeVector(envs) if normalized else envs
        with pytest.raises(DivergedError, match=rf"environment 0 observed inf in obs\[0\] {when}: repair observations"):
            train_off_policy(Table(), seen, settings(), memory=memory)
    assert len(memory) == remembered


def test_environments_that_take_one_seed_for_all_are_trained_in() -> None:
    class OneSeed(SyncVectorEnv):
        def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
            if isinstance(seed, list):
                raise gymnasium.error.Error("Seed must be a python integer")
            return super().reset(seed=seed, options=options)

    envs = OneSeed([Counting] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    assert train_off_policy(Table(), envs, settings(total_steps=20), seed=3).step == 20
    envs.close()


def test_a_memory_that_would_mix_environments_is_refused() -> None:
    memory = ReplayMemory(30, 1, 0, n_step=3, gamma=GAMMA)
    with pytest.raises(HyperparameterError, match=r"n_step=3 and n_envs=1, but 3 environments.*make it with n_envs=3"):
        train_off_policy(Table(), make_vector_env(Counting, 3), settings(n_step=3), memory=memory)


def test_a_memory_of_another_number_of_environments_is_refused_before_the_first_step() -> None:
    with pytest.raises(HyperparameterError, match=r"n_envs=2, but 3 environments.*make it with n_envs=3"):
        train_off_policy(Table(), make_vector_env(Counting, 3), settings(), memory=ReplayMemory(30, 1, 0, n_envs=2))


@pytest.mark.parametrize(
    ("asked", "made", "message"),
    [
        ({"n_step": 3}, {}, "n_step=3, and the ReplayMemory has n_step=1"),
        ({"n_step": 3}, {"n_step": 2, "gamma": GAMMA}, "n_step=3, and the ReplayMemory has n_step=2"),
        ({"prioritized": Prioritized()}, {}, r"prioritized=.*, and the ReplayMemory has sampling=None"),
        ({"prioritized": Prioritized(0.5)}, {"sampling": Prioritized(0.7)}, r"alpha=0\.5.* has sampling=.*alpha=0\.7"),
        ({"hindsight": 0.8}, {}, r"hindsight=0\.8, and the ReplayMemory has share=None"),
        ({}, {"n_step": 3, "gamma": 0.9}, r"discounts by gamma=0\.9, and Table was made with gamma=0\.5"),
    ],
)
def test_a_memory_that_does_not_do_what_settings_ask_for_is_refused(
    asked: dict[str, Any], made: dict[str, Any], message: str
) -> None:
    with pytest.raises(HyperparameterError, match=message):
        train_off_policy(
            Table(), make_vector_env(Counting, 1), settings(**asked), memory=ReplayMemory(30, 1, 0, **made)
        )


def test_a_memory_may_do_what_settings_leave_open_and_one_of_ones_own_is_trusted() -> None:
    class Own:
        """Tells nothing of how it draws."""

        def __init__(self) -> None:
            self._memory = ReplayMemory(30, 1, 0)
            self.obs, self.append_batch, self.sample = (
                self._memory.obs,
                self._memory.append_batch,
                self._memory.sample,
            )

    for memory, asked in (
        (ReplayMemory(30, 1, 0, n_step=3, gamma=GAMMA, sampling=Prioritized()), {}),
        (Own(), {"n_step": 3}),
    ):
        train_off_policy(Table(), make_vector_env(Counting, 1), settings(**asked), memory=memory)


def test_further_columns_that_a_memory_adds_reach_the_agent() -> None:
    class WithSlots(ReplayMemory):
        def sample(self, batch_size: int, *, beta: float | None = None) -> Any:
            batch = super().sample(batch_size, beta=beta)
            return replace(batch, extra={"slot": batch.index.copy()})

    agent, memory = Table(), WithSlots(100, 1, 0)
    train_off_policy(agent, make_vector_env(Counting, 1), settings(), memory=memory)
    newest = agent.batches[-1]
    np.testing.assert_array_equal(memory.obs[newest["slot"]], newest["obs"])
    drawn = memory.sample(4)
    kept = drawn.copy()
    drawn.extra["slot"][:] = -1
    assert (kept.extra["slot"] >= 0).all()


@pytest.mark.parametrize("method", ["on_update", "on_evaluation"])
def test_a_callback_that_stops_without_a_reason_is_named_and_all_receive_the_end(method: str) -> None:
    ends: list[Stop] = []

    class Wordless(Callback):
        def on_end(self, ended: Any) -> None:
            ends.append(ended.stop)

    setattr(Wordless, method, lambda self, event: 7)
    envs = make_vector_env(Counting, 1)
    with pytest.raises(TypeError, match=rf"Wordless.{method}\(\) returned 7: return the reason to stop in words"):
        train_off_policy(
            Table(),
            envs,
            settings(report_every=20),
            callbacks=[Wordless()],
            evaluator=lambda: Evaluation([Episode(1.0, 1)]),
            evaluate_every=20,
        )
    assert ends == [Stop.FAILED]


def test_false_that_ends_training_in_other_libraries_is_not_taken_for_going_on() -> None:
    class Stops(Callback):
        def on_update(self, update: Any) -> Any:
            return False

    with pytest.raises(TypeError, match=r"Stops.on_update\(\) returned False: return the reason to stop in words"):
        train_off_policy(Table(), make_vector_env(Counting, 1), settings(report_every=20), callbacks=[Stops()])


def test_budgets_end_a_run_at_their_step_and_second_though_no_report_is_due() -> None:
    envs = make_vector_env(Counting, 2)
    often = settings(total_steps=400, report_every=400)
    ended = train_off_policy(Table(), envs, often, callbacks=[StepBudget(30)])
    assert (ended.step, ended.stop, ended.reason) == (30, Stop.CALLBACK, "the portion of 30 steps is done")
    seconds = iter(range(1000))
    ended = train_off_policy(Table(), envs, often, callbacks=[TimeBudget(7.0)], clock=lambda: float(next(seconds)))
    assert (ended.step, ended.stop) == (14, Stop.CALLBACK)


def test_callbacks_that_would_do_nothing_are_told_when_training_begins(caplog: pytest.LogCaptureFixture) -> None:
    class Misspelt(Callback):
        def on_updates(self, update: Any) -> None:
            raise AssertionError("no loop calls it")

        def on_rollout_start(self) -> None:
            raise AssertionError("no loop calls it")

    unused = [ConfirmedReturn(1.0), NoImprovement(), NoImprovement(), Misspelt(), Misspelt()]
    with caplog.at_level(logging.WARNING, "parl"):
        train_off_policy(Table(), make_vector_env(Counting, 1), settings(total_steps=30), callbacks=unused)
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "ConfirmedReturn, NoImprovement: no effect without evaluations, and the loop has no evaluator",
        "no loop calls Misspelt.on_rollout_start",
        "no loop calls Misspelt.on_updates",
    ]
    assert "did you mean on_update?" in caplog.text


def test_rules_of_evaluations_are_not_told_where_there_are_some(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "parl"):
        train_off_policy(
            Table(),
            make_vector_env(Counting, 1),
            settings(total_steps=30),
            callbacks=[ConfirmedReturn(1.0)],
            evaluator=lambda: Evaluation([Episode(0.0, 1)]),
        )
    assert not caplog.records


class NoCallback:
    def on_update(self, update: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Callback(), r"pass callbacks=\[...\]"),
        ([Callback], "got a class, .*pass an object"),
        ([Callback(), NoCallback()], "got a NoCallback, .*derive the class"),
    ],
)
def test_what_is_no_list_of_callbacks_is_refused_before_the_first_step(given: Any, message: str) -> None:
    agent = Table()
    with pytest.raises(HyperparameterError, match=message):
        train_off_policy(agent, make_vector_env(Counting, 1), settings(), callbacks=given)


def test_an_evaluator_is_a_function_that_returns_an_evaluation() -> None:
    done: Any = Evaluation([Episode(1.0, 1)])
    with pytest.raises(HyperparameterError, match=r"evaluator is a function .*lambda: training.evaluate\("):
        train_off_policy(Table(), make_vector_env(Counting, 1), settings(), evaluator=done)
    mean: Any = lambda: 1.0  # noqa: E731
    with pytest.raises(TypeError, match=r"the evaluator returned 1.0: return an Evaluation"):
        train_off_policy(Table(), make_vector_env(Counting, 1), settings(), evaluator=mean, evaluate_every=20)


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        ([-1.0, 0.0], [1.0, np.inf], ["numbers [1]"]),
        ([-np.inf] * 2, [np.inf] * 2, ["[0, 1]"]),
        ([-9.0] * 2, [9.0] * 2, []),
    ],
)
def test_an_algorithm_of_the_unit_box_warns_of_actions_without_bounds(
    low: list[float], high: list[float], told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Free(Counting):
        action_space: Any = gymnasium.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))

    with caplog.at_level(logging.WARNING, "parl"):
        train_off_policy(Table((0.0, 0.0)), make_vector_env(Free, 1), settings(total_steps=30))
    messages = [record.getMessage() for record in caplog.records if "bounds" in record.getMessage()]
    assert len(messages) == len(told)
    assert all(message.startswith("Table acts in [-1, 1]") and told[0] in message for message in messages)
