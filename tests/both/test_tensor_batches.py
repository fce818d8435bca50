"""Batches of tensors are looked at like batches of arrays, but for their numbers."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import parl
from parl_core.contracts.batches import Fragment, Rollout, TeamRollout, Transitions
from parl_core.env.joint import JointEnv
from parl_core.env.matrix_games import climbing
from parl_core.errors import ModelContractError

pytestmark = pytest.mark.usefixtures("on_the_cpu")

WAYS: dict[str, Callable[[parl.Agent, Rollout], Any]] = {
    "algorithm.learn": lambda agent, batch: agent.alg.learn(batch),
    "agent.learn": lambda agent, batch: agent.learn(batch),
    "agent.learn_rollout": lambda agent, batch: agent.learn_rollout(batch, rng=np.random.default_rng(1)),
}


class Flat(parl.Model):
    """Has a standard deviation of 0, and one critic where algorithms look for two."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.critic = parl.layers.fc(size=2), parl.layers.fc(size=1)

    def policy(self, obs: Any) -> Any:
        mean = self.mean(obs)
        return mean, 0.0 * mean

    def value(self, obs: Any, action: Any = None) -> Any:
        return self.critic(obs)

    def get_actor_params(self) -> Any:
        return self.mean.parameters()

    def get_critic_params(self) -> Any:
        return self.critic.parameters()


def rollout(algorithm: Any) -> Rollout:
    of_each = {name: algorithm._tensor(np.ones(8, np.float32)) for name in Rollout.NUMBERS}
    return Rollout(algorithm._tensor(np.ones((8, 3), np.float32)), algorithm._tensor(np.zeros((8, 2))), **of_each)


