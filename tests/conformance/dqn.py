"""Tests of DQN and its variants that every backend must pass."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance.adapter import Conformance, Precision, assert_weights_close, random_weights
from conformance.identity import discrete_identity
from conformance.models import ACT_DIM, DUELING_SHAPES, OBS_DIM, Q_SHAPES, dueling, q_values, table
from conformance.reference import Adam, Dense, clip_by_global_norm, summed
from conformance.reference_losses import q_learning
from parl_core.contracts.batches import Transitions
from parl_core.errors import HyperparameterError, ModelContractError, SpoiledBatchError
from parl_core.model import Weights
from parl_core.schedules import piecewise
from parl_core.training import _requirements
from parl_core.training._requirements import TargetWatch

__all__ = ["DQNConformance"]

_NETWORK = Dense(("fc1", "fc2"))
_GAMMA, _LR, _BATCH = 0.9, 0.01, 16


class DQNConformance(Conformance):
    """Suite of DQN and DDQN."""

    @pytest.mark.parametrize("double", [False, True], ids=["plain", "double"])
    @pytest.mark.parametrize("extras", [False, True], ids=["one_step", "n_step_prioritised"])
    def test_three_updates_agree_with_the_reference(self, precision: Precision, double: bool, extras: bool) -> None:
        rng = np.random.default_rng(1)
        weights: Weights = random_weights(rng, Q_SHAPES)
        target_weights = random_weights(rng, Q_SHAPES)
        algorithm = self.algorithm("DQN", self.model(q_values, weights, precision), gamma=_GAMMA, lr=_LR, double=double)
        algorithm.target_model.set_weights(target_weights, portable=True)
        agent = self.backend.Agent(algorithm)
        adam = Adam(_LR)
        for lr in (None, None, 0.003):
            obs, next_obs = rng.normal(size=(2, _BATCH, OBS_DIM))
            action, reward = rng.integers(ACT_DIM, size=_BATCH), rng.normal(size=_BATCH)
            terminal = rng.random(_BATCH) < 0.3
            importance = rng.uniform(0.2, 1.0, _BATCH) if extras else np.ones(_BATCH)
            discount = _GAMMA ** rng.integers(1, 4, _BATCH) if extras else np.full(_BATCH, _GAMMA)

            next_q = _NETWORK.forward(target_weights, next_obs)[-1]
            selector = _NETWORK.forward(weights, next_obs)[-1] if double else next_q
            bootstrap = next_q[np.arange(_BATCH), selector.argmax(axis=1)]
            outputs = _NETWORK.forward(weights, obs)
            target = reward + discount * (1.0 - terminal) * bootstrap
            loss, gradient, error = q_learning(outputs[-1], action, target, importance)
            weights = adam.update(weights, _NETWORK.backward(weights, outputs, gradient)[0], lr)

            options = {"weights": importance, "discount": discount} if extras else {}
            found = agent.learn(
                *_cast((obs, action, reward, next_obs, terminal), precision),
                lr,
                **{name: array.astype(precision.dtype) for name, array in options.items()},
            )
            if extras:
                found, td_error = found
                np.testing.assert_allclose(td_error, error, atol=precision.tolerance)
            assert abs(found - loss) < precision.tolerance
        assert_weights_close(algorithm.model.get_weights(portable=True), weights, precision.tolerance)
        assert_weights_close(algorithm.target_model.get_weights(portable=True), target_weights, 1e-7)

    def test_gradients_are_clipped_by_their_global_norm(self, precision: Precision) -> None:
        rng = np.random.default_rng(2)
        weights = random_weights(rng, Q_SHAPES)
        algorithm = self.algorithm("DQN", self.model(q_values, weights, precision), lr=_LR, max_grad_norm=0.01)
        agent = self.backend.Agent(algorithm)
        adam = Adam(_LR)
        for _ in range(2):
            obs, action = rng.normal(size=(_BATCH, OBS_DIM)), rng.integers(ACT_DIM, size=_BATCH)
            reward, terminal = rng.normal(scale=5.0, size=_BATCH), np.ones(_BATCH, bool)
            outputs = _NETWORK.forward(weights, obs)
            _, gradient, _ = q_learning(outputs[-1], action, reward, np.ones(_BATCH))
            gradients = clip_by_global_norm(_NETWORK.backward(weights, outputs, gradient)[0], 0.01)
            weights = adam.update(weights, gradients)
            agent.learn(*_cast((obs, action, reward, obs, terminal), precision))
        assert_weights_close(algorithm.model.get_weights(portable=True), weights, precision.tolerance)

    def test_an_infinite_limit_of_gradients_is_none(self) -> None:
        weights, batch = random_weights(np.random.default_rng(2), Q_SHAPES), _some_batch(np.random.default_rng(4))
        found = []
        for limit in (None, math.inf):
            algorithm = self.algorithm("DQN", self.model(q_values, weights), lr=_LR, max_grad_norm=limit)
            agent = self.backend.Agent(algorithm)
            agent.learn(*batch)
            found.append(agent.get_weights())
        assert _same(*found)

    def test_dueling_models_are_trained_as_they_are(self, precision: Precision) -> None:
        rng = np.random.default_rng(12)
        weights = random_weights(rng, DUELING_SHAPES)
        algorithm = self.algorithm("DQN", self.model(dueling, weights, precision), gamma=_GAMMA, lr=_LR)
        agent, adam = self.backend.Agent(algorithm), Adam(_LR)
        value, advantage = Dense(("fc1", "v")), Dense(("fc1", "a"))
        for _ in range(2):
            obs, action = rng.normal(size=(_BATCH, OBS_DIM)), rng.integers(ACT_DIM, size=_BATCH)
            reward = rng.normal(size=_BATCH)
            v, a = value.forward(weights, obs), advantage.forward(weights, obs)
            q = v[-1] + a[-1] - a[-1].mean(axis=1, keepdims=True)
            loss, slope, _ = q_learning(q, action, reward, np.ones(_BATCH))
            gradients, _ = value.backward(weights, v, slope.sum(axis=1, keepdims=True))
            more, _ = advantage.backward(weights, a, slope - slope.mean(axis=1, keepdims=True))
            weights = adam.update(weights, summed(gradients, more))
            found = agent.learn(*_cast((obs, action, reward, obs, np.ones(_BATCH)), precision))
            assert found == pytest.approx(loss, abs=precision.tolerance)
        assert_weights_close(algorithm.model.get_weights(portable=True), weights, precision.tolerance)

    @pytest.mark.parametrize("double", [False, True], ids=["plain", "double"])
    def test_what_is_impossible_is_neither_chosen_nor_bootstrapped_from(self, double: bool) -> None:
        rng = np.random.default_rng(11)
        weights, target_weights = random_weights(rng, Q_SHAPES), random_weights(rng, Q_SHAPES)
        obs, action, reward, next_obs, terminal = _some_batch(rng)
        possible = rng.random((_BATCH, ACT_DIM)) < 0.5
        possible[np.arange(_BATCH), rng.integers(ACT_DIM, size=_BATCH)] = True
        possible[terminal] = False  # where nothing follows, nothing need be possible

        next_q = _NETWORK.forward(target_weights, next_obs)[-1]
        selector = _NETWORK.forward(weights, next_obs)[-1] if double else next_q
        best = np.where(possible, selector, -np.inf).argmax(axis=1)
        target = reward + _GAMMA * ~terminal * next_q[np.arange(_BATCH), best]
        expected, _, _ = q_learning(_NETWORK.forward(weights, obs)[-1], action, target, np.ones(_BATCH))
        for mask in (possible, possible.astype(np.int8), possible.astype(np.float32)):
            algorithm = self.algorithm("DQN", self.model(q_values, weights), gamma=_GAMMA, double=double)
            algorithm.target_model.set_weights(target_weights, portable=True)
            agent = self.backend.Agent(algorithm, seed=1)
            found = agent.learn(obs, action, reward, next_obs, terminal, next_action_mask=mask)
            assert found == pytest.approx(expected, abs=1e-5)

    def test_masked_actions_are_never_chosen_and_the_others_equally_often(self) -> None:
        weights = random_weights(np.random.default_rng(6), Q_SHAPES)
        agent = self.backend.Agent(self.algorithm("DQN", self.model(q_values, weights)), seed=7)
        obs = np.random.default_rng(1).normal(size=(6000, OBS_DIM)).astype(np.float32)
        values = _NETWORK.forward(weights, obs)[-1]
        mask = np.ones((6000, ACT_DIM), np.bool_)
        mask[np.arange(6000), values.argmax(axis=1)] = False
        expected = np.where(mask, values, -np.inf).argmax(axis=1)
        np.testing.assert_array_equal(agent.predict(obs, action_mask=mask), expected)
        assert agent.predict(obs[0], action_mask=mask[0]) == expected[0]
        drawn = agent.sample(obs, epsilon=1.0, action_mask=mask)
        assert mask[np.arange(6000), drawn].all()
        # Two actions are possible: half of the draws, with deviation 0.0065.
        assert abs((drawn == expected).mean() - 0.5) < 0.04

    def test_observations_may_be_dictionaries_with_a_mask_among_them(self) -> None:
        weights = random_weights(np.random.default_rng(3), Q_SHAPES)
        obs, action, reward, next_obs, terminal = _some_batch(np.random.default_rng(4))
        mask = np.tile([True, False, True], (_BATCH, 1))
        plain = self.backend.Agent(self.algorithm("DQN", self.model(q_values, weights)))
        expected = plain.learn(obs, action, reward, next_obs, terminal, next_action_mask=mask)
        agent = self.backend.Agent(self.algorithm("DQN", self.model(q_values, weights)))
        for one in (agent.alg.model, agent.alg.target_model):
            of_vectors = one.value
            one.value = lambda parts, of_vectors=of_vectors: of_vectors(
                self.backend.layers.concat([parts["left"], parts["right"]], axis=1)
            )

        def parts(rows: Any) -> dict[str, Any]:
            return {"left": rows[:, :1], "right": rows[:, 1:], "action_mask": mask}

        found = agent.learn(parts(obs), action, reward, parts(next_obs), terminal)
        assert found == pytest.approx(expected, abs=1e-6)
        np.testing.assert_array_equal(agent.predict(parts(obs)), plain.predict(obs, action_mask=mask))
        assert agent.predict({name: part[0] for name, part in parts(obs).items()}) == agent.predict(parts(obs))[0]

    def test_an_action_that_the_model_has_no_value_for_is_refused_without_act_dim(self) -> None:
        agent = self.backend.Agent(self.algorithm("DQN", q_values(self.backend)))
        obs, _, *others = _some_batch(np.random.default_rng(4))
        with pytest.raises(ValueError, match=r"action must be in 0\.\.2, got 3\.\.3"):
            agent.learn(obs, np.full(_BATCH, ACT_DIM), *others)

    def test_a_model_of_another_width_than_act_dim_is_refused_before_it_learns(self) -> None:
        agent = self.backend.Agent(self.algorithm("DQN", q_values(self.backend), act_dim=5))
        for _ in range(2):
            with pytest.raises(ModelContractError, match=r"DQN's model must return \[batch, 5\], got \(batch, 3\)"):
                agent.learn(*_some_batch(np.random.default_rng(4)))
        assert agent.alg.updates == 0

    @pytest.mark.parametrize(
        ("changed", "learning", "acting"),
        [
            (lambda q: (q, q), "a tuple", "tuple"),
            (lambda q: None, "None", "NoneType"),
            (lambda q: q[:, 0], r"\[3\] for 3 rows", "8"),
            (lambda q: q.reshape([-1, 1, 3]), r"\[3, 1, 3\] for 3 rows", "8, 1, 3"),
        ],
    )
    def test_a_model_that_returns_something_else_is_refused_by_method(
        self, changed: Callable[[Any], Any], learning: str, acting: str
    ) -> None:
        agent = self.backend.Agent(self.algorithm("DQN", q_values(self.backend)))
        model, own = agent.alg.model, agent.alg.model.value
        model.value = lambda obs: changed(own(obs))
        message = rf"{type(model).__name__}\.value has to return \[batch, act_dim\] for DQN; it returned {learning}$"
        with pytest.raises(ModelContractError, match=message):
            agent.learn(*_some_batch(np.random.default_rng(4)))
        with pytest.raises(ModelContractError, match=rf"must return .*got \({acting}\) from {type(model).__name__}\.v"):
            agent.predict(np.zeros((8, OBS_DIM), np.float32))

    def test_a_schedule_decides_the_learning_rate_of_each_update(self) -> None:
        weights = random_weights(np.random.default_rng(3), Q_SHAPES)
        batch = _some_batch(np.random.default_rng(4))
        scheduled = self.backend.Agent(
            self.algorithm("DQN", self.model(q_values, weights), lr=piecewise([(0, 0.1), (1, 0.02)]))
        )
        given = self.backend.Agent(self.algorithm("DQN", self.model(q_values, weights), lr=1.0))
        for rate in (0.1, 0.02, 0.02):
            scheduled.learn(*batch)
            given.learn(*batch, learning_rate=rate)
        assert _same(scheduled.get_weights(), given.get_weights())

    def test_a_schedule_that_leaves_its_range_is_refused_with_the_step_and_the_value(self) -> None:
        batch = _some_batch(np.random.default_rng(4))
        agent = self.backend.Agent(self.algorithm("DQN", q_values(self.backend), lr=lambda step: 0.1 - 0.05 * step))
        for _ in range(3):  # the last of them with a rate of 0
            agent.learn(*batch)
        before = agent.get_weights()
        with pytest.raises(HyperparameterError, match=r"lr of .* at step 3 must be at least 0, got -0\.05"):
            agent.learn(*batch)
        assert _same(agent.get_weights(), before)

    @pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
    def test_a_loss_that_is_not_finite_names_the_row_of_the_reward(self, wrong: float) -> None:
        agent = self.backend.Agent(self.algorithm("DQN", q_values(self.backend)))
        batch = _some_batch(np.random.default_rng(4))
        agent.learn(*batch)
        batch[2][5] = wrong
        with pytest.raises(SpoiledBatchError, match=rf"reward must be finite, got {wrong} in row 5"):
            agent.learn(*batch)

    def test_a_loss_that_is_not_finite_names_the_number_of_an_observation(self) -> None:
        agent = self.backend.Agent(self.algorithm("DQN", q_values(self.backend)))
        batch = _some_batch(np.random.default_rng(4))
        batch[3][7, 2] = np.nan
        with pytest.raises(SpoiledBatchError, match=r"next_obs\[2\] must be finite, got nan in row 7"):
            agent.learn(*batch)

    @pytest.mark.parametrize("column", [0, 3])
    def test_a_nan_that_a_layer_makes_0_of_is_named_all_the_same(self, column: int) -> None:
        agent = self.backend.Agent(self.algorithm("DQN", self.backend.networks.QNetwork(ACT_DIM, (8, 8))))
        batch = _some_batch(np.random.default_rng(4))
        batch[column][7] = np.nan
        name = "obs" if column == 0 else "next_obs"
        with pytest.raises(SpoiledBatchError, match=rf"{name}\[0\] must be finite, got nan in row 7"):
            agent.learn(*batch)

    def test_many_updates_in_a_call_are_those_of_single_calls(self) -> None:
        weights = random_weights(np.random.default_rng(3), Q_SHAPES)
        settings = {"lr": 0.01, "sync_every": 2}
        one, many, below = (
            self.backend.Agent(self.algorithm("DQN", self.model(q_values, weights), **settings)) for _ in range(3)
        )
        rng = np.random.default_rng(4)
        batches = [Transitions(*_some_batch(rng)) for _ in range(5)]
        importance = rng.uniform(0.2, 1.0, _BATCH).astype(np.float32)
        batches.append(Transitions.made(**{**batches[0].named(), "weights": importance}))
        expected = [one.learn(batch, 0.02) for batch in batches]
        found = many.learn_many(batches, learning_rate=0.02)
        assert found[:-1] == expected[:-1]
        np.testing.assert_array_equal(found[-1][1], expected[-1][1])
        below.alg.learn_many([below.alg._on_device(batch) for batch in batches], learning_rate=0.02)
        for agent in (many, below):
            assert agent.alg.updates == one.alg.updates == len(batches)
            assert_weights_close(agent.get_weights(), one.get_weights(), 0.0)

    def test_one_bad_batch_among_many_is_named(self) -> None:
        agent = self.backend.Agent(self.algorithm("DQN", q_values(self.backend)))
        rng = np.random.default_rng(4)
        columns = [_some_batch(rng) for _ in range(3)]
        columns[1][2][5] = np.inf
        with pytest.raises(SpoiledBatchError, match="reward must be finite, got inf in row 5"):
            agent.learn_many([Transitions(*batch) for batch in columns])

    def test_batches_and_columns_are_learned_from_alike_and_extra_columns_reach_the_loss(self) -> None:
        seen: list[Any] = []
        plain: Any = self.backend.algorithms.DQN

        class Own(plain):  # type: ignore[misc]  # of either backend
            def loss(self, batch: Any) -> Any:
                loss, figures = super().loss(batch)
                seen.append(self._array(batch.goal))
                return loss + batch.goal.mean(), figures

        weights = random_weights(np.random.default_rng(3), Q_SHAPES)
        obs, action, reward, next_obs, terminal = _some_batch(np.random.default_rng(4))
        goal = np.arange(_BATCH, dtype=np.float32)
        own = self.backend.Agent(Own(self.model(q_values, weights), lr=0.01, device="cpu"))
        agents = [self.backend.Agent(self.algorithm("DQN", self.model(q_values, weights), lr=0.01)) for _ in range(3)]
        columns = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "terminal": terminal}
        losses = [
            agents[0].learn(*columns.values()),
            agents[1].learn(Transitions(**columns)),
            agents[2].read(agents[2].learn_unread(Transitions.made(**columns))),
            own.learn(Transitions(**columns, extra={"goal": goal})) - goal.mean(),
        ]
        np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
        np.testing.assert_array_equal(seen[0], goal)
        for agent in (*agents, own):
            assert_weights_close(agent.get_weights(), agents[0].get_weights(), 1e-7)

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("weights", np.nan, "weights must be at least 0 and finite, got nan in row 5"),
            ("weights", -0.5, "weights must be at least 0 and finite, got -0.5 in row 5"),
            ("discount", 1.5, r"discount must be in \[0, 1\], got 1.5 in row 5"),
        ],
        ids=["nan", "negative", "discount"],
    )
    def test_numbers_out_of_their_range_are_refused_before_they_spoil_the_weights(
        self, name: str, value: float, message: str
    ) -> None:
        weights = random_weights(np.random.default_rng(3), Q_SHAPES)
        agent = self.backend.Agent(self.algorithm("DQN", self.model(q_values, weights)))
        obs, action, reward, next_obs, terminal = _some_batch(np.random.default_rng(4))
        columns = {"reward": reward.astype(np.float64), "weights": np.ones(_BATCH), "discount": np.ones(_BATCH)}
        columns[name][5] = value
        before = agent.get_weights()
        with pytest.raises(ValueError, match=message):
            agent.learn(obs, action, columns.pop("reward"), next_obs, terminal, **columns)
        assert _same(agent.get_weights(), before)

    def test_next_observations_of_another_shape_are_refused_also_where_layers_take_theirs_from_the_first_batch(
        self,
    ) -> None:
        agent = self.backend.Agent(self.algorithm("DQN", q_values(self.backend)))
        obs, action, reward, _, terminal = _some_batch(np.random.default_rng(4))
        with pytest.raises(ValueError, match=rf"must have the shape of obs, .*{OBS_DIM}\), got .*{OBS_DIM + 1}\)"):
            agent.learn(obs, action, reward, np.zeros((_BATCH, OBS_DIM + 1), np.float32), terminal)

    @pytest.mark.parametrize(
        ("mask", "message"),
        [
            (np.zeros((_BATCH, ACT_DIM), np.bool_), "leaves no action in row 0"),
            (np.full((_BATCH, ACT_DIM), 2), "booleans or 0 and 1"),
            (np.ones((_BATCH, ACT_DIM + 1), np.bool_), r"must have shape \(16, 3\), got \(16, 4\)"),
        ],
        ids=["empty", "numbers", "shape"],
    )
    def test_masks_that_fit_nothing_are_refused(self, mask: Any, message: str) -> None:
        agent = self.backend.Agent(self.algorithm("DQN", q_values(self.backend)))
        with pytest.raises(ValueError, match=message):
            agent.predict(np.zeros((_BATCH, OBS_DIM), np.float32), action_mask=mask)

    @pytest.mark.parametrize(
        ("shape", "message"),
        [
            ((_BATCH - 1, ACT_DIM), rf"must have {_BATCH} rows.*got \(15, 3\)"),
            ((1, ACT_DIM), rf"must have {_BATCH} rows.*got \(1, 3\)"),
            ((ACT_DIM,), rf"must have {_BATCH} rows.*got \(3,\)"),
        ],
        ids=["fewer", "one", "flat"],
    )
    def test_masks_of_next_actions_have_a_row_for_each_of_the_batch(self, shape: tuple[int, ...], message: str) -> None:
        agent = self.backend.Agent(self.algorithm("DQN", q_values(self.backend)))
        with pytest.raises(ValueError, match=message):
            agent.learn(*_some_batch(np.random.default_rng(4)), next_action_mask=np.ones(shape, np.bool_))

    def test_ddqn_is_dqn_with_double_q_learning(self) -> None:
        weights = random_weights(np.random.default_rng(3), Q_SHAPES)
        batch = _some_batch(np.random.default_rng(4))
        losses = []
        for name, settings in (("DDQN", {}), ("DQN", {"double": True}), ("DQN", {"double": False})):
            algorithm = self.algorithm(name, self.model(q_values, weights), **settings)
            algorithm.target_model.set_weights(random_weights(np.random.default_rng(5), Q_SHAPES), portable=True)
            losses.append(self.backend.Agent(algorithm).learn(*batch))
        assert losses[0] == losses[1] != losses[2]

    def test_double_q_learning_overestimates_less_where_all_values_are_0(self) -> None:
        # Rewards are noise around 0, so every action is worth 0; the maximum over noisy estimates is not (van Hasselt
        # et al. 2016, section 3). Over five seeds DQN's estimates were 0.92 to 1.19, DDQN's 0.25 to 0.33.
        bias = {name: self._highest_value_learned_from_noise(name) for name in ("DQN", "DDQN")}
        assert bias["DQN"] > 0.6
        assert -0.1 < bias["DDQN"] < 0.5 * bias["DQN"]

    def _highest_value_learned_from_noise(self, name: str) -> float:
        """max_a Q(s, a), averaged over the states of a fixed MDP and the second half of training."""
        states, actions, updates, batch = 4, 10, 300, 64
        rng = np.random.default_rng(3)
        algorithm = self.algorithm(name, table(self.backend, actions), gamma=_GAMMA, lr=0.1, sync_every=60)
        algorithm.model.set_weights({"q.weight": np.zeros((actions, states), np.float32)}, portable=True)
        algorithm.sync_target()
        agent = self.backend.Agent(algorithm)
        each_state = np.eye(states, dtype=np.float32)
        highest = []
        for update in range(updates):
            state, next_state = rng.integers(states, size=(2, batch))
            action, reward = rng.integers(actions, size=batch), rng.normal(size=batch).astype(np.float32)
            agent.learn(each_state[state], action, reward, each_state[next_state], np.zeros(batch, np.bool_))
            if update >= updates // 2:
                highest.append(algorithm.model.get_weights(portable=True)["q.weight"].max(axis=0).mean())
        return float(np.mean(highest))

    def test_columns_of_shape_n_1_mean_the_same_as_of_shape_n(self) -> None:
        weights = random_weights(np.random.default_rng(3), Q_SHAPES)
        obs, action, reward, next_obs, terminal = _some_batch(np.random.default_rng(4))
        losses = [
            self.backend.Agent(self.algorithm("DQN", self.model(q_values, weights))).learn(
                obs, action.reshape(shape), reward.reshape(shape), next_obs, terminal.reshape(shape)
            )
            for shape in ((_BATCH,), (_BATCH, 1))
        ]
        assert losses[0] == losses[1]

    def test_columns_of_different_length_are_refused_with_all_shapes(self) -> None:
        agent = self.backend.Agent(self.algorithm("DQN", q_values(self.backend)))
        obs, action, reward, next_obs, terminal = _some_batch(np.random.default_rng(4))
        with pytest.raises(ValueError, match=r"obs \(16, 4\), action \(15,\)"):
            agent.learn(obs, action[:-1], reward, next_obs, terminal)

    def test_sync_every_counts_updates(self) -> None:
        algorithm = self.algorithm("DQN", q_values(self.backend), lr=0.01, sync_every=2)
        agent = self.backend.Agent(algorithm)
        batch = _some_batch(np.random.default_rng(4))
        agent.learn(*batch)
        assert not _same(algorithm.model.get_weights(), algorithm.target_model.get_weights())
        agent.learn(*batch)
        assert _same(algorithm.model.get_weights(), algorithm.target_model.get_weights())

    def _drawn(self) -> Any:
        return self.model(q_values, random_weights(np.random.default_rng(3), Q_SHAPES))

    def test_tau_moves_the_target_a_part_of_the_way_after_every_update(self) -> None:
        algorithm = self.algorithm("DQN", self._drawn(), lr=0.01, tau=0.25)
        before = algorithm.target_model.get_weights()
        self.backend.Agent(algorithm).learn(*_some_batch(np.random.default_rng(4)))
        moved = {name: 0.75 * before[name] + 0.25 * now for name, now in algorithm.model.get_weights().items()}
        assert_weights_close(algorithm.target_model.get_weights(), moved, 1e-6)

    def test_the_loops_move_a_target_that_nothing_else_moves(self) -> None:
        algorithm = self.algorithm("DQN", self._drawn(), lr=0.01)
        agent = self.backend.Agent(algorithm)
        before = algorithm.target_model.get_weights()
        agent.learn(*_some_batch(np.random.default_rng(4)))
        assert _same(algorithm.target_model.get_weights(), before)
        watch = TargetWatch(agent)
        watch.after_update()
        after = algorithm.target_model.get_weights()
        assert not _same(after, before)
        algorithm.sync_target()
        agent.learn(*_some_batch(np.random.default_rng(4)))
        synced = algorithm.target_model.get_weights()
        watch.after_update()
        assert _same(algorithm.target_model.get_weights(), synced)

    def test_without_sync_every_in_a_loop_a_warning_says_that_the_target_stays(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        TargetWatch(self.backend.Agent(self.algorithm("DQN", q_values(self.backend), sync_every=None)))
        assert "DQN was made with sync_every=None: its target stays as it is" in caplog.text

    @pytest.mark.parametrize("again", [False, True])
    def test_a_target_that_stays_after_one_call_of_sync_target_is_warned_of(
        self, again: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_requirements, "_PATIENCE_WITH_SYNCS", 4)
        algorithm = self.algorithm("DQN", self._drawn(), lr=0.01)
        agent = self.backend.Agent(algorithm)
        algorithm.sync_target()
        watch = TargetWatch(agent)
        for _ in range(8):
            agent.learn(*_some_batch(np.random.default_rng(4)))
            watch.after_update()
            if again:
                algorithm.sync_target()
        warned = "did not change in 4 updates: the loop leaves it alone since the program called sync_target()"
        assert caplog.text.count(warned) == (0 if again else 1)

    def test_a_program_that_calls_sync_target_every_10000_updates_is_not_warned(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        algorithm = self.algorithm("DQN", self._drawn(), lr=0.01)
        agent = self.backend.Agent(algorithm)
        algorithm.sync_target()
        watch = TargetWatch(agent)
        for update in range(1, 20_001):
            if update % 500 == 0:
                agent.learn(*_some_batch(np.random.default_rng(4)))
            watch.after_update()
            if update % 10_000 == 0:
                algorithm.sync_target()
        assert "did not change" not in caplog.text

    def test_huber_bounds_what_one_error_weighs(self) -> None:
        obs, action, _, next_obs, _ = _some_batch(np.random.default_rng(4))
        reward, terminal = np.full(_BATCH, 1e3, np.float32), np.ones(_BATCH, np.float32)
        agent = self.backend.Agent(self.algorithm("DQN", self._drawn(), huber=2.0, lr=0.01))
        values = agent.run(agent.alg.predict, obs)[np.arange(_BATCH), action]
        loss = agent.learn(obs, action, reward, next_obs, terminal)
        assert loss == pytest.approx(float((2.0 * (np.abs(reward - values) - 1.0)).mean()), rel=1e-5)

    def test_the_target_of_a_model_without_shapes_starts_equal(self) -> None:
        algorithm = self.algorithm("DQN", q_values(self.backend))
        algorithm.predict(algorithm._tensor(np.zeros((1, OBS_DIM), np.float32)))
        algorithm.sync_target(gpu_id=None)
        assert _same(algorithm.model.get_weights(), algorithm.target_model.get_weights())

    def test_epsilon_decides_how_many_actions_are_random(self) -> None:
        weights = random_weights(np.random.default_rng(6), Q_SHAPES)
        agent = self.backend.Agent(self.algorithm("DQN", self.model(q_values, weights)), seed=7)
        obs = np.zeros((9000, OBS_DIM), np.float32)
        best = agent.predict(obs[:1])[0]
        np.testing.assert_array_equal(agent.sample(obs, epsilon=0.0), best)
        # A third of the random actions are the best one by chance: 0.6 * 2 / 3 differ, with deviation 0.005.
        assert abs((agent.sample(obs, epsilon=0.6) != best).mean() - 0.4) < 0.025

    def test_an_epsilon_above_one_is_refused(self) -> None:
        agent = self.backend.Agent(self.algorithm("DQN", q_values(self.backend)))
        with pytest.raises(HyperparameterError, match=r"epsilon must lie in \[0, 1\], got 1.5"):
            agent.sample(np.zeros(OBS_DIM, np.float32), epsilon=1.5)

    def test_a_model_with_another_number_of_actions_is_refused(self) -> None:
        agent = self.backend.Agent(self.algorithm("DQN", q_values(self.backend), act_dim=5))
        with pytest.raises(ModelContractError, match=r"must return \[batch, 5\], got \(1, 3\)"):
            agent.predict(np.zeros(OBS_DIM, np.float32))

    def test_a_dictionary_of_settings_works_as_in_parl_1(self) -> None:
        algorithm = self.algorithm("DQN", q_values(self.backend), hyperparas={"gamma": 0.5, "lr": 0.1, "act_dim": 3})
        assert (algorithm.gamma, algorithm.lr, algorithm.act_dim) == (0.5, 0.1, 3)

    def test_a_setting_given_twice_is_refused(self) -> None:
        with pytest.raises(HyperparameterError, match="gamma both in `hyperparas` and as an argument"):
            self.algorithm("DQN", q_values(self.backend), gamma=0.5, hyperparas={"gamma": 0.9})

    @pytest.mark.parametrize(("name", "value"), [("gamma", 1.5), ("gamma", "0.9"), ("lr", 0.0), ("sync_every", 0)])
    def test_settings_out_of_range_are_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(HyperparameterError, match=name):
            self.algorithm("DQN", q_values(self.backend), **{name: value})

    @pytest.mark.parametrize("rate", [-1e-3, float("nan"), "0.1"])
    def test_a_learning_rate_of_a_call_that_is_no_rate_is_refused(self, rate: Any) -> None:
        agent = self.backend.Agent(self.algorithm("DQN", q_values(self.backend)))
        obs = np.zeros((2, OBS_DIM), np.float32)
        with pytest.raises(HyperparameterError, match="learning_rate must be"):
            agent.learn(obs, [0, 1], [0.0, 1.0], obs, [0, 0], learning_rate=rate)

    def test_a_model_without_value_or_forward_is_refused(self) -> None:
        class Nothing(self.backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
            pass

        with pytest.raises(ModelContractError, match="`DQN`'s model needs to implement `value` or `forward` method"):
            self.algorithm("DQN", Nothing())

    def test_it_learns_the_identity_environment(self) -> None:
        rng = np.random.default_rng(8)
        agent = self.backend.Agent(
            self.algorithm("DQN", q_values(self.backend), gamma=0.9, lr=0.02, sync_every=10), seed=9
        )
        for _ in range(150):
            obs, state = discrete_identity(rng, 64)
            action = agent.sample(obs, epsilon=0.3)
            agent.learn(obs, action, action == state, obs, np.ones(64))
        obs, state = discrete_identity(rng, 200)
        assert (agent.predict(obs) == state).mean() > 0.95


def _some_batch(rng: np.random.Generator) -> tuple[Any, ...]:
    obs, next_obs = rng.normal(size=(2, _BATCH, OBS_DIM)).astype(np.float32)
    reward = rng.normal(size=_BATCH).astype(np.float32)
    return obs, rng.integers(ACT_DIM, size=_BATCH), reward, next_obs, rng.random(_BATCH) < 0.3


def _cast(columns: tuple[Any, ...], precision: Precision) -> list[Any]:
    return [array.astype(precision.dtype) if array.dtype == np.float64 else array for array in columns]


def _same(one: Weights, other: Weights) -> bool:
    return all(np.array_equal(array, other[name]) for name, array in one.items())
