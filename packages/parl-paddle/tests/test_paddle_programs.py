"""Agents with `build_program()`: every algorithm inside a program computes what it computes outside."""

# mypy: allow-untyped-calls
# Paddle leaves its programs untyped.

import gc
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import paddle
import pytest

from parl_core.errors import ModelContractError
from parl_paddle import layers
from parl_paddle._static_graphs import eager, in_program, static_graphs
from parl_paddle.agent import Agent
from parl_paddle.algorithms import DDQN, DQN, PPO, PolicyGradient
from parl_paddle.model import Model
from parl_paddle.networks import ActorCritic, QNetwork

PICKLES = "__reduce_ex__" in vars(paddle.Tensor)  # paddle 3.0 did not
OBS_DIM, ROWS = 4, 8
RNG = np.random.default_rng(3)
OBS, NEXT_OBS = RNG.normal(size=(2, ROWS, OBS_DIM)).astype(np.float32)
ACTION = RNG.integers(2, size=ROWS)
NUMBERS = RNG.normal(size=(4, ROWS)).astype(np.float32)
TERMINAL = RNG.random(ROWS) < 0.4


class Probabilities(Model):
    def __init__(self) -> None:
        self.hidden = layers.fc(size=8, act="tanh")
        self.out = layers.fc(size=2, act="softmax")

    def forward(self, obs: Any) -> Any:
        return self.out(self.hidden(obs))


class Gaussian(Model):
    def __init__(self) -> None:
        self.policy_model = layers.fc(size=2)
        self.value_model = layers.fc(size=1)
        self.log_variance = self.create_parameter([2], default_initializer=paddle.nn.initializer.Constant(0.1))

    def policy(self, obs: Any) -> Any:
        return self.policy_model(obs), self.log_variance

    def value(self, obs: Any) -> Any:
        return self.value_model(obs)


class Builder(Agent):
    """Puts one method of its algorithm into a program; `step` runs it on arrays."""

    def __init__(self, algorithm: Any, method: str, inputs: dict[str, Any], **constants: Any) -> None:
        self.method, self.inputs, self.constants = method, inputs, constants
        super().__init__(algorithm)

    def build_program(self) -> None:
        self.learn_program = paddle.static.Program()
        with paddle.static.program_guard(self.learn_program):
            values = [
                layers.data(name=name, shape=list(array.shape[1:]), dtype=str(array.dtype))
                for name, array in self.inputs.items()
            ]
            result = getattr(self.alg, self.method)(*values, **self.constants)
            self.fetch = list(result) if isinstance(result, tuple) else [result]

    def step(self) -> list[Any]:
        fetched = self.fluid_executor.run(self.learn_program, feed=self.inputs, fetch_list=self.fetch)
        return [float(array) for array in fetched]


def _policy_gradient() -> tuple[Any, str, dict[str, Any], dict[str, Any]]:
    inputs = {"obs": OBS, "action": ACTION[:, None], "reward": NUMBERS[0]}
    return PolicyGradient(Probabilities(), lr=0.01), "learn", inputs, {}


def _dqn(algorithm: type[DQN]) -> tuple[Any, str, dict[str, Any], dict[str, Any]]:
    inputs = {"obs": OBS, "action": ACTION, "reward": NUMBERS[0], "next_obs": NEXT_OBS, "terminal": TERMINAL}
    return algorithm(QNetwork(2, (8,)), gamma=0.9, lr=0.01, max_grad_norm=0.5), "learn", inputs, {}


def _ppo() -> tuple[Any, str, dict[str, Any], dict[str, Any]]:
    columns = dict(zip(("value", "return", "logprob", "adv"), NUMBERS, strict=True))
    inputs = {"obs": OBS, "action": ACTION, **columns}
    return PPO(ActorCritic(2, (8,)), initial_lr=0.01), "learn", inputs, {"lr": 0.02, "clip": 0.3}


def _separate() -> Any:
    algorithm: Any = PPO(Gaussian(), policy_lr=0.01, value_lr=0.01)
    for model in (algorithm.model, algorithm.old_policy_model):
        model.policy(paddle.to_tensor(OBS))
        model.value(paddle.to_tensor(OBS))
    return algorithm


