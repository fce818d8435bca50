"""Refusals of agents with programs, which leave no state behind for agents without."""

# mypy: allow-untyped-calls
# Paddle leaves its programs untyped.

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

from parl_core.errors import ModelContractError
from parl_paddle import layers
from parl_paddle.agent import Agent
from parl_paddle.algorithms import PolicyGradient
from parl_paddle.model import Model

OBS, ACT, REWARD = np.ones((3, 4), np.float32), np.zeros((3, 1), np.int64), np.ones(3, np.float32)
FEED = {"obs": OBS, "act": ACT, "reward": REWARD}


class Policy(Model):
    def __init__(self) -> None:
        self.out = layers.fc(size=2, act="softmax")

    def forward(self, obs: Any) -> Any:
        return self.out(obs)


class StaticAgent(Agent):
    def __init__(self, algorithm: Any, also: Callable[["StaticAgent"], object] | None = None) -> None:
        self.also = also
        super().__init__(algorithm)

    def build_program(self) -> None:
        self.learn_program = paddle.static.Program()
        with paddle.static.program_guard(self.learn_program):
            obs = layers.data("obs", [4])
            self.cost = self.alg.learn(obs, layers.data("act", [1], "int64"), layers.data("reward", []))
            if self.also is not None:
                self.also(self)

    def step(self, **changes: Any) -> float:
        return float(self.executor.run(self.learn_program, feed=FEED | changes, fetch_list=[self.cost])[0])


def make(also: Callable[[StaticAgent], object] | None = None) -> StaticAgent:
    return StaticAgent(PolicyGradient(Policy(), lr=0.01), also)


def test_executor_and_fluid_executor_are_one() -> None:
    agent = make()
    assert agent.executor is agent.fluid_executor


@pytest.mark.parametrize("name", ["executor", "fluid_executor"])
def test_an_agent_without_programs_has_no_executor(name: str) -> None:
    with pytest.raises(ModelContractError, match=r"Agent has no executor.*build_program"):
        getattr(Agent(PolicyGradient(Policy())), name)


@pytest.mark.parametrize(
    "call",
    [
        lambda agent: agent.predict(OBS),
        lambda agent: agent.sample(OBS),
        lambda agent: agent.learn(OBS, ACT, REWARD),
        lambda agent: agent.run(agent.alg.predict, OBS),
    ],
    ids=["predict", "sample", "learn", "run"],
)
def test_methods_that_take_arrays_are_refused_while_a_program_is_built(call: Callable[[StaticAgent], object]) -> None:
    with pytest.raises(ModelContractError, match=r"takes arrays.*self\.alg\.predict"):
        make(call)
    assert paddle.in_dynamic_mode()


def test_a_program_cannot_run_while_it_is_built() -> None:
    with pytest.raises(ModelContractError, match="once build_program"):
        make(lambda agent: agent._programs.executor.run(agent.learn_program, feed=FEED))  # type: ignore[union-attr]


def test_weights_can_be_read_and_set_while_a_program_is_built() -> None:
    read: list[Any] = []

    def halve(agent: StaticAgent) -> None:
        read.append(agent.get_weights())
        agent.set_weights({name: array / 2 for name, array in read[0].items()})

    agent = make(halve)
    for name, array in agent.get_weights().items():
        np.testing.assert_array_equal(array, read[0][name] / 2)


def test_inputs_are_for_programs_alone() -> None:
    with pytest.raises(ModelContractError, match=r"layers\.data\('obs'\).*build_program"):
        layers.data("obs", [4])


def test_an_algorithm_learns_in_programs_of_its_agent_alone() -> None:
    algorithm = PolicyGradient(paddle_model := Policy())
    paddle_model(paddle.to_tensor(OBS))
    paddle.enable_static()
    try:
        with pytest.raises(ModelContractError, match=r"outside build_program\(\)"):
            algorithm._call_after_update(algorithm._count_update)
    finally:
        paddle.disable_static()


