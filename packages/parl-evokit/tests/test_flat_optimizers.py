"""SGD, momentum and Adam against their formulas in float64, and to the bit against themselves."""

import math
import struct
from collections.abc import Callable

import numpy as np
import pytest

from parl_evokit.errors import EvolutionError, LayoutMismatch
from parl_evokit.optimizers import SGD, Adam, Momentum, Optimizer, StepDiverged

Make = Callable[[int], Optimizer]
ALL: dict[str, Make] = {
    "sgd": lambda n: SGD(n, 0.05),
    "momentum": lambda n: Momentum(n, 0.05, 0.8),
    "adam": lambda n: Adam(n, 0.05, 0.9, 0.99, 1e-6),
}
each = pytest.mark.parametrize("make", ALL.values(), ids=ALL)


def gradients(size: int, steps: int) -> list[np.ndarray]:
    generator = np.random.Generator(np.random.Philox(3))
    return [generator.standard_normal(size, dtype=np.float32) for _ in range(steps)]


def run(optimizer: Optimizer, steps: list[np.ndarray]) -> np.ndarray:
    parameters = np.ones(len(steps[0]), np.float32)
    for gradient in steps:
        parameters = optimizer.step(parameters, gradient)
    return parameters


def test_sgd_steps_against_the_gradient() -> None:
    out = SGD(2, 0.5).step(np.array([1.0, 2.0], np.float32), np.array([1.0, -4.0], np.float32))
    assert out.tolist() == [0.5, 4.0]


def test_momentum_averages_gradients() -> None:
    optimizer = Momentum(1, 1.0, 0.75)
    first = optimizer.step(np.zeros(1, np.float32), np.array([4.0], np.float32))
    assert first.tolist() == [-1.0]  # m = 0.25 * 4
    assert optimizer.step(first, np.zeros(1, np.float32)).tolist() == [-1.75]  # m = 0.75 * 1


def test_the_first_step_of_adam_is_the_learning_rate_whatever_the_gradients_size() -> None:
    out = Adam(3, 0.01).step(np.zeros(3, np.float32), np.array([1e-3, -7.0, 4e5], np.float32))
    assert out == pytest.approx([-0.01, 0.01, -0.01], rel=1e-3)


def test_adam_agrees_with_the_papers_algorithm_in_float64() -> None:
    m = v = np.zeros(50)
    theta = np.ones(50)
    for t, g in enumerate(gradients(50, 100), start=1):
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * g.astype(np.float64) ** 2
        theta = theta - 0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.99**t)) + 1e-12)
    ours = run(Adam(50, 0.05, 0.9, 0.99, 1e-12), gradients(50, 100))
    assert ours == pytest.approx(theta, abs=2e-5)


def test_bias_correction_counts_steps_not_arrays() -> None:
    whole = run(Adam(200_000, 0.05), gradients(200_000, 3))
    part = run(Adam(10, 0.05), [gradient[150_000:150_010] for gradient in gradients(200_000, 3)])
    assert (whole[150_000:150_010] == part).all()


@each
def test_a_step_leaves_parameters_and_gradient_alone_and_may_work_in_place(make: Make) -> None:
    parameters, gradient = np.ones(5, np.float32), np.full(5, 2.0, np.float32)
    out = make(5).step(parameters, gradient)
    assert parameters.tolist() == [1.0] * 5
    assert gradient.tolist() == [2.0] * 5
    assert make(5).step(parameters, gradient.copy(), out=parameters.copy()).tolist() == out.tolist()
    overwritten = gradient.copy()
    assert make(5).step(parameters, overwritten, out=overwritten).tolist() == out.tolist()
    assert make(5).step(parameters, gradient, out=parameters) is parameters
    assert (parameters == out).all()


@each
def test_a_restored_optimizer_goes_on_to_the_same_bits(make: Make) -> None:
    steps = gradients(1000, 10)
    straight = run(make(1000), steps)
    first, second = make(1000), make(1000)
    middle = run(first, steps[:5])
    second.load_state(first.state())
    for gradient in steps[5:]:
        middle = second.step(middle, gradient)
    assert (middle == straight).all()
    assert second.steps == 10


