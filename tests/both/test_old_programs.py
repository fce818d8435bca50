"""Forms of PARL 1.x and 2.x that their programs use, on the backend in use."""

from typing import Any

import numpy as np
import pytest

import parl
from parl_core import backends
from parl_core.errors import HyperparameterError, ModelContractError

pytestmark = pytest.mark.usefixtures("on_the_cpu")

layers = parl.layers
BACKEND = backends.current().name


class ActorCritic(parl.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.fc(8, act="relu")
        self.head = layers.fc(2)
        self.judge = layers.fc(1)

    def policy(self, obs: Any) -> Any:
        return self.head(self.hidden(obs))

    def value(self, obs: Any) -> Any:
        return self.judge(self.hidden(obs))


def tensor(values: Any, dtype: str = "float32") -> Any:
    array = np.asarray(values, dtype)
    if BACKEND == "torch":
        import torch

        return torch.as_tensor(array)
    import paddle

    return paddle.to_tensor(array)


def rollout(dtype: str) -> list[Any]:
    rng = np.random.default_rng(1)
    obs, action = rng.normal(size=(6, 3)), rng.integers(0, 2, 6)
    numbers = [rng.normal(size=6) for _ in range(3)]
    value, return_, advantage = numbers
    return [
        tensor(obs),
        tensor(action, dtype),
        *map(tensor, (value, return_, np.full(6, -0.7), advantage)),
    ]


def made() -> Any:
    algorithm = parl.algorithms.PPO(ActorCritic(), clip_param=0.2, initial_lr=1e-3, continuous_action=False)
    algorithm.sample(tensor(np.zeros((1, 3))))  # gives the layers their shapes
    return algorithm


def test_ppo_takes_discrete_actions_as_the_floats_that_rollouts_of_parl_2_store() -> None:
    whole, floating = made(), made()
    whole.model.sync_weights_to(floating.model)
    expected = [float(figure) for figure in whole.learn(*rollout("int64"))]
    assert [float(figure) for figure in floating.learn(*rollout("float32"), 1e-3)] == expected
    for name, array in whole.model.get_weights().items():
        np.testing.assert_array_equal(floating.model.get_weights()[name], array)


class Probabilities(parl.Model):
    def __init__(self) -> None:
        super().__init__()
        self.head = layers.fc(2, act="softmax")

    def forward(self, obs: Any) -> Any:
        return self.head(obs)


@pytest.mark.parametrize("name", ["A2C", "PolicyGradient", "IMPALA"])
def test_other_algorithms_take_discrete_actions_as_floats_as_well(name: str) -> None:
    def learned(dtype: str) -> list[float]:
        obs, action, value, return_, *_ = rollout(dtype)
        if name == "PolicyGradient":
            return [float(algorithm.learn(obs, action, value))]
        if name == "A2C":
            return [float(figure) for figure in algorithm.learn(obs, action, value, return_, 1e-3, -0.01)]
        logits = tensor(np.zeros((6, 2)))
        return [float(algorithm.learn(obs, action, logits, value, tensor(np.zeros(6)), 1e-3, -0.01)[0].total_loss)]

    if name == "PolicyGradient":
        algorithm: Any = parl.algorithms.PolicyGradient(Probabilities(), lr=1e-3)
    else:
        settings = {"sample_batch_steps": 3} if name == "IMPALA" else {}
        algorithm = getattr(parl.algorithms, name)(ActorCritic(), vf_loss_coeff=0.5, **settings)
    learned("int64")  # gives the layers their shapes
    before = algorithm.get_state()
    expected = learned("int64")
    algorithm.set_state(before)
    assert learned("float32") == expected


@pytest.mark.parametrize("name", ["A2C", "IMPALA"])
def test_losses_stay_scalars_with_the_coefficients_of_one_row_that_parl_1_feeds(name: str) -> None:
    obs, action, value, return_, *_ = rollout("int64")
    now = {"learning_rate": tensor([1e-3]), "entropy_coeff": tensor([-0.01])}
    if name == "A2C":
        losses = parl.algorithms.A2C(ActorCritic(), vf_loss_coeff=0.5).learn(obs, action, value, return_, **now)
    else:
        impala = parl.algorithms.IMPALA(ActorCritic(), sample_batch_steps=3)
        logits, dones = tensor(np.zeros((6, 2))), tensor(np.zeros(6))
        losses, _ = impala.learn(obs, action, logits, value, dones, **now)
    assert [tuple(loss.shape) for loss in losses] == [()] * len(losses)


def test_arguments_of_parl_1_that_have_no_effect_are_taken() -> None:
    one, other = made(), made()
    one.model.sync_weights_to(other.model, decay=0.0, share_vars_parallel_executor=None)
    for name, array in one.model.get_weights().items():
        np.testing.assert_array_equal(other.model.get_weights()[name], array)
    with pytest.warns(DeprecationWarning, match="device="):
        agent = parl.Agent(one, gpu_id=0)
    assert agent.gpu_id == 0
    assert parl.Agent(one).gpu_id is None


def test_an_argument_of_learn_with_another_name_is_answered_with_the_names_that_it_has() -> None:
    a2c = parl.algorithms.A2C(ActorCritic(), vf_loss_coeff=0.5)
    obs, action, *numbers = rollout("int64")
    said = r"learn\(obs, actions, advantages, target_values, learning_rate=None, entropy_coeff=None.*'lr'"
    with pytest.raises(TypeError, match=said):
        a2c.learn(obs, action, *numbers[:2], lr=1e-3, entropy_coeff=-0.01)


def test_mappo_tells_a_program_of_parl_2_that_it_acts_on_joint_observations() -> None:
    mappo = parl.algorithms.MAPPO(ActorCritic(), use_popart=False)
    with pytest.raises(TypeError, match=r"sample\(cent_obs, obs\) of PARL 2.x becomes sample\(joint_obs\)"):
        mappo.sample(tensor(np.zeros((2, 6))), tensor(np.zeros((2, 3))))
    with pytest.raises(TypeError, match=r"deterministic=True\) of PARL 2.x becomes predict\(joint_obs\)"):
        mappo.sample(tensor(np.zeros((2, 6))), tensor(np.zeros((2, 3))), deterministic=True)


def test_methods_of_algorithms_that_are_gone_are_answered_with_what_to_call() -> None:
    algorithm = made()
    with pytest.raises(AttributeError, match=r"'PPO' .* 'Q_next', .*: use Q\(obs_n, act_n, use_target_model=True\)"):
        algorithm.Q_next([], [])
    with pytest.raises(AttributeError, match=r"'critic_learn', .*: learn takes the steps of actor and critic"):
        algorithm.critic_learn()


def test_a_subclass_whose_steps_learn_would_not_call_is_refused() -> None:
    def step(_: Any, *__: Any) -> Any:
        return 0.0

    for algorithm in (parl.algorithms.TD3, parl.algorithms.SAC):
        with pytest.raises(TypeError, match=r"Own defines _critic_learn, .* override critic_loss\(batch"):
            type("Own", (algorithm,), {"_critic_learn": step})
        whole = type("Whole", (algorithm,), {"_critic_learn": step, "learn": step})
        type("Below", (whole,), {"_critic_learn": step})
    with pytest.raises(AttributeError, match=r"'_actor_learn', .* override actor_loss"):
        parl.algorithms.DDPG(parl.networks.DeterministicActorCritic(1))._actor_learn(None)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'mse_loss', .*nn\.MSELoss"):
        _ = parl.algorithms.DQN(ActorCritic(), gamma=0.9, lr=1e-3).mse_loss  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("CQL", "alpha_optimizer", "temperature_optimizer"),
        ("IQL", "policy_optimizer", "actor_optimizer"),
        ("IQL", "q_optimizer", "critic_optimizer"),
        ("IQL", "q_target", "target_model"),
        ("IQL", "v_optimizer", "value_optimizer"),
    ],
)
def test_optimizers_with_other_names_in_parl_2_name_the_present_ones(name: str, old: str, new: str) -> None:
    kind = {"CQL": parl.networks.SquashedActorCritic, "IQL": parl.networks.ImplicitActorCritic}[name]
    algorithm = getattr(parl.algorithms, name)(kind(1))
    with pytest.raises(AttributeError, match=rf"'{old}', .*{new}"):
        getattr(algorithm, old)
    assert getattr(algorithm, new) is not None