def test_flags_may_be_fed_as_the_numbers_0_and_1() -> None:
    flags: list[Any] = []
    agent = make(lambda _: flags.append(layers.cast(layers.data("over", [], "bool"), "float32")))
    for dtype in ("float32", "int32", "bool"):
        feed = FEED | {"over": np.array([0, 1, 0], dtype)}
        (fetched,) = agent.executor.run(agent.learn_program, feed=feed, fetch_list=flags)
        assert fetched.tolist() == [0.0, 1.0, 0.0]
    with pytest.raises(ValueError, match=r"'over' \(bool \[n\]\) cannot take float64"):
        agent.step(over=np.array([0.0, 0.5, 1.0]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"obs": np.ones((3, 5), np.float32)}, r"'obs' \(float32 \[n, 4\]\) cannot take an array of shape \[3, 5\]"),
        ({"obs": np.ones(4, np.float32)}, r"'obs' .* shape \[4\]"),
        ({"act": np.zeros((3, 1))}, r"'act' \(int64 \[n, 1\]\) cannot take float64"),
        ({"reward": np.array(["a", "b", "c"])}, r"'reward' .* cannot take <U1"),
        ({"reward": np.array([1.0, np.inf, 0.0])}, r"'reward' \(float32 \[n\]\) got inf at \[1\]: .*clip or drop"),
        ({"obs": np.full((3, 4), np.nan, np.float32)}, r"'obs' .* got nan at \[0, 0\]"),
    ],
    ids=["width", "dimensions", "floats_as_actions", "words", "infinite", "nan"],
)
def test_what_does_not_fit_an_input_is_refused_before_anything_runs(changes: dict[str, Any], message: str) -> None:
    agent = make()
    before = agent.get_weights()
    with pytest.raises(ValueError, match=message):
        agent.step(**changes)
    for name, array in agent.get_weights().items():
        np.testing.assert_array_equal(array, before[name])
    assert np.isfinite(agent.step())


def test_a_program_that_only_acts_may_be_fed_what_is_infinite() -> None:
    programs: dict[str, Any] = {}

    def act(agent: StaticAgent) -> None:
        programs["act"] = paddle.static.Program()
        with paddle.static.program_guard(programs["act"]):
            programs["out"] = layers.data("mask", [2]) * 1.0

    agent = make(act)
    mask = np.array([[0.0, -np.inf]], np.float32)
    (found,) = agent.executor.run(programs["act"], feed={"mask": mask}, fetch_list=[programs["out"]])
    np.testing.assert_array_equal(found, mask)


def test_a_missing_input_is_named_with_what_it_must_be() -> None:
    agent = make()
    with pytest.raises(ValueError, match=r"feed lacks 'reward' \(float32 \[n\]\); it has 'obs', 'act'"):
        agent.executor.run(agent.learn_program, feed={"obs": OBS, "act": ACT}, fetch_list=[agent.cost])


@pytest.mark.parametrize(
    "changes",
    [
        {"obs": OBS.astype(np.float64)},
        {"obs": OBS.tolist()},
        {"obs": paddle.to_tensor(OBS)},
        {"act": ACT.astype(np.int32)},
    ],
    ids=["float64", "lists", "tensor", "int32"],
)
def test_numbers_of_another_precision_are_converted(changes: dict[str, Any]) -> None:
    agent, twin = make(), make()
    twin.set_weights(agent.get_weights())
    assert agent.step(**changes) == twin.step()


def test_no_program_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match=r"no program to run.*self\.learn_program"):
        make().executor.run(None, feed=FEED)


def test_a_program_of_another_agent_is_refused() -> None:
    other = make()
    with pytest.raises(ModelContractError, match="run it with the executor of the agent that built it"):
        make().executor.run(other.learn_program, feed=FEED, fetch_list=[other.cost])


def test_a_value_of_another_program_cannot_be_fetched() -> None:
    agent, other = make(), make()
    with pytest.raises(ValueError, match="a value of another program"):
        agent.executor.run(agent.learn_program, feed=FEED, fetch_list=[other.cost])


def test_agents_without_programs_learn_beside_one_with_programs() -> None:
    static, plain = make(), Agent(PolicyGradient(Policy(), lr=0.01))
    plain.set_weights(static.get_weights())
    for _ in range(3):
        np.testing.assert_allclose(static.step(), plain.learn(OBS, ACT, REWARD), rtol=1e-5)
    assert paddle.in_dynamic_mode()
    np.testing.assert_allclose(static.get_weights()["out.bias"], plain.get_weights()["out.bias"], rtol=1e-5)
