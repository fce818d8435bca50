"""Values that a model changes beside its weights are saved and restored, whichever framework has its layers."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import parl
from conformance.small_batches import eight_transitions
from parl_core import backends

framework: Any = import_module(backends.current().name)
pytestmark = pytest.mark.usefixtures("on_the_cpu")


class Values(parl.Model):
    """Has `held` in an attribute, and as it is in a second one."""

    steps: int

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.fc = framework.nn.Linear(4, 2)
        self.held = self.shared = held

    def value(self, obs: Any) -> Any:
        if isinstance(self.held, np.ndarray):
            self.held += 1
        elif isinstance(self.held, framework.Tensor):
            self.held[:] = self.held + 1.0
        return self.fc(obs)


@pytest.mark.parametrize(
    "held", [lambda: np.zeros(3), lambda: framework.zeros([3]), lambda: framework.zeros([3], dtype=framework.bfloat16)]
)
def test_shared_arrays_and_tensors_stay_shared_in_trial_passes_and_in_a_restored_model(held: Any) -> None:
    model = Values(held())
    kept, dtype = model.held, model.held.dtype
    agent = parl.Agent(parl.algorithms.DQN(model, sync_every=1))
    agent.alg.learn(agent.alg.check_batch(eight_transitions()).map(agent.alg._tensor))
    assert model.held is model.shared is kept
    assert [float(number) for number in kept] == [1.0, 1.0, 1.0]  # that of the update alone
    state = agent.alg.get_state()
    assert {"model.held", "model.shared"} <= set(state.others)
    model.value(framework.ones([1, 4]))
    agent.alg.set_state(state)
    assert model.held is model.shared is kept
    assert model.held.dtype == dtype
    assert [float(number) for number in kept] == [1.0, 1.0, 1.0]


def test_what_a_model_merely_holds_is_not_asked_for_its_state() -> None:
    class Simulator:
        def get_state(self) -> Any:
            raise AssertionError

        def set_state(self, state: Any) -> None: ...

    teacher = framework.nn.Linear(4, 2)
    agent = parl.Agent(parl.algorithms.DQN(Values([Simulator(), [teacher], 3])))
    agent.alg.model.simulator = Simulator()
    agent.alg.model.algorithm = [agent.alg]
    assert agent.alg.get_state().others == {}


def test_values_are_those_of_one_moment() -> None:
    class Acting(np.ndarray[Any, Any]):
        """Lets go of an attribute while it is copied, as another thread may."""

        def copy(self, order: Any = "C") -> Any:
            model.__dict__.pop("steps", None)
            return super().copy(order)

    model = Values(None)
    agent = parl.Agent(parl.algorithms.DQN(model))
    model.steps = 1
    model.held = np.zeros(1).view(Acting)
    state = agent.alg.get_state()
    assert state.others["model.steps"]["value"] == 1


def test_a_value_does_not_replace_a_restored_weight_whose_memory_it_shares() -> None:
    agent = parl.Agent(parl.algorithms.DQN(Values(None)))
    agent.alg.model.held = framework.zeros_like(agent.alg.model.fc.weight)
    state = agent.alg.get_state()
    other = parl.Agent(parl.algorithms.DQN(Values(None)))
    other.alg.model.held = other.alg.model.fc.weight.detach()
    other.alg.set_state(state)
    expected = agent.get_weights()
    for name, weight in other.get_weights().items():
        np.testing.assert_array_equal(weight, expected[name])


def test_a_large_constant_is_not_kept_a_second_time_and_is_saved_if_it_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Values(None)
    model.held = framework.zeros([2**19])
    algorithm = parl.algorithms.DQN(model)
    algorithm._note_values()
    kept = [value for value in algorithm._first_values.values() if isinstance(value, np.ndarray)]
    assert sum(value.nbytes for value in kept) < 2**20
    before = algorithm.get_state()
    assert before.others == {}
    algorithm.model.held[3] = 1.0
    assert float(algorithm.get_state().arrays["model.held"].sum()) == 1.0
    algorithm.set_state(before)
    assert "model.held keeps its present value" in caplog.text


def test_a_value_is_not_put_in_the_place_of_a_generator(caplog: pytest.LogCaptureFixture) -> None:
    agent = parl.Agent(parl.algorithms.DQN(Values(None)))
    agent.alg.model.held = 2
    other = parl.Agent(parl.algorithms.DQN(Values(None)))
    other.alg.model.held = kept = np.random.default_rng(0)
    other.alg.set_state(agent.alg.get_state())
    assert other.alg.model.held is kept
    assert "model.held keeps its initial state: the restored state has no state of it" in caplog.text
    assert "has no model.held, whose saved value stays unused" in caplog.text


def test_a_tensor_that_a_model_keeps_later_or_in_another_shape_is_restored() -> None:
    agent, other = parl.Agent(parl.algorithms.DQN(Values(None))), parl.Agent(parl.algorithms.DQN(Values(None)))
    first = agent.alg.get_state()
    for held in (framework.ones([2]), framework.ones([3]), framework.ones([3]) * 2.0):
        agent.alg.model.held = held
        other.alg.set_state(agent.alg.get_state())
        assert other.alg.model.held.tolist() == held.tolist()
    other.alg.set_state(first)
    assert other.alg.model.held is None