def _policy_learn(beta: float | None) -> tuple[Any, str, dict[str, Any], dict[str, Any]]:
    inputs = {"obs": OBS, "actions": NUMBERS[:2].T.copy(), "advantages": NUMBERS[2]}
    return _separate(), "policy_learn", inputs, {"beta": beta}


def _value_learn() -> tuple[Any, str, dict[str, Any], dict[str, Any]]:
    return _separate(), "value_learn", {"obs": OBS, "val": NUMBERS[0]}, {}


CASES: list[Callable[[], tuple[Any, str, dict[str, Any], dict[str, Any]]]] = [
    _policy_gradient,
    lambda: _dqn(DQN),
    lambda: _dqn(DDQN),
    _ppo,
    lambda: _policy_learn(None),
    lambda: _policy_learn(0.5),
    _value_learn,
]
NAMES = ["policy_gradient", "dqn", "ddqn", "ppo", "clip", "kl_penalty", "value"]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_three_steps_in_a_program_are_three_eager_steps(case: Any) -> None:
    algorithm, method, inputs, constants = case()
    built = Builder(algorithm, method, inputs, **constants)
    twin = case()[0]
    tensors = [paddle.to_tensor(array) for array in inputs.values()]
    twin.set_state(algorithm.get_state())
    for _ in range(3):
        expected = getattr(twin, method)(*tensors, **constants)
        expected = expected if isinstance(expected, tuple) else (expected,)
        np.testing.assert_allclose(built.step(), [float(figure) for figure in expected], rtol=1e-5, atol=1e-6)
    found, reference = algorithm.get_state().arrays, twin.get_state().arrays
    assert set(found) == set(reference)
    for name, array in reference.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_steps_in_the_program_and_eager_ones_go_on_from_each_other() -> None:
    algorithm, method, inputs, _ = _policy_gradient()
    built, twin = Builder(algorithm, method, inputs), _policy_gradient()[0]
    twin.set_state(algorithm.get_state())
    tensors = [paddle.to_tensor(array) for array in inputs.values()]
    expected = [float(twin.learn(*tensors)) for _ in range(4)]
    found = [built.step()[0], float(algorithm.learn(*tensors)), built.step()[0], float(algorithm.learn(*tensors))]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert algorithm.get_state().arrays["optimizer/step/out.bias"] == 4


def test_an_agent_with_programs_is_restored_with_the_state_of_its_optimizer(tmp_path: Any) -> None:
    algorithm, method, inputs, _ = _policy_gradient()
    saved, restored = Builder(algorithm, method, inputs), Builder(_policy_gradient()[0], method, inputs)
    saved.step()
    saved.save(tmp_path / "agent.ckpt")
    restored.restore(tmp_path / "agent.ckpt")
    np.testing.assert_allclose([restored.step() for _ in range(3)], [saved.step() for _ in range(3)], rtol=1e-6)


def test_an_agent_with_programs_restores_in_one_without_and_the_other_way_round(tmp_path: Any) -> None:
    algorithm, method, inputs, _ = _dqn(DQN)
    built, plain = Builder(algorithm, method, inputs), Agent(_dqn(DQN)[0])
    built.step()
    built.save(tmp_path / "built.ckpt")
    plain.restore(tmp_path / "built.ckpt")
    tensors = [paddle.to_tensor(array) for array in inputs.values()]
    np.testing.assert_allclose(built.step(), [float(plain.alg.learn(*tensors))], rtol=1e-5)
    plain.alg.learn(*tensors)
    plain.save(tmp_path / "plain.ckpt")
    built.restore(tmp_path / "plain.ckpt")
    np.testing.assert_allclose(built.step(), [float(plain.alg.learn(*tensors))], rtol=1e-5)


