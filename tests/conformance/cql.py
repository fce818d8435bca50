"""Tests of CQL that every backend must pass."""

from typing import Any

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Precision, assert_weights_close, in_pairs
from conformance.complex_step import gradient, layers, logsumexp, minimum, squashed_log_prob
from conformance.continuous import BATCH, LR, TAU, ContinuousConformance, columns_of, some_batch
from conformance.continuous_models import SQUASHED_SHAPES, squashed
from conformance.models import ACT_DIM, OBS_DIM
from conformance.reference import Adam
from conformance.reference_continuous import Batch
from parl_core.backends import Backend
from parl_core.errors import HyperparameterError
from parl_core.model import Weights

__all__ = ["CQLConformance"]

_SAMPLES, _WEIGHT, _THRESHOLD = 3, 2.0, 0.5
_ACTOR, _CRITICS = ("pi", "spread"), ("qa", "qb")


class CQLConformance(ContinuousConformance):
    """Suite of CQL; what it shares with SAC is tested as with SAC."""

    NAME = "CQL"
    SHAPES = SQUASHED_SHAPES

    def make(self, backend: Backend, *, deep: bool = False) -> Any:
        return squashed(backend, deep=deep)

    def temperature_settings(self, rate: Any) -> dict[str, Any]:
        del rate
        return {"with_automatic_entropy_tuning": False}

    def agent(self, precision: Precision = FLOAT32, seed: int = 1, **settings: Any) -> Any:
        return super().agent(
            precision,
            seed,
            **{"policy_eval_start": 0, "with_automatic_entropy_tuning": False, "alpha": 0.2, **settings},
        )

    def without_noise(self, agent: Any) -> Any:
        agent.alg._uniform = lambda like: agent.alg._tensor(np.full((agent.alg.samples, *like.shape), 0.3, np.float32))
        return super().without_noise(agent)

    def identity_settings(self) -> dict[str, Any]:
        return {
            **super().identity_settings(),
            "policy_eval_start": 0,
            "with_automatic_entropy_tuning": False,
            "alpha": 0.01,
            "min_q_weight": 0.01,
        }

    @pytest.mark.parametrize("lagrange", [False, True], ids=["fixed", "lagrange"])
    def test_losses_have_the_dtype_of_the_batch(self, precision: Precision, lagrange: bool) -> None:
        alg = self.agent(precision, with_lagrange=lagrange).alg
        columns = columns_of(some_batch(np.random.default_rng(1)), precision)
        losses = alg.learn(*(alg._tensor(column) for column in columns))
        wanted = np.dtype(precision.dtype).name
        assert [str(loss.dtype).rpartition(".")[2] for loss in losses] == [wanted] * len(losses)

    @in_pairs(
        version={"2": 2, "3": 3},
        lagrange={"fixed": False, "lagrange": True},
        learned={"alpha_fixed": False, "alpha_learned": True},
    )
    def test_three_updates_agree_with_the_reference(
        self, precision: Precision, version: int, lagrange: bool, learned: bool
    ) -> None:
        rng = np.random.default_rng(1)
        agent = self.agent(
            precision,
            policy_eval_start=1,  # the first update imitates, the others climb
            with_automatic_entropy_tuning=learned,
            with_lagrange=lagrange,
            lagrange_thresh=_THRESHOLD,
            min_q_version=version,
            min_q_weight=_WEIGHT,
            samples=_SAMPLES,
        )
        weights = agent.alg.model.get_weights(portable=True)
        target = agent.alg.target_model.get_weights(portable=True)
        weights, target = ({name: a.astype(np.float64) for name, a in part.items()} for part in (weights, target))
        actor, critic = Adam(LR), Adam(LR)
        scalars = {"alpha": (Adam(LR), np.zeros(())), "multiplier": (Adam(LR), np.zeros(()))}
        for update in range(3):
            batch = some_batch(rng)
            noises = [rng.normal(size=(BATCH, ACT_DIM)), *rng.normal(size=(2, _SAMPLES, BATCH, ACT_DIM))]
            noises.append(rng.normal(size=(BATCH, ACT_DIM)))
            uniform = rng.uniform(-1.0, 1.0, (_SAMPLES, BATCH, ACT_DIM))
            given = iter(noises)
            agent.alg._noise = lambda _, given=given: agent.alg._tensor(next(given).astype(precision.dtype))
            agent.alg._uniform = lambda _, drawn=uniform: agent.alg._tensor(drawn.astype(precision.dtype))

            alpha = float(np.exp(scalars["alpha"][1])) if learned else 0.2
            actor_loss = _actor_loss(weights, batch, alpha, noises[0], imitates=update == 0)

            def imitation_or_climb(w: Weights, given: tuple[Any, ...] = (batch, alpha, noises[0], update == 0)) -> Any:
                return _actor_loss(w, *given[:3], imitates=given[3])

            slope = gradient(imitation_or_climb, weights, _ACTOR)
            log_prob = _draw(weights, batch.obs, noises[0])[1]
            weights = actor.update(weights, slope)
            if learned:
                adam, value = scalars["alpha"]
                scalars["alpha"] = adam, adam.update({"": value}, {"": -(log_prob.mean() - ACT_DIM)})[""]

            factor = float(np.exp(scalars["multiplier"][1])) if lagrange else 1.0
            candidates = _candidates(weights, batch, uniform, noises[1], noises[2])
            next_action, _ = _draw(weights, batch.next_obs, noises[3])
            v_t = minimum(*(_q(target, name, batch.next_obs, next_action) for name in _CRITICS))
            goal = batch.reward + batch.discount * (1.0 - batch.terminal) * v_t

            def critic_loss(w: Weights, extra: tuple[Any, ...] = (batch, goal, candidates, factor)) -> tuple[Any, Any]:
                return _critic_loss(w, *extra, version=version, threshold=_THRESHOLD if lagrange else 0.0)

            loss, gap = critic_loss(weights)

            def first(w: Weights, both: Any = critic_loss) -> Any:
                return both(w)[0]

            weights = critic.update(weights, gradient(first, weights, _CRITICS))
            if lagrange:
                adam, value = scalars["multiplier"]
                scalars["multiplier"] = adam, adam.update({"": value}, {"": -0.5 * factor * gap})[""]
            target = {name: (1.0 - TAU) * array + TAU * weights[name] for name, array in target.items()}

            found = agent.learn(*columns_of(batch, precision))
            close = precision.tolerance
            np.testing.assert_allclose(found, (loss.real, actor_loss.real), rtol=close, atol=close)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)
        assert_weights_close(agent.alg.target_model.get_weights(portable=True), target, precision.tolerance)
        if lagrange:
            expected = float(np.exp(scalars["multiplier"][1]))
            assert float(agent.alg.multiplier.alpha()) == pytest.approx(expected, abs=precision.tolerance)

    def test_unseen_actions_are_valued_below_those_of_the_data(self) -> None:
        rng = np.random.default_rng(3)
        obs = rng.normal(size=(64, OBS_DIM)).astype(np.float32)
        action = np.full((64, ACT_DIM), 0.5, np.float32)
        differences = []
        for weight in (1e-6, 5.0):
            agent = self.agent(FLOAT32, min_q_weight=weight)
            for _ in range(100):
                agent.learn(obs, action, np.zeros(64), obs, np.ones(64))
            seen, unseen = (np.mean(agent.run(agent.alg.model.value, obs, one * action)[0]) for one in (1.0, -1.0))
            differences.append(seen - unseen)
        assert differences[1] > differences[0] + 1.0

    def test_the_policy_imitates_the_data_at_first(self) -> None:
        rng = np.random.default_rng(4)
        agent = self.agent(FLOAT32, policy_eval_start=10_000, alpha=0.0)
        obs = rng.normal(size=(64, OBS_DIM)).astype(np.float32)
        action = np.full((64, ACT_DIM), 0.6, np.float32)
        for _ in range(200):
            agent.learn(obs, action, np.zeros(64), obs, np.ones(64))
        np.testing.assert_allclose(agent.predict(obs), action, atol=0.15)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("min_q_version", 1),
            ("min_q_weight", 0.0),
            ("policy_eval_start", -1),
            ("samples", 0),
            ("lagrange_thresh", -1.0),
        ],
    )
    def test_its_own_settings_out_of_range_are_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(HyperparameterError, match=name):
            self.algorithm(self.NAME, self.make(self.backend), **{name: value})

    def test_a_temperature_that_is_not_learned_has_to_be_given(self) -> None:
        with pytest.raises(HyperparameterError, match="keeps the temperature at alpha, got None: give a number"):
            self.algorithm(self.NAME, self.make(self.backend), with_automatic_entropy_tuning=False, alpha=None)