@pytest.mark.parametrize("learn", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("name", ["PPO", "A2C"])
def test_a_standard_deviation_of_0_is_refused(name: str, learn: Callable[[parl.Agent, Rollout], Any]) -> None:
    agent = parl.Agent(getattr(parl.algorithms, name)(Flat(), continuous_action=True))
    with pytest.raises(ModelContractError, match=r"it returned a std of -?0:"):
        learn(agent, rollout(agent.alg))


def test_a_critic_that_returns_no_pair_is_refused() -> None:
    algorithm = parl.algorithms.SAC(Flat())
    ones = algorithm._tensor(np.ones(8, np.float32))
    obs, action = algorithm._tensor(np.ones((8, 3), np.float32)), algorithm._tensor(np.zeros((8, 2), np.float32))
    with pytest.raises(ModelContractError, match=r"Flat\.value has to return the pair"):
        algorithm.learn(Transitions(obs, action, ones, obs, 0.0 * ones))


def test_columns_of_tensors_need_equally_many_rows() -> None:
    algorithm = parl.algorithms.A2C(Flat(), continuous_action=True)
    obs, some = algorithm._tensor(np.ones((8, 3), np.float32)), algorithm._tensor(np.ones(7, np.float32))
    with pytest.raises(ValueError, match=r"same number of rows, at least one; got obs \(8, 3\), action \(8, 2\)"):
        algorithm.learn(obs, algorithm._tensor(np.ones((8, 2), np.float32)), some, some)


def team(name: str, env: JointEnv) -> parl.Agent:
    kind: Any = "counterfactual" if name == "COMA" else "central"
    model = parl.networks.for_team(env.observation_space, env.action_space, kind)
    sizes = {"n_actions": 3, "n_agents": 2} if name == "COMA" else {}
    agent = parl.Agent(getattr(parl.algorithms, name)(model, **sizes))
    obs = {key: np.asarray(part)[None] for key, part in env.reset()[0].items()}
    agent.sample(obs)
    rng = np.random.default_rng(2)
    agent.set_weights({key: rng.normal(size=array.shape) for key, array in agent.get_weights().items()})
    return agent


@pytest.mark.parametrize("way", ["algorithm.learn", "agent.learn"])
@pytest.mark.parametrize("name", ["MAPPO", "COMA"])
def test_all_agents_acted_where_a_batch_does_not_say_who_did(name: str, way: str) -> None:
    env = JointEnv(climbing())
    obs = {key: np.repeat(np.asarray(part)[None], 4, axis=0) for key, part in env.reset()[0].items()}
    found = []
    for says_so in (False, True):
        agent = team(name, env)
        numbers = agent.alg._tensor(np.linspace(-1.0, 0.0, 8, dtype=np.float32).reshape(4, 2))
        action = agent.alg._tensor(np.arange(8, dtype=np.int64).reshape(4, 2) % 3)
        active = {"active": numbers * 0.0 + 1.0} if says_so else {}
        seen = {key: agent.alg._tensor(array) for key, array in obs.items()}
        WAYS[way](agent, TeamRollout(seen, action, **dict.fromkeys(Rollout.NUMBERS, numbers), **active))
        found.append(agent.get_weights())
    for key, array in found[1].items():
        np.testing.assert_array_equal(found[0][key], array, err_msg=key)


CHOICES = {"DQN": "QNetwork", "DDQN": "QNetwork", "ApeX": "QNetwork", "OfflineQ": "QNetwork"}
CHOICES |= {"C51": "CategoricalNetwork", "QRDQN": "QuantileNetwork", "DiscreteSAC": "DiscreteActorCritic"}
NUMBERS = {"DDPG": "DeterministicActorCritic", "TD3": "TwinActorCritic", "TD3BC": "TwinActorCritic"}
NUMBERS |= dict.fromkeys(("SAC", "OAC", "CQL"), "SquashedActorCritic")
NUMBERS |= {"TQC": "QuantileActorCritic", "REDQ": "EnsembleActorCritic", "CrossQ": "BatchNormActorCritic"}
NUMBERS |= {"IQL": "ImplicitActorCritic", "AWAC": "GaussianActorCritic"}
ON_POLICY = {"PPO": "ActorCritic", "A2C": "ActorCritic", "PolicyGradient": "PolicyNetwork", "IMPALA": "ActorCritic"}


def learner(name: str) -> parl.Agent:
    network: Any = getattr(parl.networks, {**CHOICES, **NUMBERS, **ON_POLICY}[name])
    settings = {"sample_batch_steps": 4} if name == "IMPALA" else {}
    return parl.Agent(getattr(parl.algorithms, name)(network(2, hidden=(8,)), **settings))


def columns(name: str) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    obs, next_obs = rng.normal(size=(2, 8, 3)).astype(np.float32)
    reward, *others = rng.normal(size=(4, 8)).astype(np.float32)
    action = rng.uniform(-1.0, 1.0, (8, 2)).astype(np.float32) if name in NUMBERS else rng.integers(2, size=8)
    if name == "IMPALA":
        logits = rng.normal(size=(8, 2)).astype(np.float32)
        return {"obs": obs, "action": action, "behaviour_logits": logits, "reward": reward, "done": reward > 1.0}
    if name in ON_POLICY:
        return {"obs": obs, "action": action, **dict(zip(Rollout.NUMBERS, (reward, *others), strict=True))}
    return {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "terminal": reward > 1.0}


@pytest.mark.parametrize(
    ("way", "wide"),
    [
        pytest.param("algorithm.learn", ("reward", "advantage"), id="algorithm.learn-one column"),
        pytest.param("agent.learn", (), id="agent.learn-all columns"),
        pytest.param("agent.learn", ("reward", "advantage"), id="agent.learn-one column", marks=pytest.mark.slow),
        pytest.param("algorithm.learn", (), id="algorithm.learn-all columns", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", [*CHOICES, *NUMBERS, *ON_POLICY])
def test_tensors_of_floats_become_those_of_the_model(name: str, way: str, wide: tuple[str, ...]) -> None:
    agent = learner(name)
    kind: Any = Fragment if name == "IMPALA" else Rollout if name in ON_POLICY else Transitions
    found: list[Any] = []
    for dtype in (np.float32, np.float64):
        one = copy.deepcopy(agent)
        given = {
            column: array.astype(dtype) if array.dtype.kind == "f" and (not wide or column in wide) else array
            for column, array in columns(name).items()
        }
        batch = kind(**{column: one.alg._exact_tensor(array) for column, array in given.items()})
        with one.drawing_from(1):
            found.append((one.alg._read(WAYS[way](one, batch)), one.get_weights()))
    (result, weights), (result_wide, weights_wide) = found
    assert result_wide == result
    for part, array in weights_wide.items():
        np.testing.assert_array_equal(array, weights[part], err_msg=part)


def numbers_of(result: Any) -> list[Any]:
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, tuple) else [result]
    return [number for part in parts if part is not None for number in np.ravel(part)]


@pytest.mark.parametrize(
    ("way", "dtype"),
    [
        ("algorithm.learn", "bool"),
        ("agent.learn", "int64"),
        pytest.param("agent.learn", "bool", marks=pytest.mark.slow),
        pytest.param("algorithm.learn", "int64", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", [*CHOICES, *NUMBERS, *ON_POLICY])
def test_tensors_of_whole_numbers_and_flags_are_taken_like_arrays(name: str, way: str, dtype: str) -> None:
    agent = learner(name)
    kind: Any = Fragment if name == "IMPALA" else Rollout if name in ON_POLICY else Transitions
    given = columns(name)
    for column in given.keys() & {"reward", "terminal", "done", "value", "return_", "log_prob", "advantage"}:
        given[column] = (np.arange(8) % 3 == 0).astype(np.float32)
    found: list[Any] = []
    for one in (copy.deepcopy(agent), agent):
        tensors = {column: one.alg._exact_tensor(array) for column, array in given.items()}
        with one.drawing_from(1):
            found.append((one.alg._read(WAYS[way](one, kind(**tensors))), one.get_weights()))
        given = {name: part.astype(dtype)[:, None] if part.ndim == 1 else part for name, part in given.items()}
    (result, weights), (result_whole, weights_whole) = found
    np.testing.assert_allclose(numbers_of(result_whole), numbers_of(result), rtol=1e-5)
    for part, array in weights_whole.items():
        np.testing.assert_allclose(array, weights[part], rtol=1e-5, atol=1e-8, err_msg=part)


@pytest.mark.parametrize("name", ["TD3", "IQL"])
def test_a_copy_that_has_not_learned_learns_with_its_own_model(name: str) -> None:
    agent = learner(name)
    found = []
    for one in (copy.deepcopy(agent), agent):
        with one.drawing_from(1):
            for _ in range(2):
                one.learn(Transitions(**columns(name)))
                found.append(one.get_weights())
    first, copied, _, original = found
    for part, array in original.items():
        np.testing.assert_array_equal(copied[part], array, err_msg=part)
        assert not np.array_equal(copied[part], first[part]), part