def test_a_learning_rate_can_be_fed() -> None:
    class Fed(Agent):
        def build_program(self) -> None:
            self.learn_program = paddle.static.Program()
            with paddle.static.program_guard(self.learn_program):
                columns = [layers.data(name, list(array.shape[1:]), str(array.dtype)) for name, array in inputs.items()]
                rate = layers.data("rate", [], append_batch_size=False)
                self.cost = self.alg.learn(*columns, rate)

    algorithm, _, inputs, _ = _dqn(DQN)
    agent = Fed(algorithm)
    before = agent.get_weights()
    for rate, moves in ((0.0, False), (0.1, True)):
        feed = {**inputs, "rate": np.float32(rate)}
        agent.fluid_executor.run(agent.learn_program, feed=feed, fetch_list=[agent.cost])
        assert np.array_equal(before["head.bias"], agent.get_weights()["head.bias"]) != moves


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_a_program_takes_whole_numbers_and_flags(dtype: str) -> None:
    algorithm, method, inputs, _ = _dqn(DQN)
    whole = {name: (NUMBERS[0] > 0.0).astype(dtype) for name in ("reward", "terminal")}
    agent = Builder(algorithm, method, inputs | whole)
    twin = _dqn(DQN)[0]
    twin.set_state(algorithm.get_state())
    tensors = [paddle.to_tensor(array.astype("float32")) for array in whole.values()]
    expected = float(
        twin.learn(*map(paddle.to_tensor, (OBS, ACTION)), tensors[0], paddle.to_tensor(NEXT_OBS), tensors[1])
    )
    np.testing.assert_allclose(agent.step()[0], expected, rtol=1e-5)


def test_sync_target_reaches_the_program() -> None:
    algorithm, method, inputs, _ = _dqn(DQN)
    agent = Builder(algorithm, method, inputs)
    agent.step()
    target = algorithm.target_model.get_weights()
    assert not np.array_equal(target["head.bias"], agent.get_weights()["head.bias"])
    algorithm.sync_target()
    twin = _dqn(DQN)[0]
    twin.set_state(algorithm.get_state())
    expected = float(twin.learn(*(paddle.to_tensor(array) for array in inputs.values())))
    np.testing.assert_allclose(agent.step()[0], expected, rtol=1e-5)


def test_an_optimizer_of_paddle_s_own_works_in_a_program() -> None:
    class Own(Agent):
        def build_program(self) -> None:
            self.learn_program = paddle.static.Program()
            with paddle.static.program_guard(self.learn_program):
                self.cost = self.alg.predict(layers.data("obs", [OBS_DIM])).square().mean()
                paddle.optimizer.SGD(0.1).minimize(self.cost)

    agent = Own(DQN(QNetwork(2, (8,))))
    costs = [agent.fluid_executor.run(agent.learn_program, feed={"obs": OBS}, fetch_list=[agent.cost])[0] for _ in "ab"]
    assert costs[1] < costs[0]


def test_a_penalty_on_the_weights_is_part_of_a_program() -> None:
    class Decaying(DQN):
        def learn(self, obs: Any) -> Any:  # type: ignore[override]
            unused = 0.0 * self.predict(obs).sum()  # after it, the layers have shapes
            loss = sum((weight.square().sum() for weight in self.model.parameters()), unused)
            self.optimizer.minimize(loss)
            return loss.detach()

    agent = Builder(Decaying(QNetwork(2, (8,)), lr=0.01), "learn", {"obs": OBS})
    expected = sum(float(np.square(array).sum()) for array in agent.get_weights().values())
    np.testing.assert_allclose(agent.step()[0], expected, rtol=1e-5)
    assert agent.step()[0] < expected
    assert all(isinstance(weight, paddle.Tensor) for weight in agent.alg.model.parameters())


def test_layers_of_all_kinds_give_in_a_program_what_they_give_outside() -> None:
    class Mixed(Model):
        def __init__(self) -> None:
            self.scale = self.create_parameter([3], default_initializer=paddle.nn.initializer.Constant(2.0))
            self.conv = layers.conv_2d(num_filters=3, filter_size=3)
            self.norm = paddle.nn.LayerNorm(3)
            self.recurrent = paddle.nn.GRU(3, 3)
            self.batch_norm = layers.batch_norm()
            self.table = layers.embedding((5, 3))

        def forward(self, images: Any) -> Any:
            features = self.batch_norm(self.conv(images)).mean(axis=[2, 3])
            outputs, _ = self.recurrent(self.norm(features * self.scale).unsqueeze(1))
            return outputs.squeeze(1) + self.table(paddle.zeros([1], dtype="int64"))

    class Built(Agent):
        def build_program(self) -> None:
            self.learn_program = paddle.static.Program()
            with paddle.static.program_guard(self.learn_program):
                self.output = self.alg.predict(layers.data("images", [2, 8, 8]))

    model = Mixed()
    model.eval()
    agent = Built(DQN(model))
    images = RNG.normal(size=(4, 2, 8, 8)).astype(np.float32)
    found = agent.fluid_executor.run(agent.learn_program, feed={"images": images}, fetch_list=[agent.output])[0]
    np.testing.assert_allclose(found, model(paddle.to_tensor(images)).numpy(), atol=1e-6)