def test_an_algorithm_of_the_programs_own_may_set_its_device() -> None:
    class Own(parl.Algorithm):
        def __init__(self, model: parl.Model) -> None:
            super().__init__(model)
            on_cpu = tensor(0.0)
            self.device = on_cpu.device if BACKEND == "torch" else on_cpu.place

        def predict(self, obs: Any) -> Any:
            return self.model.policy(obs)

    algorithm = Own(ActorCritic())
    assert str(algorithm.device) == "cpu"
    assert parl.Agent(algorithm).predict(np.zeros((2, 3), np.float32)).shape == (2, 2)
    with pytest.raises(HyperparameterError, match="device 'nothing' is"):
        algorithm.device = "nothing"


def weights_after(algorithm: Any, updates: int = 1, **settings: Any) -> dict[str, Any]:
    for _ in range(updates):
        algorithm.learn(*rollout("int64"), **settings)
    found: dict[str, Any] = algorithm.model.get_weights()
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("by_group", [False, True], ids=["set_lr", "param_groups"])
def test_a_learning_rate_that_a_program_sets_takes_the_place_of_the_constructors(by_group: bool) -> None:
    algorithm = made()
    assert algorithm.optimizer.get_lr() == 1e-3
    if by_group:
        for group in algorithm.optimizer.param_groups:
            assert group["lr"] == 1e-3
            group["lr"] = 0.0
    else:
        algorithm.optimizer.set_lr(0.0)
    before = algorithm.model.get_weights()
    assert same(weights_after(algorithm, 2), before)
    assert algorithm.optimizer.get_lr() == 0.0
    algorithm.optimizer.set_lr(1e-3)
    assert not same(weights_after(algorithm), before)