def _policy(weights: Weights, obs: Any) -> tuple[Any, Any]:
    return layers(weights, ("pi1", "pi2"), obs), layers(weights, ("pi1", "spread"), obs)


def _draw(weights: Weights, obs: Any, noise: Any) -> tuple[Any, Any]:
    mean, log_std = _policy(weights, obs)
    u = mean + np.exp(log_std) * noise
    return np.tanh(u), squashed_log_prob(u, mean, log_std)


def _q(weights: Weights, name: str, obs: Any, action: Any) -> Any:
    return layers(weights, (f"{name}1", f"{name}2"), np.concatenate([obs, action], axis=-1))[..., 0]


def _actor_loss(weights: Weights, batch: Batch, alpha: float, noise: Any, *, imitates: bool) -> Any:
    action, log_prob = _draw(weights, batch.obs, noise)
    if imitates:
        return (alpha * log_prob - squashed_log_prob(np.arctanh(batch.action), *_policy(weights, batch.obs))).mean()
    return (alpha * log_prob - minimum(*(_q(weights, name, batch.obs, action) for name in _CRITICS))).mean()


def _candidates(weights: Weights, batch: Batch, uniform: Any, noise_next: Any, noise: Any) -> tuple[Any, Any]:
    following, log_next = _draw(weights, batch.next_obs, noise_next)
    current, log_now = _draw(weights, batch.obs, noise)
    flat = np.full(uniform.shape[:2], ACT_DIM * np.log(0.5))  # density of a box of side 2
    return np.concatenate([uniform, following, current]), np.concatenate([flat, log_next, log_now])


def _critic_loss(
    weights: Weights,
    batch: Batch,
    goal: Any,
    candidates: tuple[Any, Any],
    factor: float,
    *,
    version: int,
    threshold: float,
) -> tuple[Any, Any]:
    actions, log_probs = candidates
    loss, gap = 0.0, 0.0
    for name in _CRITICS:
        q = _q(weights, name, batch.obs, batch.action)
        obs = np.broadcast_to(batch.obs, (*actions.shape[:2], OBS_DIM))
        energy = _q(weights, name, obs, actions)
        energy = energy - log_probs if version == 3 else np.concatenate([energy, q[None]])
        above = _WEIGHT * (logsumexp(energy) - q).mean() - threshold
        loss, gap = loss + ((q - goal) ** 2).mean() + factor * above, gap + above
    return loss, gap