def test_two_agents_do_not_share_what_they_built() -> None:
    one, other = (Builder(*_policy_gradient()[:3]) for _ in range(2))
    before = other.get_weights()
    one.step()
    for name, array in other.get_weights().items():
        np.testing.assert_array_equal(array, before[name])


def test_the_default_startup_program_of_paddle_stays_empty() -> None:
    Builder(*_policy_gradient()[:3])
    with static_graphs():
        assert not paddle.static.default_startup_program().global_block().ops


def test_a_failing_build_program_leaves_dynamic_graphs_and_paddle_s_optimizers_as_they_were() -> None:
    class Failing(Agent):
        def build_program(self) -> None:
            raise RuntimeError("mine")

    minimize = paddle.optimizer.Optimizer.minimize
    with pytest.raises(RuntimeError, match="mine"):
        Failing(DQN(QNetwork(2)))
    assert paddle.in_dynamic_mode()
    assert paddle.optimizer.Optimizer.minimize is minimize


def test_an_agent_built_by_a_program_in_static_mode_leaves_static_mode_on() -> None:
    paddle.enable_static()
    try:
        agent = Builder(*_policy_gradient()[:3])
        assert in_program()
        assert np.isfinite(agent.step()).all()
        assert in_program()
    finally:
        paddle.disable_static()


def test_programs_are_built_and_run_in_any_thread() -> None:
    with ThreadPoolExecutor(2) as pool:
        agents = [pool.submit(Builder, *_policy_gradient()[:3]).result(timeout=240) for _ in range(2)]
        losses = [pool.submit(agent.step) for agent in agents for _ in range(5)]
        assert all(np.isfinite(loss.result(timeout=240)).all() for loss in losses)
    assert np.isfinite(agents[0].step()).all()


def test_names_of_parameters_do_not_repeat_after_a_switch() -> None:
    names = {paddle.nn.Linear(1, 1).weight.name}
    with static_graphs(), eager():
        names.add(paddle.nn.Linear(1, 1).weight.name)
    names.add(paddle.nn.Linear(1, 1).weight.name)
    assert len(names) == 3


def test_a_dropped_agent_frees_its_weights() -> None:
    agent = Builder(*_policy_gradient()[:3])
    weight = weakref.ref(agent.alg.model.hidden.weight)
    del agent
    gc.collect()
    assert weight() is None


def test_models_with_equal_names_of_parameters_are_refused_with_the_reason() -> None:
    algorithm = _dqn(DQN)[0]
    for model in (algorithm.model, algorithm.target_model):
        model.value(paddle.to_tensor(OBS))
        model.head.bias.name = "same"
    inputs = {"obs": OBS, "action": ACTION, "reward": NUMBERS[0], "next_obs": NEXT_OBS, "terminal": TERMINAL}
    with pytest.raises(ModelContractError, match="two tensors of this agent's models are called 'same'"):
        Builder(algorithm, "learn", inputs)


@pytest.mark.skipif(not PICKLES, reason="this paddle cannot pickle parameters")
def test_an_unpickled_model_works_beside_the_original_in_one_program() -> None:
    original, method, inputs, _ = _dqn(DQN)
    original.model.value(paddle.to_tensor(OBS))
    blob = pickle.dumps(original.model)
    algorithm = DQN(pickle.loads(blob))
    algorithm.target_model = pickle.loads(blob)
    assert np.isfinite(Builder(algorithm, method, inputs).step()).all()


def test_acting_in_numpy_follows_the_steps_of_a_program() -> None:
    algorithm, method, inputs, constants = _dqn(DQN)
    before = Agent(algorithm).alg.predict(paddle.to_tensor(OBS)).numpy()
    agent = Builder(algorithm, method, inputs, **constants)
    np.testing.assert_allclose(agent._forward(agent.alg.predict, OBS), before, rtol=0.0, atol=1e-6)
    for _ in range(3):
        agent.step()
        found, expected = agent._forward(agent.alg.predict, OBS), agent.alg.predict(paddle.to_tensor(OBS)).numpy()
        assert np.abs(found - before).max() > 1e-3
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-6)
    assert agent.alg.__dict__["_host_acting"]["predict"].is_chain
