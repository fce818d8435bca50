"""Tests of off-policy actor-critics that every backend must pass; the suites of DDPG, TD3, SAC and OAC inherit it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Conformance, Precision, random_weights
from conformance.identity import continuous_identity
from conformance.models import ACT_DIM, OBS_DIM
from conformance.reference import Array
from conformance.reference_continuous import Batch
from parl_core.backends import Backend
from parl_core.errors import HyperparameterError, ModelContractError, SpoiledBatchError
from parl_core.schedules import linear

__all__ = ["BATCH", "GAMMA", "LR", "TAU", "ContinuousConformance", "columns_of", "some_batch"]

GAMMA, TAU, LR, BATCH = 0.9, 0.1, 0.01, 16


class ContinuousConformance(Conformance):
    """Base of the suites; a subclass says which algorithm, and gives a model for it."""

    NAME: ClassVar[str]
    SHAPES: ClassVar[dict[str, tuple[int, ...]]]
    METHODS: ClassVar[tuple[str, ...]] = ("policy", "value", "get_actor_params")

    def make(self, backend: Backend, *, deep: bool = False) -> Any:
        """A model without weights; a `deep` one learns more than one can follow by hand."""
        raise NotImplementedError

    def agent(self, precision: Precision = FLOAT32, seed: int = 1, **settings: Any) -> Any:
        """An agent with weights drawn from `seed`, and a target with others."""
        rng = np.random.default_rng(seed)
        model = self.model(self.make, random_weights(rng, self.SHAPES), precision)
        settings = {"gamma": GAMMA, "tau": TAU, "actor_lr": LR, "critic_lr": LR, **settings}
        algorithm = self.algorithm(self.NAME, model, **settings)
        algorithm.target_model.set_weights(random_weights(rng, self.SHAPES), portable=True)
        return self.backend.Agent(algorithm, seed=seed)

    def without_noise(self, agent: Any) -> Any:
        """The agent, whose updates draw the number 0.5 in place of random ones, so that they can be repeated."""
        if hasattr(agent.alg, "_noise"):
            agent.alg._noise = lambda like: like * 0.0 + 0.5
        return agent

    def draws(self, agent: Any, precision: Precision, *noises: Array) -> None:
        """Let the algorithm draw these numbers in place of random ones, in this order."""
        waiting = iter(noises)
        agent.alg._noise = lambda _like: agent.alg._tensor(next(waiting).astype(precision.dtype))

    def learn(self, agent: Any, batch: Batch, precision: Precision, *, extras: bool, **rates: float | None) -> Any:
        """One update; with `extras` weights and discounts are given, too."""
        options = {"weights": batch.weights, "discount": batch.discount} if extras else {}
        cast = {name: array.astype(precision.dtype) for name, array in options.items()}
        return agent.learn(*columns_of(batch, precision), **cast, **rates)

    def test_columns_of_shape_n_1_mean_the_same_as_of_shape_n(self) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        losses = []
        for shape in ((BATCH,), (BATCH, 1)):
            obs, action, reward, next_obs, terminal = columns
            agent = self.without_noise(self.agent())
            losses.append(agent.learn(obs, action, reward.reshape(shape), next_obs, terminal.reshape(shape)))
        assert losses[0] == losses[1]

    def test_bool_terminals_mean_the_same_as_numbers(self) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        losses = [
            self.without_noise(self.agent()).learn(*columns[:4], columns[4].astype(dtype))
            for dtype in (np.bool_, np.float32)
        ]
        assert losses[0] == losses[1]

    def test_columns_of_different_length_are_refused_with_all_shapes(self) -> None:
        obs, action, *others = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        with pytest.raises(ValueError, match=r"obs \(16, 4\), action \(15, 3\)"):
            self.agent().learn(obs, action[:-1], *others)

    @pytest.mark.parametrize("shape", [(BATCH,), (BATCH, ACT_DIM, 1)])
    def test_actions_of_another_shape_are_refused(self, shape: tuple[int, ...]) -> None:
        obs, _, *others = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        with pytest.raises(ValueError, match=r"action must hold numbers of shape \[n, act_dim\]"):
            self.agent().learn(obs, np.zeros(shape, np.float32), *others)

    @pytest.mark.parametrize("wrong", [1.5, -2.0, float("nan")])
    def test_actions_outside_of_the_unit_box_are_refused(self, wrong: float) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        columns[1][3, 1] = wrong
        with pytest.raises(ValueError, match=r"action must lie in \[-1, 1\], got .*before they are mapped"):
            self.agent().learn(*columns)

    @pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
    def test_a_loss_that_is_not_finite_names_the_row_of_the_reward(self, wrong: float) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        columns[2][5] = wrong
        with pytest.raises(SpoiledBatchError, match=rf"reward must be finite, got {wrong} in row 5"):
            self.agent().learn(*columns)

    @pytest.mark.parametrize("parts", [1, 3])
    def test_a_model_that_returns_no_pair_where_one_is_wanted_is_refused_by_method(self, parts: int) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        for method, wanted in self.agent().alg.PAIRS.items():
            for rows in (2, BATCH):  # two rows could be unpacked as a pair
                agent = self.agent()
                model, own = agent.alg.model, getattr(agent.alg.model, method)
                changed = (lambda *x, own=own: own(*x)[0]) if parts == 1 else (lambda *x, own=own: (*own(*x), 0))
                setattr(model, method, changed)
                before = agent.get_weights()
                returned = r"one \w*Tensor of shape \[3, \d\] for 3 rows" if parts == 1 else "3 parts"
                message = rf"\.{method} has to return {re.escape(wanted)} for {self.NAME}; it returned {returned}"
                with pytest.raises(ModelContractError, match=message):
                    agent.learn(*(column[:rows] for column in columns))
                for name, array in agent.get_weights().items():
                    np.testing.assert_array_equal(array, before[name], err_msg=name)

    @pytest.mark.parametrize(
        ("changed", "returned"),
        [
            (lambda q1, q2: (q1.reshape([-1]), q2.reshape([-1, 1])), r"\[3\] and \[3, 1\] for 3 rows"),
            (lambda q1, q2: (q1.reshape([-1, 1]).expand([-1, 2]),) * 2, r"\[3, 2\] and \[3, 2\] for 3 rows"),
        ],
    )
    def test_critics_of_other_shapes_are_refused_by_method(
        self, changed: Callable[[Any, Any], Any], returned: str
    ) -> None:
        """Values `[n]` and `[n, 1]` would be broadcast to `[n, n]`, and learned from."""
        agent = self.agent()
        if "value" not in agent.alg.PAIRS:
            pytest.skip("no twin critics")
        model, own = agent.alg.model, agent.alg.model.value
        model.value = lambda *x: changed(*own(*x))
        message = rf"\.value has to return the pair .* it returned {returned}: both have to be \[batch\]"
        with pytest.raises(ModelContractError, match=message):
            agent.learn(*columns_of(some_batch(np.random.default_rng(2)), FLOAT32))

    def test_predicted_actions_and_samples_lie_in_the_unit_box(self) -> None:
        agent = self.agent()
        obs = 5.0 * np.random.default_rng(3).normal(size=(200, OBS_DIM)).astype(np.float32)
        for actions in (agent.predict(obs), agent.sample(obs)):
            assert actions.shape == (200, ACT_DIM)
            assert np.abs(actions).max() <= 1.0
        assert agent.predict(obs[0]).shape == agent.sample(obs[0]).shape == (ACT_DIM,)

    def test_the_target_follows_by_tau_and_can_be_moved_by_hand(self) -> None:
        algorithm = self.agent().alg
        source, before = algorithm.model.get_weights(), algorithm.target_model.get_weights()
        algorithm.sync_target()
        for name, array in algorithm.target_model.get_weights().items():
            np.testing.assert_allclose(array, (1.0 - TAU) * before[name] + TAU * source[name], atol=1e-6)
        algorithm.sync_target(decay=0.0)
        for name, array in algorithm.target_model.get_weights().items():
            np.testing.assert_array_equal(array, source[name])

    def test_rates_of_a_call_and_schedules_replace_constants(self) -> None:
        results = []
        schedule = linear(0.02, 0.0, 4)  # 0.02, 0.015 at the first two updates
        constant = {"actor_lr": 1.0, "critic_lr": 1.0}
        rates = [{"actor_lr": rate, "critic_lr": rate} for rate in (0.02, 0.015)]
        for settings, calls in (
            ({"actor_lr": schedule, "critic_lr": schedule}, [{}, {}]),
            (constant | self.temperature_settings(schedule), rates),
        ):
            agent = self.without_noise(self.agent(**settings))
            for i, call in enumerate(calls):
                agent.learn(*columns_of(some_batch(np.random.default_rng(i)), FLOAT32), **call)
            results.append(agent.get_weights())
        for name, array in results[0].items():
            np.testing.assert_allclose(array, results[1][name], atol=1e-7, err_msg=name)

    def temperature_settings(self, rate: Any) -> dict[str, Any]:
        """Return the settings with which a learned temperature follows `rate`, too."""
        del rate
        return {}

    def test_a_saved_agent_goes_on_as_if_nothing_had_happened(self, tmp_path: Path) -> None:
        saved = self.without_noise(self.agent())
        for i in range(3):
            saved.learn(*columns_of(some_batch(np.random.default_rng(i)), FLOAT32))
        saved.save(tmp_path / "agent.ckpt")
        restored = self.without_noise(self.agent(seed=2))
        restored.restore(tmp_path / "agent.ckpt")
        for i in range(3, 6):
            columns = columns_of(some_batch(np.random.default_rng(i)), FLOAT32)
            assert restored.learn(*columns) == saved.learn(*columns)
        for name, array in saved.get_weights().items():
            np.testing.assert_array_equal(restored.get_weights()[name], array, err_msg=name)

    @pytest.mark.parametrize(
        ("name", "value"),
        [("gamma", 1.5), ("tau", 0.0), ("tau", 2.0), ("actor_lr", 0.0), ("critic_lr", -1.0), ("critic_lr", "0.1")],
    )
    def test_settings_out_of_range_are_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(HyperparameterError, match=name):
            self.algorithm(self.NAME, self.make(self.backend), **{name: value})

    @pytest.mark.parametrize("name", ["actor_lr", "critic_lr"])
    def test_a_rate_of_a_call_that_is_no_rate_is_refused(self, name: str) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        with pytest.raises(HyperparameterError, match=f"{name} must be"):
            self.agent().learn(*columns, **{name: -1e-3})

    def test_a_dictionary_of_settings_works_as_in_parl_1(self) -> None:
        given = {"gamma": 0.5, "tau": 0.2, "actor_lr": 0.1, "critic_lr": 0.3}
        algorithm = self.algorithm(self.NAME, self.make(self.backend), hyperparas=given)
        assert {name: getattr(algorithm, name) for name in given} == given
        in_place = self.algorithm(self.NAME, self.make(self.backend), **{"gamma": given})
        assert {name: getattr(in_place, name) for name in given} == given
        with pytest.raises(HyperparameterError, match="tau both in `hyperparas` and as an argument"):
            self.algorithm(self.NAME, self.make(self.backend), tau=0.5, hyperparas=given)

    def test_a_model_that_lacks_a_method_is_refused_by_its_name(self) -> None:
        for method in self.METHODS:
            others = {name: lambda *_: None for name in self.METHODS if name != method}
            model = type("Lacking", (self.backend.Model,), others)()
            with pytest.raises(ModelContractError, match=f"`{self.NAME}`'s model needs to implement `{method}` method"):
                self.algorithm(self.NAME, model)

    @pytest.mark.parametrize(
        ("listed", "message"),
        [([], "lists no parameters"), ([1.0], "not trainable parameters .*of type float"), (3, "must list parameters")],
        ids=["none", "others", "no list"],
    )
    def test_parameters_that_would_not_be_trained_are_refused(self, listed: Any, message: str) -> None:
        agent = self.agent()
        base = type(agent.alg.model)
        agent.alg.model.__class__ = type(base.__name__, (base,), {"get_actor_params": lambda _: listed})
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)

        def learn_twice() -> None:  # TD3's actor learns at every second update
            agent.learn(*columns)
            agent.learn(*columns)

        with pytest.raises(ModelContractError, match=rf"get_actor_params\(\).* {message}"):
            learn_twice()

    def test_a_list_of_the_actor_s_parameters_that_leaves_none_to_the_critic_is_refused(self) -> None:
        agent = self.agent()
        base = type(agent.alg.model)
        listed = {"get_actor_params": lambda model: list(model.parameters())}
        agent.alg.model.__class__ = type(base.__name__, (base,), listed)
        if agent.alg.model.implements("get_critic_params"):
            pytest.skip("its model lists the critic's parameters as well")
        with pytest.raises(ModelContractError, match="lists all parameters and leaves none for the critic"):
            agent.learn(*columns_of(some_batch(np.random.default_rng(2)), FLOAT32))

    def test_a_layer_without_a_shape_that_is_not_used_is_left_out(self) -> None:
        model = self.make(self.backend)
        model.spare = self.backend.layers.fc(size=2)
        agent = self.backend.Agent(self.algorithm(self.NAME, model))
        for _ in range(2):
            agent.learn(*columns_of(some_batch(np.random.default_rng(2)), FLOAT32))

    @pytest.mark.parametrize("wrong", [2.0, -1.0, float("nan")])
    def test_a_terminal_that_is_no_flag_is_refused(self, wrong: float) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        columns[4] = columns[4].astype(np.float32)
        columns[4][5] = wrong
        with pytest.raises(ValueError, match=r"terminal must be 1 where an episode ended .* in row 5"):
            self.agent().learn(*columns)

    def test_observations_may_be_dictionaries(self) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        plain, parts = self.without_noise(self.agent()), self.without_noise(self.agent())
        for model in (parts.alg.model, parts.alg.target_model):
            _joins_parts(model, self.backend.layers)
        expected = plain.learn(*columns)
        split = [{"left": obs[:, :1], "right": obs[:, 1:]} for obs in (columns[0], columns[3])]
        found = parts.learn(split[0], *columns[1:3], split[1], columns[4])
        assert found == pytest.approx(expected, abs=1e-6)
        np.testing.assert_allclose(parts.predict(split[0]), plain.predict(columns[0]), atol=1e-6)

    def test_an_agent_that_has_not_learned_yet_can_be_saved_once_its_shapes_are_settled(self, tmp_path: Path) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        learned = []
        for settled in (False, True):
            self.adapter.seed(5)
            agent = self.without_noise(self.backend.Agent(self.algorithm(self.NAME, self.make(self.backend)), seed=1))
            action = agent.predict(columns[0])
            if settled:
                agent.alg.settle_shapes(columns[0], action)
                agent.save(tmp_path / "agent.ckpt")
            self.adapter.seed(6)
            agent.learn(*columns)
            learned.append(agent.get_weights())
        for name, array in learned[0].items():
            np.testing.assert_array_equal(learned[1][name], array, err_msg=name)

    def test_it_learns_the_identity_environment(self) -> None:
        rng = np.random.default_rng(8)
        algorithm = self.algorithm(self.NAME, self.make(self.backend, deep=True), **self.identity_settings())
        agent = self.backend.Agent(algorithm, seed=9)
        for update in range(120):
            obs, shown = continuous_identity(rng, 64)
            action = rng.uniform(-1.0, 1.0, shown.shape).astype(np.float32)  # whoever acts: it learns off-policy
            reward = -((action[:, 0] - 0.5 * shown[:, 0]) ** 2)
            # The critic learns first: an actor that follows an untrained one ends where tanh is flat.
            agent.learn(obs, action, reward, obs, np.ones(64), actor_lr=0.0 if update < 60 else None)
        obs, shown = continuous_identity(rng, 200)
        missed = np.abs(agent.predict(obs) - 0.5 * shown)[:, 0]
        assert missed.mean() < 0.15  # an actor that ignores what is shown misses by 0.25 and more

    def identity_settings(self) -> dict[str, Any]:
        """Settings with which the identity environment is learned in 120 updates."""
        return {"gamma": 0.9, "actor_lr": 0.006, "critic_lr": 0.02}


def some_batch(rng: np.random.Generator, *, extras: bool = False) -> Batch:
    """A batch of transitions; with `extras` with importance weights and discounts of several steps."""
    obs, next_obs = rng.normal(size=(2, BATCH, OBS_DIM))
    return Batch(
        obs,
        rng.uniform(-1.0, 1.0, (BATCH, ACT_DIM)),
        rng.normal(size=BATCH),
        next_obs,
        (rng.random(BATCH) < 0.3).astype(np.float64),
        rng.uniform(0.2, 1.0, BATCH) if extras else np.ones(BATCH),
        np.float64(GAMMA) ** rng.integers(1, 4, BATCH) if extras else np.full(BATCH, GAMMA),
    )


def columns_of(batch: Batch, precision: Precision) -> list[Any]:
    """The positional arguments of `learn`."""
    arrays = (batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminal)
    return [array.astype(precision.dtype) for array in arrays]


def _joins_parts(model: Any, layers: Any) -> None:
    """Let a model take its observations in two parts."""
    policy = model.policy

    def joined(obs: Any) -> Any:
        return layers.concat([obs["left"], obs["right"]], axis=1)

    model.policy = lambda obs: policy(joined(obs))
    for name in ("value", "Q1", "quantiles"):
        if hasattr(model, name):
            own = getattr(model, name)
            setattr(model, name, lambda obs, action, own=own: own(joined(obs), action))
