"""Tests of bootstrapped DDPG that every backend must pass."""

from typing import Any

import numpy as np
import pytest

from conformance import headed_models as reference
from conformance.adapter import FLOAT32, Precision, assert_weights_close, random_weights
from conformance.continuous import BATCH, GAMMA, LR, TAU, ContinuousConformance, columns_of, some_batch
from conformance.continuous_models import DETERMINISTIC_SHAPES, deterministic
from conformance.headed_models import HEADED_SHAPES, HEADS, HeadedLearner, headed
from conformance.models import ACT_DIM, OBS_DIM
from parl_core.backends import Backend
from parl_core.errors import HyperparameterError, ModelContractError

__all__ = ["BootstrappedDDPGConformance"]


class BootstrappedDDPGConformance(ContinuousConformance):
    """Suite of bootstrapped DDPG."""

    NAME = "BootstrappedDDPG"
    SHAPES = HEADED_SHAPES

    def make(self, backend: Backend, *, deep: bool = False) -> Any:
        return headed(backend, deep=deep)

    @pytest.mark.parametrize("extras", [False, True], ids=["one_step", "n_step_prioritised"])
    @pytest.mark.parametrize("masks", ["none", "bernoulli", "poisson"])
    def test_three_updates_agree_with_the_reference(self, precision: Precision, extras: bool, masks: str) -> None:
        rng = np.random.default_rng(1)
        learner = HeadedLearner(random_weights(rng, self.SHAPES), random_weights(rng, self.SHAPES), LR)
        agent = self.agent(precision)
        for _ in range(3):
            batch = some_batch(rng, extras=extras)
            drawn = {"bernoulli": rng.random((BATCH, HEADS)) < 0.5, "poisson": rng.poisson(1.0, (BATCH, HEADS))}
            mask = drawn.get(masks, np.ones((BATCH, HEADS))).astype(precision.dtype)
            critic_loss, error = learner.critic_step(batch, mask)
            actor_loss = learner.actor_step(batch.obs, mask)
            learner.move_target(TAU)

            options: dict[str, Any] = {} if masks == "none" else {"mask": mask}
            found = self.learn(agent, batch, precision, extras=extras, **options)
            np.testing.assert_allclose(found[:2], (critic_loss, actor_loss), atol=precision.tolerance)
            if extras:
                np.testing.assert_allclose(found[2], error, atol=precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), learner.weights, precision.tolerance)
        assert_weights_close(agent.alg.target_model.get_weights(portable=True), learner.target, precision.tolerance)

    @pytest.mark.parametrize("head", range(HEADS))
    def test_gradients_do_not_cross_heads(self, head: int) -> None:
        agent = self.agent()
        before = agent.alg.model.get_weights(portable=True)
        mask = np.zeros((BATCH, HEADS), np.float32)
        mask[:, head] = 1.0
        agent.learn(*columns_of(some_batch(np.random.default_rng(2)), FLOAT32), mask=mask)
        after = agent.alg.model.get_weights(portable=True)
        for other in range(HEADS):
            rows = slice(other * ACT_DIM, (other + 1) * ACT_DIM)
            pairs = [(before[f"pi2.{part}"][rows], after[f"pi2.{part}"][rows]) for part in ("weight", "bias")]
            pairs += [(before[name], after[name]) for name in before if name.startswith(f"q{other}")]
            assert [not np.array_equal(old, new) for old, new in pairs] == [other == head] * len(pairs)
        for shared in ("pi1.weight", "f1.weight"):
            assert not np.array_equal(before[shared], after[shared])

    def test_a_mask_of_ones_is_no_mask(self) -> None:
        results = []
        for options in ({}, {"mask": np.ones((BATCH, HEADS), np.int64)}):
            agent = self.agent()
            agent.learn(*columns_of(some_batch(np.random.default_rng(2)), FLOAT32), **options)
            results.append(agent.get_weights())
        for name, array in results[0].items():
            np.testing.assert_allclose(results[1][name], array, atol=1e-7, err_msg=name)

    def test_one_head_without_a_mask_is_ddpg(self, precision: Precision) -> None:
        base: Any = self.backend.Model

        class OneHead(base):  # type: ignore[misc]  # the base is known only at run time
            def __init__(self, inner: Any) -> None:
                self.inner = inner

            def policy(self, obs: Any) -> Any:
                return self.inner.policy(obs).unsqueeze(1)

            def value(self, obs: Any, action: Any) -> Any:
                return self.inner.value(obs, action[:, 0])

            def get_actor_params(self) -> Any:
                return self.inner.get_actor_params()

        weights = random_weights(np.random.default_rng(3), DETERMINISTIC_SHAPES)
        found = {}
        for name in ("DDPG", self.NAME):
            inner = self.model(deterministic, weights, precision)
            model = OneHead(inner) if name == self.NAME else inner
            agent = self.backend.Agent(self.algorithm(name, model, gamma=GAMMA, tau=TAU, actor_lr=LR, critic_lr=LR))
            columns = columns_of(some_batch(np.random.default_rng(2)), precision)
            losses = [agent.learn(*columns) for _ in range(3)]
            found[name] = losses, inner.get_weights()
        np.testing.assert_allclose(found[self.NAME][0], found["DDPG"][0], atol=precision.tolerance)
        assert_weights_close(found[self.NAME][1], found["DDPG"][1], precision.tolerance)

    def test_together_the_heads_take_the_mean_or_what_the_critics_value_most(self) -> None:
        obs = np.random.default_rng(4).normal(size=(20, OBS_DIM)).astype(np.float32)
        weights = random_weights(np.random.default_rng(1), self.SHAPES)
        proposals = reference.actions(weights, obs)
        np.testing.assert_allclose(self.agent().predict(obs), proposals.mean(axis=1), atol=1e-5)

        by_all = [
            reference.values(weights, obs, np.repeat(proposals[:, head : head + 1], HEADS, axis=1)).mean(axis=1)
            for head in range(HEADS)
        ]
        best = np.argmax(by_all, axis=0)
        assert len(set(best.tolist())) > 1
        voted = self.agent(ensemble="vote").predict(obs)
        np.testing.assert_allclose(voted, proposals[np.arange(20), best], atol=1e-5)

    def test_a_head_acts_alone_with_noise_of_the_deviation_asked_for(self) -> None:
        agent = self.agent()
        obs = 0.1 * np.random.default_rng(4).normal(size=(HEADS, OBS_DIM)).astype(np.float32)
        expected = reference.actions(random_weights(np.random.default_rng(1), self.SHAPES), obs)
        for head in range(HEADS):
            np.testing.assert_allclose(agent.sample(obs, head=head, noise=0.0), expected[:, head], atol=1e-5)
            np.testing.assert_allclose(agent.sample(obs[1], head=head, noise=0.0), expected[1, head], atol=1e-5)
        each = agent.sample(obs, head=np.arange(HEADS), noise=0.0)
        np.testing.assert_allclose(each, expected[np.arange(HEADS), np.arange(HEADS)], atol=1e-5)
        drawn = agent.sample(np.repeat(obs[:1], 20_000, axis=0), head=0, noise=0.01)
        np.testing.assert_allclose(drawn.std(axis=0), 0.01, rtol=0.05)

    def test_without_a_head_every_row_draws_one(self) -> None:
        agent = self.agent()
        obs = np.repeat(np.random.default_rng(4).normal(size=(1, OBS_DIM)), 3000, axis=0).astype(np.float32)
        proposals = reference.actions(random_weights(np.random.default_rng(1), self.SHAPES), obs[:1])[0]
        distance = np.abs(agent.sample(obs, noise=0.0)[:, None] - proposals).max(axis=2)
        assert distance.min(axis=1).max() < 1e-5
        shares = np.bincount(distance.argmin(axis=1), minlength=HEADS) / len(obs)
        np.testing.assert_allclose(shares, 1.0 / HEADS, atol=0.05)

    def test_samples_are_repeated_with_their_seed(self) -> None:
        agent, obs = self.agent(), np.ones((5, OBS_DIM), np.float32)
        drawn = []
        for _ in range(2):
            with agent.drawing_from(11):
                drawn.append(agent.sample(obs))
        np.testing.assert_array_equal(*drawn)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"head": HEADS}, rf"head must be in 0..{HEADS - 1}, got {HEADS}"),
            ({"head": -1}, r"head must be in .* got -1"),
            ({"head": 0.5}, r"head must be a whole number, .* got 0.5"),
            ({"head": np.zeros(3, np.int64)}, r"one for each of the 2 rows"),
            ({"noise": -0.1}, r"noise must be at least 0, got -0.1"),
        ],
    )
    def test_what_cannot_act_is_refused(self, options: Any, message: str) -> None:
        with pytest.raises(HyperparameterError, match=message):
            self.agent().sample(np.zeros((2, OBS_DIM), np.float32), **options)

    @pytest.mark.parametrize(
        ("mask", "message"),
        [
            (np.ones((BATCH, HEADS + 1)), rf"mask must have shape \[{BATCH}, {HEADS}\] .*got \[{BATCH}, {HEADS + 1}\]"),
            (np.ones(BATCH), "mask must have shape"),
            (np.full((BATCH, HEADS), -1.0), "mask must hold finite numbers of at least 0"),
            (np.full((BATCH, HEADS), np.nan), "mask must hold finite numbers of at least 0"),
        ],
    )
    def test_a_mask_that_is_none_is_refused_before_anything_is_learned(self, mask: Any, message: str) -> None:
        agent = self.agent()
        before = agent.get_weights()
        with pytest.raises(ValueError, match=message):
            agent.learn(*columns_of(some_batch(np.random.default_rng(2)), FLOAT32), mask=mask)
        for name, array in agent.get_weights().items():
            np.testing.assert_array_equal(array, before[name], err_msg=name)

    @pytest.mark.parametrize("method", ["policy", "value"])
    def test_a_model_without_heads_is_refused_by_method_and_shape(self, method: str) -> None:
        agent = self.agent()
        own = getattr(agent.alg.model, method)
        setattr(agent.alg.model, method, lambda *inputs: own(*inputs)[:, 0])
        with pytest.raises(ModelContractError, match=rf"\.{method} has to return \[batch, heads.*it returned \[3"):
            agent.learn(*columns_of(some_batch(np.random.default_rng(2)), FLOAT32))

    def test_an_unknown_ensemble_is_refused(self) -> None:
        with pytest.raises(HyperparameterError, match="ensemble must be one of 'mean', 'vote', got 'best'"):
            self.algorithm(self.NAME, self.make(self.backend), ensemble="best")