def test_a_set_rate_gives_the_same_step_as_the_same_rate_of_the_constructor() -> None:
    one, other = made(), made()
    one.model.sync_weights_to(other.model)
    other.optimizer.set_lr(1e-2)
    assert same(weights_after(other, 3), weights_after(one, 3, lr=1e-2))


def test_a_schedule_takes_a_set_rate_back_with_its_next_change() -> None:
    algorithm = parl.algorithms.PPO(ActorCritic(), initial_lr=lambda update: 1e-3 if update < 3 else 2e-3)
    algorithm.sample(tensor(np.zeros((1, 3))))
    weights_after(algorithm)
    algorithm.optimizer.set_lr(0.0)
    before = algorithm.model.get_weights()
    assert same(weights_after(algorithm, 2), before)
    assert not same(weights_after(algorithm), before)
    assert algorithm.optimizer.get_lr() == 2e-3


def test_a_set_rate_is_saved_with_an_agent(tmp_path: Any) -> None:
    algorithm = made()
    agent = parl.Agent(algorithm)
    weights_after(algorithm)
    algorithm.optimizer.set_lr(0.0)
    agent.save(str(tmp_path / "agent.ckpt"))
    other = made()
    parl.Agent(other).restore(str(tmp_path / "agent.ckpt"))
    assert other.optimizer.get_lr() == 0.0
    before = other.model.get_weights()
    assert same(weights_after(other), before)


