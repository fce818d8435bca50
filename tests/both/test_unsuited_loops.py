"""An algorithm in a loop that does not suit it, or with settings that it does not have, is refused at once."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import gymnasium
import numpy as np
import pytest

import parl
from conformance.continuous_models import squashed
from conformance.iql import iql_model
from conformance.models import actor_critic, q_values, separate_actor_critic
from parl_core import backends
from parl_core.errors import DatasetError, EnvironmentContractError, HyperparameterError, ModelContractError
from parl_core.offline import OfflineDataset
from parl_core.training import (
    ActorLearnerSettings,
    OffPolicySettings,
    OnPolicySettings,
    evaluate,
    make_vector_env,
    train_actor_learner,
    train_off_policy,
    train_on_policy,
)
from parl_core.training.apex import ApexSettings, train_apex
from parl_core.training.offline import OfflineSettings, evaluate_with_target_return, train_offline

MODELS = {
    "DQN": q_values,
    "PPO": actor_critic,
    "A2C": actor_critic,
    "IMPALA": actor_critic,
    "SAC": squashed,
    "IQL": iql_model,
}
SETTINGS = OffPolicySettings(total_steps=10, learning_starts=5, batch_size=4, memory_size=10)


def agent(name: str) -> Any:
    own = {"sample_batch_steps": 50} if name == "IMPALA" else {}
    return parl.Agent(getattr(parl.algorithms, name)(MODELS[name](backends.current()), device="cpu", **own))


def train_on_policy_with(agent: Any) -> None:
    with make_vector_env("CartPole-v1", 2) as envs:
        train_on_policy(agent, envs, OnPolicySettings(total_steps=32, n_steps=8), seed=0)


@pytest.mark.parametrize(("method", "called"), [("learn", "learn_rollout"), ("sample", "explore")])
def test_a_method_of_an_agent_that_the_loop_would_not_call_is_refused(method: str, called: str) -> None:
    def own(*_: Any, **__: Any) -> None:
        raise AssertionError("the loop calls it")

    algorithm = parl.algorithms.A2C(parl.networks.ActorCritic(2), device="cpu")
    with pytest.raises(HyperparameterError, match=rf"calls {called}, so that Own.{method} would not run"):
        train_on_policy_with(type("Own", (parl.Agent,), {method: own})(algorithm))
    both = type("Own", (parl.Agent,), {method: own, called: own})(algorithm)
    with pytest.raises(AssertionError, match="the loop calls it"):
        train_on_policy_with(both)


@pytest.mark.parametrize(
    ("name", "method", "refused"),
    [("PPO", "learn", True), ("A2C", "learn", False), ("A2C", "sample", True), ("PPO", "sample", False)],
)
def test_a_method_of_an_algorithm_is_called_or_refused(name: str, method: str, refused: bool) -> None:
    def own(*_: Any, **__: Any) -> None:
        raise AssertionError("the loop calls it")

    kind: Any = type("Own", (getattr(parl.algorithms, name),), {method: own})
    algorithm = kind(parl.networks.ActorCritic(2), device="cpu")
    expected = (
        pytest.raises(HyperparameterError, match=f"so that Own.{method} would not run")
        if refused
        else pytest.raises(AssertionError, match="the loop calls it")
    )
    with expected:
        train_on_policy_with(parl.Agent(algorithm))


def transformer(**sizes: Any) -> Any:
    module = import_module(f"parl_{backends.current().name}.transformer")
    model = module.TrajectoryTransformer(**{"obs_dim": 3, "act_dim": 1, "hidden": 8, "layers": 1, **sizes})
    return parl.Agent(parl.algorithms.DecisionTransformer(model, device="cpu", context=3))


@pytest.mark.parametrize("name", ["PPO", "A2C", "IQL"])
def test_the_off_policy_loop_names_the_loop_of_another_algorithm(name: str) -> None:
    message = (
        f"train_off_policy cannot train {name}, which .*: .*PPO, A2C.* with train_on_policy; .*IQL.* with train_offline"
    )
    with make_vector_env("CartPole-v1", 1) as envs, pytest.raises(HyperparameterError, match=message):
        train_off_policy(agent(name), envs, SETTINGS)


@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_the_on_policy_loop_names_the_loop_of_another_algorithm(name: str) -> None:
    message = f"train_on_policy cannot train {name}, which .*: DQN.* train_off_policy"
    with make_vector_env("CartPole-v1", 1) as envs, pytest.raises(HyperparameterError, match=message):
        train_on_policy(agent(name), envs, OnPolicySettings(total_steps=8, n_steps=8))


def test_the_on_policy_loop_says_how_ppo_of_parl_1_is_made_for_it() -> None:
    ppo = parl.algorithms.PPO(separate_actor_critic(backends.current()), policy_lr=1e-3, value_lr=1e-3, device="cpu")
    with (
        make_vector_env("Pendulum-v1", 1) as envs,
        pytest.raises(HyperparameterError, match=r"PARL 1\.x's form.*: make it with .*clip_param"),
    ):
        train_on_policy(parl.Agent(ppo), envs, OnPolicySettings(total_steps=8, n_steps=8))


@pytest.mark.parametrize("name", ["PPO", "A2C"])
def test_the_offline_loop_names_the_loop_of_another_algorithm(name: str) -> None:
    obs, zeros = np.zeros((8, 4), np.float32), np.zeros(8)
    columns = {"obs": obs, "action": zeros.astype(int), "reward": zeros, "next_obs": obs, "terminal": zeros}
    with pytest.raises(HyperparameterError, match=f"train_offline cannot train {name}, which .*logged transitions: "):
        train_offline(agent(name), OfflineDataset.from_arrays(columns), OfflineSettings(batch_size=4))


def logged(action: Any) -> OfflineDataset:
    obs = np.linspace(0.0, 1.0, 3 * len(action), dtype=np.float32).reshape(-1, 3)
    columns = {"obs": obs, "action": action, "reward": np.ones(len(action)), "next_obs": obs + 1.0}
    return OfflineDataset.from_arrays({**columns, "terminal": np.ones(len(action))}, "log.npz")


NUMBER = gymnasium.spaces.Box(-1.0, 1.0, (1,))
ONE_OUTSIDE, INDEX_OUTSIDE = np.zeros((40, 1)), np.zeros(40, np.int64)
ONE_OUTSIDE[-1], INDEX_OUTSIDE[-1] = 1.5, 2
LEARNERS = {"TD3BC": "twin", "ReBRAC": "twin", "CQL": "squashed", "IQL": "implicit", "AWAC": "gaussian"}


@pytest.mark.parametrize("name", [*LEARNERS, "BC", "DecisionTransformer"])
@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros((40, 2)), "must have .*1.*, got .*2"),
        (ONE_OUTSIDE, r"must lie in \[-1, 1\], got 0.0..1.5: .*chosen_in"),
    ],
)
def test_logged_numbers_that_are_none_of_the_models_are_refused_before_the_first_update(
    name: str, action: Any, message: str
) -> None:
    if name == "DecisionTransformer":
        learner = transformer()
    else:
        kind: Any = LEARNERS.get(name, "actor-critic")
        model = parl.networks.for_spaces(gymnasium.spaces.Box(-1.0, 1.0, (3,)), NUMBER, kind, hidden=(8,))
        learner = parl.Agent(getattr(parl.algorithms, name)(model))
    with pytest.raises(DatasetError, match=f"log.npz: action {message}"):
        train_offline(learner, logged(action), OfflineSettings(updates=1, batch_size=2))


@pytest.mark.parametrize(
    ("action", "message"),
    [(INDEX_OUTSIDE, r"must be in 0\.\.1, got 0\.\.2"), (ONE_OUTSIDE, "whole numbers .* got 1.5 in row 39")],
)
def test_logged_choices_that_the_model_has_not_are_refused_before_the_first_update(action: Any, message: str) -> None:
    choices = gymnasium.spaces.Discrete(2)
    model = parl.networks.for_spaces(gymnasium.spaces.Box(-1.0, 1.0, (3,)), choices, "q", hidden=(8,))
    learner = parl.Agent(parl.algorithms.OfflineQ(model))
    with pytest.raises(DatasetError, match=f"log.npz: action .*{message}"):
        train_offline(learner, logged(action), OfflineSettings(updates=1, batch_size=2))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("SAC", {"exploration": {"noise": 0.1}}, "SAC has no noise for exploration; it has none"),
        ("DQN", {"exploration": {"noise": 0.1}}, "DQN has no noise for exploration; it has epsilon"),
        ("SAC", {"rates": {"lr": 0.1}}, "SAC has no lr for rates; it has actor_lr, critic_lr"),
        ("DQN", {"rates": {"lr": 0.1}}, "DQN has no lr for rates; it has learning_rate"),
    ],
)
def test_settings_that_an_algorithm_does_not_have_are_named(name: str, settings: Any, message: str) -> None:
    with make_vector_env("CartPole-v1", 1) as envs, pytest.raises(HyperparameterError, match=message):
        train_off_policy(agent(name), envs, OffPolicySettings(**{**vars(SETTINGS), **settings}))


@pytest.mark.parametrize(
    ("name", "rate", "message"),
    [
        ("A2C", "learning_rate", "A2C has no learning_rate for rates; it has lr, clip, entropy_coef, target_kl"),
        ("PPO", "rng", "PPO has no rng for rates; it has lr, clip, entropy_coef, target_kl"),
        ("IMPALA", "lr", "IMPALA has no lr for rates; it has learning_rate, entropy_coeff"),
    ],
)
def test_rates_that_an_algorithm_does_not_have_are_named_before_actors_play(name: str, rate: str, message: str) -> None:
    def never() -> Any:
        raise AssertionError("an actor was made")

    settings = ActorLearnerSettings(rates={rate: 1e-3})
    with pytest.raises(HyperparameterError, match=message):
        train_actor_learner(agent(name), never, "CartPole-v1", settings, seed=0)


def test_loops_and_evaluation_say_that_they_need_an_agent() -> None:
    algorithm = agent("DQN").alg
    cases: list[tuple[Any, str]] = [(algorithm, "got DQN"), (type(algorithm), "got the class DQN")]
    for given, named in cases:
        with make_vector_env("CartPole-v1", 1) as envs, pytest.raises(HyperparameterError, match=named):
            train_off_policy(given, envs, SETTINGS)
        with pytest.raises(HyperparameterError, match=f"evaluate needs an agent, {named}"):
            evaluate(given, "CartPole-v1", 1)


def test_the_settings_of_another_loop_are_refused() -> None:
    message = r"train_off_policy needs settings made by training\.OffPolicySettings\(\.\.\.\), got OnPolicySettings"
    with make_vector_env("CartPole-v1", 1) as envs, pytest.raises(HyperparameterError, match=message):
        train_off_policy(agent("DQN"), envs, cast("Any", OnPolicySettings()))
    with pytest.raises(HyperparameterError, match=r"prioritized must be parl_core\.replay\.Prioritized\(\), got True"):
        OffPolicySettings(prioritized=cast("Any", True))


class Gaussian(parl.Model):
    """Means, and beside them a function of what a layer gives."""

    def __init__(self, beside: Callable[[Any], Any], *, one_pass: bool = False) -> None:
        super().__init__()
        self.mean, self.other, self.state = (parl.layers.fc(1) for _ in range(3))
        self.beside = beside
        if one_pass:
            self.policy_and_value = lambda obs: (self.policy(obs), self.value(obs))

    def forward(self, obs: Any) -> Any:
        return self.policy(obs)

    def policy(self, obs: Any) -> Any:
        found = self.beside(self.other(obs))
        return self.mean(obs) if found is None else (self.mean(obs), found)

    def value(self, obs: Any) -> Any:
        return self.state(obs)


ON_NUMBERS: dict[str, dict[str, Any]] = {
    "PPO": {},
    "A2C": {},
    "PolicyGradient": {"lr": 1e-3},
    "IMPALA": {"sample_batch_steps": 4},
    "BC": {},
}
NO_DEVIATIONS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda numbers: numbers, r"a std of -\S+: if the network gives its logarithm, return its exponential"),
    (lambda numbers: 0.0 * numbers, r"a std of -?0: if"),
    (lambda numbers: None, r"a \w+ of shape \[8, 1\] for 8 rows"),
]


def _gaussians(name: str, beside: Callable[[Any], Any]) -> Any:
    algorithm = getattr(parl.algorithms, name)
    return parl.Agent(algorithm(Gaussian(beside), continuous_action=True, device="cpu", **ON_NUMBERS[name]))


@pytest.mark.parametrize("name", ON_NUMBERS)
@pytest.mark.parametrize(("beside", "returned"), NO_DEVIATIONS, ids=["logarithm", "zero", "means alone"])
def test_a_policy_without_standard_deviations_is_refused_by_method_before_it_learns(
    name: str, beside: Callable[[Any], Any], returned: str
) -> None:
    """The logarithm of a number below 0 is NaN, which an update would put into all weights."""
    learner, rng = _gaussians(name, beside), np.random.default_rng(3)
    obs, action, numbers = rng.normal(size=(8, 3)), rng.uniform(-1.0, 1.0, (8, 1)), rng.normal(size=8)
    known = {"obs": obs, "batch_obs": obs, "next_obs": obs, "dones": np.zeros(8), "terminal": np.zeros(8)}
    known |= dict.fromkeys(("action", "actions", "batch_action"), action)
    known["behaviour_logits"] = np.zeros((8, 2))
    names = type(learner.alg).learn.columns.names
    columns = {name: np.asarray(known.get(name, numbers), np.float32) for name in names}
    method = "forward" if name == "PolicyGradient" else "policy"
    message = rf"Gaussian\.{method} has to return \(mean, std\) .* above 0, for {name}; it returned {returned}"
    with pytest.raises(ModelContractError, match=message):
        learner.learn(**columns)
    assert learner.alg.updates == 0


@pytest.mark.parametrize("name", ["PPO", "A2C", "PolicyGradient"])
def test_the_on_policy_loop_refuses_a_policy_without_standard_deviations_before_it_acts(name: str) -> None:
    message = r"has to return \(mean, std\) of a Gaussian, with std above 0, .* it returned a std of -1:"
    with make_vector_env("Pendulum-v1", 1) as envs, pytest.raises(ModelContractError, match=message):
        train_on_policy(_gaussians(name, lambda numbers: 0.0 * numbers - 1.0), envs, OnPolicySettings(total_steps=8))


def test_standard_deviations_behind_a_pass_for_both_heads_are_looked_at() -> None:
    model = Gaussian(lambda numbers: 0.0 * numbers, one_pass=True)
    learner = parl.Agent(parl.algorithms.A2C(model, continuous_action=True, device="cpu"))
    rows = np.zeros((8, 1), np.float32)
    with pytest.raises(ModelContractError, match=r"Gaussian\.policy_and_value has to return .* a std of -?0:"):
        learner.learn(np.zeros((8, 3), np.float32), rows, rows, rows)


class Values(parl.Model):
    """A critic, or the values of 2 actions, of which something is made."""

    def __init__(self, made: Callable[[Any], Any]) -> None:
        super().__init__()
        self.actor, self.critic, self.made = parl.layers.fc(1, act="tanh"), parl.layers.fc(2), made

    def policy(self, obs: Any) -> Any:
        return self.actor(obs)

    def value(self, obs: Any, action: Any = None) -> Any:
        return self.made(self.critic(obs if action is None else parl.layers.concat([obs, action], 1)))

    atoms = quantiles = value

    def get_actor_params(self) -> Any:
        return self.actor.parameters()


@pytest.mark.parametrize(
    ("made", "returned"),
    [(lambda values: (values, values), "a tuple"), (lambda values: values, r"\[3, 2\] for 3 rows")],
    ids=["tuple", "two columns"],
)
def test_a_critic_of_ddpg_that_returns_something_else_is_refused_by_method(
    made: Callable[[Any], Any], returned: str
) -> None:
    learner = parl.Agent(parl.algorithms.DDPG(Values(made), device="cpu"))
    obs, rows = np.zeros((8, 3), np.float32), np.zeros((8, 1), np.float32)
    message = rf"Values\.value has to return \[batch\] or \[batch, 1\] for DDPG; it returned {returned}$"
    with pytest.raises(ModelContractError, match=message):
        learner.learn(obs, rows, rows, obs, rows)


@pytest.mark.parametrize(
    ("name", "wanted", "settings"),
    [
        ("C51", r"atoms has to return \[batch, N, act_dim\]", {"v_min": 0.0, "v_max": 1.0}),
        ("QRDQN", r"quantiles has to return \[batch, N, act_dim\]", {}),
        ("OfflineQ", r"value has to return \[batch, heads, act_dim\]", {"heads": 2}),
    ],
)
@pytest.mark.parametrize(
    ("made", "returned"),
    [(lambda values: (values, values), "a tuple"), (lambda values: values, r"\[4, 2\] for 4 rows")],
    ids=["tuple", "values"],
)
def test_a_model_without_distributions_is_refused_by_method_where_it_acts(
    name: str, wanted: str, settings: dict[str, Any], made: Callable[[Any], Any], returned: str
) -> None:
    actor = parl.Agent(getattr(parl.algorithms, name)(Values(made), device="cpu", **settings))
    with pytest.raises(ModelContractError, match=rf"^Values\.{wanted} for {name}; it returned {returned}$"):
        actor.predict(np.zeros((4, 3), np.float32))


def test_an_environment_in_place_of_its_maker_is_refused() -> None:
    env: Any = gymnasium.make("CartPole-v1")
    with pytest.raises(HyperparameterError, match=r"a function that returns a new one; got <TimeLimit"):
        evaluate(agent("DQN"), env, 1)


def test_a_decision_transformer_does_not_act_on_an_observation_alone() -> None:
    with pytest.raises(
        HyperparameterError, match=r"DecisionTransformer chooses from .*: .*evaluate_with_target_return"
    ):
        transformer().predict(np.zeros(3, np.float32))
    with pytest.raises(HyperparameterError, match="evaluate_with_target_return"):
        evaluate(transformer(), "Pendulum-v1", episodes=1)


def test_only_a_decision_transformer_can_be_asked_for_a_return() -> None:
    with pytest.raises(HyperparameterError, match=r"SAC takes no target return.*parl_core\.training\.evaluate"):
        evaluate_with_target_return(agent("SAC"), "Pendulum-v1", -300.0, episodes=1)


class CutWithoutAction(gymnasium.Env[Any, Any]):
    """Its episodes are cut after three steps, in a state without a possible action."""

    observation_space = gymnasium.spaces.Dict(
        observation=gymnasium.spaces.Box(-1.0, 1.0, (3,)), action_mask=gymnasium.spaces.MultiBinary(2)
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._taken = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._taken += 1
        return self._seen(), 0.0, False, self._taken == 3, {}

    def _seen(self) -> Any:
        return {"observation": np.zeros(3, np.float32), "action_mask": np.full(2, self._taken < 3, np.int8)}


def test_ape_x_refuses_a_cut_episode_whose_last_observation_leaves_no_action() -> None:
    space, choices = CutWithoutAction.observation_space, CutWithoutAction.action_space

    def make() -> Any:
        return parl.Agent(parl.algorithms.ApeX(parl.networks.for_spaces(space, choices, "q", hidden=(8,))))

    settings = ApexSettings(total_steps=40, n_actors=1, n_steps=5, learning_starts=10, batch_size=4, memory_size=40)
    with pytest.raises(EnvironmentContractError, match=r"environment 0 .* leaves no action at the end of an episode"):
        train_apex(make(), make, CutWithoutAction, settings, seed=0)