@pytest.mark.parametrize("kind", [SGD, Momentum, Adam])
@pytest.mark.parametrize(("lr", "gradient"), [(3e38, 10.0), (1e30, 1e20)])
def test_a_step_that_is_not_finite_changes_nothing(kind: Callable[..., Optimizer], lr: float, gradient: float) -> None:
    optimizer = kind(3, lr)
    parameters = np.full(3, -3e38, np.float32)
    optimizer.finite_step(parameters, np.zeros(3, np.float32), 0.0)
    before = optimizer.state()
    with pytest.raises(StepDiverged):
        optimizer.finite_step(parameters, np.full(3, gradient, np.float32), gradient * math.sqrt(3))
    assert {name: array.tolist() for name, array in optimizer.state().items()} == {
        name: array.tolist() for name, array in before.items()
    }


@each
def test_a_state_that_does_not_fit_is_refused_and_nothing_is_taken_over(make: Make) -> None:
    optimizer = make(4)
    with pytest.raises(LayoutMismatch, match="state is"):
        optimizer.load_state({"steps": np.array(3), "other": np.zeros(4, np.float32)})
    wrong = {"steps": np.array(3)} | {name: np.zeros(5, np.float32) for name in optimizer.moments}
    if optimizer.moments:
        with pytest.raises(LayoutMismatch, match=r"\(4,\), not float32 \(5,\)"):
            optimizer.load_state(wrong)
    assert optimizer.steps == 0


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda: SGD(1, 0.0), "base_lr"),
        (lambda: SGD(1, float("nan")), "base_lr"),
        (lambda: Momentum(1, 0.1, 1.0), "momentum"),
        (lambda: Adam(1, 0.1, -0.1), "beta1"),
        (lambda: Adam(1, 0.1, 0.9, 1.5), "beta2"),
        (lambda: Adam(1, 0.1, 0.9, 0.9, 0.0), "epsilon"),
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], Optimizer], value: str) -> None:
    with pytest.raises(EvolutionError, match=value):
        make()


def single(value: float) -> float:
    """Rounds to float32; after one operation on float32 numbers in float64 this is what float32 arithmetic gives."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def decayed(moment: float, decay: float, target: float) -> float:
    return single(single(moment * single(decay)) + single(single(1.0 - decay) * target))


def sgd_by_hand(theta: float, steps: list[float]) -> float:
    for g in steps:
        theta = single(theta - single(single(0.05) * g))
    return theta


def momentum_by_hand(theta: float, steps: list[float]) -> float:
    m = 0.0
    for g in steps:
        m = decayed(m, 0.8, g)
        theta = single(theta - single(single(0.05) * m))
    return theta


def adam_by_hand(theta: float, steps: list[float]) -> float:
    m = v = 0.0
    for t, g in enumerate(steps, start=1):
        m, v = decayed(m, 0.9, g), decayed(v, 0.99, single(g * g))
        rate = single(0.05 * (math.sqrt(1.0 - squared_power(0.99, t)) / (1.0 - squared_power(0.9, t))))
        theta = single(theta - single(rate * single(m / single(single(math.sqrt(v)) + single(1e-6)))))
    return theta


def squared_power(base: float, exponent: int) -> float:
    if exponent == 0:
        return 1.0
    half = squared_power(base, exponent // 2)
    return half * half * (base if exponent % 2 else 1.0)


BY_HAND = {"sgd": sgd_by_hand, "momentum": momentum_by_hand, "adam": adam_by_hand}


@pytest.mark.parametrize("name", BY_HAND)
def test_every_bit_is_that_of_one_float_at_a_time(name: str) -> None:
    steps = gradients(300, 25)
    ours = run(ALL[name](300), steps)
    by_hand = [BY_HAND[name](1.0, [float(gradient[i]) for gradient in steps]) for i in range(300)]
    assert ours.tolist() == by_hand


def test_decays_may_be_changed_between_steps() -> None:
    momentum, adam = Momentum(2, 0.1, 0.9), Adam(2, 0.1)
    momentum.momentum, adam.beta1, adam.beta2, adam.epsilon = 0.0, 0.5, 0.5, 1.0
    np.testing.assert_allclose(momentum.step(np.zeros(2, np.float32), np.ones(2, np.float32)), -0.1, rtol=1e-6)
    expected = Adam(2, 0.1, 0.5, 0.5, 1.0).step(np.zeros(2, np.float32), np.ones(2, np.float32))
    np.testing.assert_array_equal(adam.step(np.zeros(2, np.float32), np.ones(2, np.float32)), expected)