def test_a_frameworks_own_optimizer_keeps_what_a_program_sets() -> None:
    model = ActorCritic()
    model.value(model_input := tensor(np.zeros((1, 3))))
    model.policy(model_input)
    if BACKEND == "torch":
        import torch

        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
    else:
        import paddle

        optimizer = paddle.optimizer.SGD(1e-3, parameters=model.parameters())
    algorithm = parl.algorithms.PPO(model, initial_lr=1e-2, optimizer=optimizer)
    weights_after(algorithm)
    assert algorithm.optimizer.get_lr() == pytest.approx(1e-2)
    algorithm.optimizer.param_groups[0]["lr"] = 0.0
    before = algorithm.model.get_weights()
    assert same(weights_after(algorithm, 2), before)


def test_a_step_of_three_lines_is_answered_with_the_line_that_takes_it() -> None:
    class Own(parl.algorithms.DQN):
        def learn(self, obs: Any, by_hand: bool) -> Any:  # type: ignore[override]  # as programs of PARL 2.x
            loss = self.model.policy(obs).square().mean()
            if by_hand:
                getattr(self.optimizer, "zero_grad" if BACKEND == "torch" else "clear_grad")()
            return self.optimizer.minimize(loss)

    class Net(Probabilities):
        def policy(self, obs: Any) -> Any:
            return self.forward(obs)

    algorithm, obs = Own(Net(), gamma=0.9, lr=0.1), tensor(np.ones((2, 3)))
    algorithm.learn(obs, by_hand=False)
    before = algorithm.model.get_weights()
    with pytest.raises(AttributeError, match=r"write minimize\(loss\) for zero_grad\(\) or clear_grad\(\)"):
        algorithm.learn(obs, by_hand=True)
    algorithm.learn(obs, by_hand=False)
    assert not same(algorithm.model.get_weights(), before)
    with pytest.raises(AttributeError, match=r"use get_state\(\)"):
        _ = algorithm.optimizer.state_dict  # type: ignore[attr-defined]


def test_a_rate_below_zero_and_other_entries_of_a_group_are_refused() -> None:
    optimizer = made().optimizer
    with pytest.raises(HyperparameterError, match="lr"):
        optimizer.set_lr(-1.0)
    with pytest.raises(HyperparameterError, match="only its 'lr'"):
        optimizer.param_groups[0]["betas"] = (0.9, 0.99)
    assert len(optimizer.param_groups[0]["params"]) == 6


