"""The on-policy loop with the algorithms of a backend: every kind of action, and time limits."""

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest

from conformance.adapter import Conformance, random_weights
from conformance.identity import IdentityEnv
from conformance.models import (
    ACT_DIM,
    OBS_DIM,
    actor_critic,
    gaussian_actor_critic,
    of_dictionaries,
    probabilities,
)
from conformance.reference_policies import DISCRETE
from parl_core.contracts.batches import RolloutBatch
from parl_core.env.vector import make_vector_env
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.training.evaluation import evaluate
from parl_core.training.on_policy import OnPolicySettings, RolloutCollector, train_on_policy

__all__ = ["OnPolicyConformance"]

_MULTI = {"nvec": (2, 2)}
_GAUSSIAN = {"continuous_action": True}
_ENDLESS = 1000


class OneReward(gymnasium.Env[Any, Any]):
    """Observes nothing; each step gives 1; the episode ends, or is cut, after so many steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (OBS_DIM,), np.float32)
    action_space = gymnasium.spaces.Discrete(ACT_DIM)

    def __init__(self, ends: int = _ENDLESS, cut: int = _ENDLESS) -> None:
        self._ends, self._cut = ends, cut

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(OBS_DIM, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        over = self._step == self._ends, self._step == self._cut
        return np.zeros(OBS_DIM, np.float32), 1.0, *over, {}


class OnPolicyConformance(Conformance):
    """Suite of the on-policy loop."""

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            *itertools.product(("PPO", "A2C"), ("discrete", "multi", "continuous", "masked")),
            ("PolicyGradient", "discrete"),
            ("PolicyGradient", "continuous"),
        ],
    )
    def test_it_learns_the_identity_environment(self, name: str, kind: str) -> None:
        numbers = kind == "continuous"
        settings: dict[str, Any] = {
            "PPO": {"initial_lr": 0.02 if numbers else 0.03, "clip_param": 0.2},
            "A2C": {"learning_rate": 0.02 if numbers else 0.03, "entropy_coeff": 0.0},
            "PolicyGradient": {"lr": 0.01 if numbers else 0.05},
        }[name]
        agent = self.backend.Agent(self._algorithm(name, kind, settings))
        n_steps = 8 if numbers or name == "PPO" else 4
        rollouts = (20 if numbers else 10) if name == "PPO" else 60
        passes: dict[str, Any] = {"epochs": 5, "minibatch_size": 64} if name == "PPO" else {}
        loop = OnPolicySettings(16 * n_steps * rollouts, n_steps=n_steps, gae_lambda=1.0, **passes)
        with make_vector_env(IdentityEnv, 16, env_kwargs={"kind": kind}) as envs:
            train_on_policy(agent, envs, loop, seed=1)
        goal = {"continuous": -0.3, "multi": 1.9}.get(kind, 0.95)
        assert evaluate(agent, IdentityEnv, 100, env_kwargs={"kind": kind}).mean > goal

    @pytest.mark.parametrize("name", ["PPO", "A2C"])
    def test_truncation_bootstraps_and_termination_does_not(self, name: str) -> None:
        # Weights are 0, so every value is the bias, 10. With gamma 0.9 and lambda 0 an advantage is 1 + 9 - 10 = 0
        # where a state follows, seen or not, and 1 - 10 = -9 where the episode terminated.
        weights = {key: np.zeros_like(array) for key, array in random_weights(self._rng(), DISCRETE.shapes).items()}
        weights["v2.bias"] = np.array([10.0])
        for env_kwargs, last in (({"cut": 2}, 0.0), ({"ends": 2}, -9.0), ({"ends": 2, "cut": 2}, -9.0)):
            agent = Remembering(self.backend.Agent(self.algorithm(name, self.model(actor_critic, weights))))
            settings = OnPolicySettings(total_steps=4, n_steps=4, gamma=0.9, gae_lambda=0.0)
            with make_vector_env(OneReward, 1, env_kwargs=env_kwargs) as envs:
                train_on_policy(agent, envs, settings, seed=1)
            np.testing.assert_allclose(agent.batch.advantage, [0.0, last, 0.0, last], atol=1e-5)
            np.testing.assert_allclose(agent.batch.return_, 10.0 + agent.batch.advantage, atol=1e-5)

    def test_what_an_algorithm_was_made_with_holds_unless_the_loop_is_given_something_else(self) -> None:
        found = []
        cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"initial_lr": 0.05, "clip_param": 0.4, "entropy_coef": 0.3}, {}),
            ({}, {"lr": 0.05, "clip": 0.4, "entropy_coef": 0.3}),
            ({}, {}),
        ]
        for made, given in cases:
            model = self.model(actor_critic, random_weights(self._rng(), DISCRETE.shapes))
            self.adapter.seed(3)
            agent = self.backend.Agent(self.algorithm("PPO", model, **made))
            loop = OnPolicySettings(total_steps=32, n_steps=8, epochs=2, minibatch_size=8, **given)
            with make_vector_env(IdentityEnv, 2, env_kwargs={"kind": "discrete"}) as envs:
                train_on_policy(agent, envs, loop, seed=1)
            found.append(agent.get_weights()["pi1.weight"])
        np.testing.assert_array_equal(found[0], found[1])
        assert not np.allclose(found[0], found[2])

    def test_schedules_of_the_loop_follow_environment_steps(self) -> None:
        agent = Remembering(self.backend.Agent(self.algorithm("PPO", actor_critic(self.backend))))
        loop = OnPolicySettings(
            total_steps=48, n_steps=8, epochs=1, lr=lambda step: 0.1 / (1 + step), entropy_coef=lambda step: step / 100
        )
        with make_vector_env(IdentityEnv, 2, env_kwargs={"kind": "discrete"}) as envs:
            train_on_policy(agent, envs, loop, seed=1)
        assert [given["lr"] for given in agent.given] == [0.1, 0.1 / 17, 0.1 / 33]
        assert [given["entropy_coef"] for given in agent.given] == [0.0, 0.16, 0.32]
        assert all("clip" not in given for given in agent.given)

    @pytest.mark.parametrize("name", ["PPO", "A2C", "PolicyGradient"])
    def test_an_action_that_the_policy_does_not_have_is_refused(self, name: str) -> None:
        agent = self.backend.Agent(self._algorithm(name, "discrete", {}))
        column = np.zeros(2, np.float32)
        batch = RolloutBatch(np.zeros((2, OBS_DIM), np.float32), np.array([0, ACT_DIM]), *[column] * 4)
        with pytest.raises(ValueError, match=r"must be in 0\.\.2, got 0\.\.3"):
            agent.learn_rollout(batch, rng=self._rng())

    def test_an_algorithm_that_does_not_learn_on_policy_is_refused_by_name(self) -> None:
        agent = self.backend.Agent(self.algorithm("IMPALA", actor_critic(self.backend), sample_batch_steps=4))
        with (
            make_vector_env(IdentityEnv, 2, env_kwargs={"kind": "discrete"}) as envs,
            pytest.raises(TypeError, match="such as PPO or A2C; this agent's is IMPALA"),
        ):
            RolloutCollector(agent, envs, 4, seed=1).collect()

    def test_a_policy_of_another_size_than_the_action_space_is_refused(self) -> None:
        agent = self.backend.Agent(self.algorithm("PPO", gaussian_actor_critic(self.backend), **_GAUSSIAN))
        with (
            make_vector_env("Pendulum-v1", 1) as envs,
            pytest.raises(HyperparameterError, match=r"actions of shape \[1\], the policy chooses \[3\]"),
        ):
            RolloutCollector(agent, envs, 4, seed=1).collect()

    def test_a_policy_with_fewer_outputs_than_choices_is_refused(self) -> None:
        agent = self.backend.Agent(self.algorithm("PPO", actor_critic(self.backend)))
        space = gymnasium.spaces.Discrete(7)

        def seven_choices() -> Any:
            return gymnasium.wrappers.TransformAction(IdentityEnv("discrete"), lambda _: 0, space)

        with (
            make_vector_env(seven_choices, 2) as envs,
            pytest.raises(ModelContractError, match=r"actions Discrete\(7\), .*\.policy gives . logits"),
        ):
            RolloutCollector(agent, envs, 4, seed=1)

    def test_a_policy_that_returns_no_tensor_is_refused_before_the_loop(self) -> None:
        base = self.backend.Model
        layers: Any = self.backend.layers

        class Distributing(base):  # type: ignore[valid-type,misc]  # the base is known only at run time
            def __init__(self) -> None:
                self.fc = layers.fc(size=ACT_DIM)

            def policy(self, obs: Any) -> Any:
                return {"distribution": self.fc(obs)}

            def value(self, obs: Any) -> Any:
                return self.fc(obs)[:, :1]

        agent = self.backend.Agent(self.algorithm("PPO", Distributing()))
        with (
            make_vector_env(OneReward, 2) as envs,
            pytest.raises(ModelContractError, match=r"Distributing.policy has to return logits.*returned a dict"),
        ):
            train_on_policy(agent, envs, OnPolicySettings(total_steps=8, n_steps=4))

    @pytest.mark.parametrize("of_model", [False, True])
    def test_a_loop_learns_in_training_mode_also_where_an_evaluation_left_it(self, of_model: bool) -> None:
        base = self.backend.Model
        layers: Any = self.backend.layers
        seen: list[bool] = []

        class Watching(base):  # type: ignore[valid-type,misc]  # the base is known only at run time
            def __init__(self) -> None:
                self.fc = layers.fc(size=ACT_DIM)

            def policy(self, obs: Any) -> Any:
                seen.append(self.training)
                return self.fc(obs)

            def value(self, obs: Any) -> Any:
                return self.fc(obs)[:, :1]

        agent = self.backend.Agent(self.algorithm("PPO", Watching()))
        evaluated = agent.alg.model if of_model else agent

        def evaluation() -> Any:
            found = evaluate(agent, lambda: OneReward(cut=2), 1)
            evaluated.eval()
            return found

        evaluated.eval()
        settings = OnPolicySettings(total_steps=24, n_steps=4, epochs=1, minibatch_size=8)
        with make_vector_env(OneReward, 2) as envs:
            train_on_policy(agent, envs, settings, evaluator=evaluation, evaluate_every=8)
        assert seen.count(True) == 3  # one for each rollout
        assert agent.training
        assert agent.alg.model.training

    def _algorithm(self, name: str, kind: str, settings: dict[str, Any]) -> Any:
        if name == "PolicyGradient":
            if kind == "discrete":
                return self.algorithm(name, probabilities(self.backend), **settings)
            return self.algorithm(name, _policy_alone(self.backend), **_GAUSSIAN, **settings)
        if kind == "continuous":
            return self.algorithm(name, gaussian_actor_critic(self.backend), **_GAUSSIAN, **settings)
        if kind == "multi":
            return self.algorithm(name, actor_critic(self.backend, 4), **_MULTI, **settings)
        model = actor_critic(self.backend)
        if kind == "masked":
            model = of_dictionaries(self.backend, model, "state")
        return self.algorithm(name, model, **settings)

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(2)


class Remembering:
    """An agent that keeps what it is given to learn from."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self.given: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def learn_rollout(self, batch: Any, **given: Any) -> Any:
        self.batch = batch
        self.given.append(given)
        return self._agent.learn_rollout(batch, **given)


def _policy_alone(backend: Any) -> Any:
    inner = gaussian_actor_critic(backend)

    class PolicyAlone(backend.Model):  # type: ignore[misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.inner = inner

        def policy(self, obs: Any) -> Any:
            return self.inner.policy(obs)

    return PolicyAlone()