class Implicit(parl.Model):
    """The networks of IQL as a model of this project lists them."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = layers.fc(2), layers.fc(2)
        self.v, self.q1, self.q2 = layers.fc(1), layers.fc(1), layers.fc(1)

    def policy(self, obs: Any) -> Any:
        return self.mean(obs), self.spread(obs)

    def value(self, obs: Any) -> Any:
        return self.v(obs)

    def q_value(self, obs: Any, action: Any) -> Any:
        both = layers.concat([obs, action], axis=1)
        return self.q1(both), self.q2(both)

    def get_actor_params(self) -> Any:
        return [*self.mean.parameters(), *self.spread.parameters()]

    def get_critic_params(self) -> Any:
        return [*self.q1.parameters(), *self.q2.parameters()]

    def get_value_params(self) -> Any:
        return list(self.v.parameters())


class ImplicitOfParl2(Implicit):
    """The same as PARL 2.x writes it: a distribution, and `qvalue`."""

    q_value = None  # type: ignore[assignment]  # not there

    def policy(self, obs: Any) -> Any:
        mean, logstd = super().policy(obs)
        std = logstd.clip(-20.0, 2.0).exp()
        if BACKEND == "torch":
            import torch

            return torch.distributions.Normal(mean, std)
        import paddle

        return paddle.distribution.Normal(mean, std)

    def qvalue(self, obs: Any, action: Any) -> Any:
        return super().q_value(obs, action)


def test_iql_takes_a_model_with_a_distribution_and_qvalue_as_parl_2_writes_it() -> None:
    rng = np.random.default_rng(2)
    obs, next_obs = (tensor(0.1 * rng.normal(size=(8, 3))) for _ in range(2))
    action = tensor(rng.uniform(-0.9, 0.9, (8, 2)))
    reward, terminal = tensor(rng.normal(size=8)), tensor(np.zeros(8))
    one, other = (parl.algorithms.IQL(model, max_steps=100) for model in (Implicit(), ImplicitOfParl2()))
    for algorithm in (one, other):
        algorithm.sample(obs)
        algorithm.update(obs, action, reward, next_obs, terminal)  # gives all layers their shapes
    one.model.sync_weights_to(other.model)
    one.model.sync_weights_to(one.target_model)
    other.model.sync_weights_to(other.target_model)
    fresh = parl.algorithms.IQL(one.model, max_steps=100), parl.algorithms.IQL(other.model, max_steps=100)
    losses = [[float(loss) for loss in each.update(obs, action, reward, next_obs, terminal)] for each in fresh]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    for name, array in fresh[0].model.get_weights().items():
        np.testing.assert_allclose(fresh[1].model.get_weights()[name], array, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        np.asarray(fresh[1].predict(obs)), np.asarray(fresh[0].predict(obs)), rtol=1e-4, atol=1e-5
    )
    assert tuple(fresh[1].sample(obs).shape) == (8, 2)


def test_iql_updates_with_the_losses_in_the_order_of_parl_2() -> None:
    obs, action, column = tensor(np.zeros((4, 3))), tensor(np.zeros((4, 2))), tensor(np.zeros(4))
    algorithm = parl.algorithms.IQL(Implicit(), lr=1e-9)
    value_loss, critic_loss, actor_loss = algorithm.learn(obs, action, column + 5.0, obs, column + 1.0)
    assert float(value_loss) < 1.0 < float(critic_loss)
    losses = algorithm.update(obs, action, column + 5.0, obs, column + 1.0)
    np.testing.assert_allclose(
        [float(one) for one in losses],
        [float(one) for one in (critic_loss, value_loss, actor_loss)],
        rtol=1e-3,
        atol=1e-5,
    )


def test_distributions_take_actions_by_the_name_that_parl_2_gives_them() -> None:
    from importlib import import_module

    distributions = import_module(f"parl.core.{BACKEND}.policy_distribution")
    policy = distributions.CategoricalDistribution(tensor([[0.0, 0.0], [0.0, 0.0]]))
    for given in ({}, {"eps": 1e-6}):
        found = policy.logp(actions=tensor([0, 1], "int64"), **given)
        np.testing.assert_allclose(np.asarray(found), np.log([0.5, 0.5]), rtol=1e-6)


def array_of(found: Any) -> Any:
    return found.detach().cpu().numpy()


def test_elementwise_functions_place_the_second_tensor_at_an_axis_of_the_first() -> None:
    x, y = np.arange(1.0, 7.0).reshape(2, 3), np.asarray([10.0, 20.0])
    for name, expected in (
        ("add", x + y[:, None]),
        ("sub", x - y[:, None]),
        ("mul", x * y[:, None]),
        ("div", x / y[:, None]),
        ("max", np.maximum(x, y[:, None])),
        ("min", np.minimum(x, y[:, None])),
    ):
        found = getattr(layers, f"elementwise_{name}")(tensor(x), tensor(y), axis=0)
        np.testing.assert_allclose(array_of(found), expected, rtol=1e-6)
    with pytest.raises(HyperparameterError, match="axis=2 of elementwise_add leaves too few dimensions"):
        layers.elementwise_add(tensor(x), tensor(y), axis=2)
    with pytest.raises(HyperparameterError, match=r"write parl\.layers\.relu\(parl\.layers\.elementwise_mul\(x, y\)\)"):
        layers.elementwise_mul(tensor(x), tensor(x), act="relu")


@pytest.mark.parametrize("function", ["cross_entropy", "softmax_with_cross_entropy"])
def test_cross_entropies_take_the_probabilities_of_classes_as_labels(function: str) -> None:
    logits = np.asarray([[0.5, -1.0, 2.0], [1.0, 1.0, -3.0]])
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = np.asarray([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]])
    given = tensor(probs if function == "cross_entropy" else logits)
    found = getattr(layers, function)(given, tensor(labels), soft_label=True)
    np.testing.assert_allclose(array_of(found), -(labels * np.log(probs)).sum(1, keepdims=True), rtol=1e-5)
    hard = getattr(layers, function)(given, tensor([2, 1], "int64"))
    np.testing.assert_allclose(array_of(hard), -np.log(probs[[0, 1], [2, 1]])[:, None], rtol=1e-5)


def test_soft_labels_of_impossible_classes_cost_nothing() -> None:
    found = layers.cross_entropy(tensor([[1.0, 0.0]]), tensor([[1.0, 0.0]]), soft_label=True)
    assert array_of(found).tolist() == [[0.0]]


class Named(parl.Model):
    def __init__(self, is_test: bool) -> None:
        super().__init__()
        self.hidden = layers.fc(4, name="first", param_attr=None)
        self.norm = layers.batch_norm(is_test=is_test, name="norm")
        self.log_std = layers.create_parameter(shape=[2], dtype="float32", name="std")

    def forward(self, obs: Any) -> Any:
        return self.norm(self.hidden(obs))


def test_layers_of_parl_1_may_have_a_name_which_has_no_effect() -> None:
    model = Named(is_test=False)
    model(tensor(np.ones((3, 2))))
    assert set(model.parameter_names) == {"hidden.weight", "hidden.bias", "norm.weight", "norm.bias", "log_std"}


def test_batch_normalisation_for_tests_keeps_its_statistics() -> None:
    batch = tensor(np.random.default_rng(1).normal(3.0, 2.0, (16, 2)))
    learning, testing = Named(is_test=False), Named(is_test=True)
    for model in (learning, testing):
        model(batch)
    assert np.abs(learning.get_weights()["norm.running_mean"]).max() > 0.01
    np.testing.assert_array_equal(testing.get_weights()["norm.running_mean"], np.zeros(4))
    normalised, hidden = array_of(testing(batch)), array_of(testing.hidden(batch))
    np.testing.assert_allclose(normalised, hidden, rtol=1e-3, atol=1e-4)  # mean 0 and variance 1


def test_arguments_of_layers_that_are_gone_are_answered_with_what_to_write() -> None:
    for layer in (lambda **given: layers.fc(4, **given), lambda **given: layers.conv_2d(4, 3, **given)):
        with pytest.raises(HyperparameterError, match="takes no param_attr: leave it out; initial_weight="):
            layer(param_attr=object())
        with pytest.raises(HyperparameterError, match="None, or False for no bias"):
            layer(bias_attr=object())
    with pytest.raises(HyperparameterError, match=r"embedding takes no param_attr: leave it out$"):
        layers.embedding((4, 2), param_attr=object())
    with pytest.raises(
        HyperparameterError, match=r"not 2: join them, such as by parl\.layers\.concat\(inputs, axis=1\)"
    ):
        layers.fc(4)([tensor(np.ones((1, 2))), tensor(np.ones((1, 3)))])


def test_an_agent_is_saved_as_in_parl_1_without_a_program(tmp_path: Any) -> None:
    agent, other = parl.Agent(made()), parl.Agent(made())
    agent.save(str(tmp_path / "agent"), program=None)
    other.restore(str(tmp_path / "agent"), program=None)
    assert same(agent.get_weights(), other.get_weights())
    for call in (agent.save, agent.restore):
        with pytest.raises(ModelContractError, match="Agent builds no programs of static graphs: leave program out"):
            call(str(tmp_path / "agent"), program=object())


def test_functions_of_fluid_that_are_gone_are_answered_with_where_others_are() -> None:
    with pytest.raises(
        AttributeError, match=rf"no layer 'fill_constant'; .* the functions of {BACKEND} itself, too; it has"
    ):
        _ = layers.fill_constant
