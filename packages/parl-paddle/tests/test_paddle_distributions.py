"""Distributions of actions, beside paddle's own where it has them, and beside numpy."""

from typing import Any

import numpy as np
import paddle
import pytest
from numpy.typing import NDArray
from paddle.distribution import Independent, Normal, kl_divergence

from parl_core.errors import DivergedError
from parl_paddle.distributions import (
    CategoricalDistribution,
    DiagGaussianDistribution,
    SoftCategoricalDistribution,
    SoftMultiCategoricalDistribution,
)

LOGITS = np.array([[0.3, -1.2, 2.0], [0.0, 0.0, 0.0]])
OTHER = np.array([[1.0, 0.5, -0.2], [2.0, 0.1, 0.0]])
MEAN, LOGSTD = np.array([[0.5, -1.0], [2.0, 0.0]]), np.array([[-0.5, 0.3], [0.1, -1.0]])


def _tensor(array: Any) -> paddle.Tensor:
    return paddle.to_tensor(array, dtype="float64")


def _probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    exponentials = np.exp(logits)
    normalised: NDArray[np.float64] = exponentials / exponentials.sum(axis=1, keepdims=True)
    return normalised


def test_the_categorical_agrees_with_its_definition() -> None:
    mine, other = CategoricalDistribution(_tensor(LOGITS)), CategoricalDistribution(_tensor(OTHER))
    p, q = _probabilities(LOGITS), _probabilities(OTHER)
    np.testing.assert_allclose(mine.logp(paddle.to_tensor([2, 1])).numpy(), np.log(p[[0, 1], [2, 1]]))
    np.testing.assert_allclose(mine.entropy().numpy(), -(p * np.log(p)).sum(axis=1))
    np.testing.assert_allclose(mine.kl(other).numpy(), (p * np.log(p / q)).sum(axis=1))
    assert mine.mode().tolist() == [2, 0]


def test_huge_logits_give_no_nan() -> None:
    distribution = CategoricalDistribution(paddle.to_tensor([[1e4, 0.0, -1e4]]))
    assert distribution.entropy().item() == pytest.approx(0.0, abs=1e-12)
    assert distribution.logp(paddle.to_tensor([0])).item() == pytest.approx(0.0, abs=1e-12)


def test_what_is_very_improbable_keeps_its_logarithm() -> None:
    distribution = CategoricalDistribution(paddle.to_tensor([[0.0, 100.0], [300.0, 0.0]]))
    np.testing.assert_allclose(distribution.logp(paddle.to_tensor([0, 1])).numpy(), [-100.0, -300.0])
    other = CategoricalDistribution(paddle.to_tensor([[100.0, 0.0], [0.0, 300.0]]))
    np.testing.assert_allclose(distribution.kl(other).numpy(), [100.0, 300.0])


def test_a_masked_action_has_probability_zero() -> None:
    distribution = CategoricalDistribution(paddle.zeros([1, 3]), paddle.to_tensor([[True, False, True]]))
    assert paddle.exp(distribution.log_probabilities).tolist() == [[pytest.approx(0.5), 0.0, pytest.approx(0.5)]]


@pytest.mark.parametrize("logit", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_end_sampling_with_what_to_do(logit: float) -> None:
    with pytest.raises(DivergedError, match="logits are NaN or infinite; go back to the last checkpoint"):
        CategoricalDistribution(paddle.to_tensor([[0.0, logit]])).sample()


def test_a_logit_of_minus_infinity_is_never_drawn() -> None:
    drawn = CategoricalDistribution(paddle.to_tensor([[-float("inf"), 0.0]] * 100)).sample()
    assert drawn.tolist() == [1] * 100


@pytest.mark.parametrize("soft", [False, True])
def test_samples_are_as_frequent_as_they_are_probable(soft: bool) -> None:
    logits = _tensor(np.repeat(LOGITS[:1], 20_000, axis=0))
    if soft:
        # The Gumbel-max trick: argmax(logits + noise) is distributed as softmax(logits).
        drawn = SoftCategoricalDistribution(logits).sample().argmax(axis=-1)
    else:
        drawn = CategoricalDistribution(logits).sample()
    assert drawn.dtype == paddle.int64
    assert drawn.shape == [20_000]
    shares = np.bincount(drawn.numpy(), minlength=3) / 20_000
    np.testing.assert_allclose(shares, _probabilities(LOGITS)[0], atol=0.02)  # five standard deviations


def test_the_gaussian_agrees_with_paddle_s() -> None:
    mine = DiagGaussianDistribution((_tensor(MEAN), _tensor(LOGSTD)))
    theirs = Independent(Normal(_tensor(MEAN), _tensor(np.exp(LOGSTD))), 1)
    action = _tensor([[0.1, 0.2], [0.3, -0.4]])
    np.testing.assert_allclose(mine.logp(action).numpy(), theirs.log_prob(action).numpy())
    np.testing.assert_allclose(mine.entropy().numpy(), theirs.entropy().numpy())
    other = DiagGaussianDistribution((_tensor(MEAN + 1.0), _tensor(LOGSTD + np.log(2.0))))
    expected = kl_divergence(
        Normal(_tensor(MEAN), _tensor(np.exp(LOGSTD))), Normal(_tensor(MEAN + 1.0), _tensor(2.0 * np.exp(LOGSTD)))
    )
    np.testing.assert_allclose(mine.kl(other).numpy(), expected.numpy().sum(axis=1))


def test_one_deviation_serves_a_whole_batch() -> None:
    distribution = DiagGaussianDistribution.from_std(_tensor(MEAN), _tensor([0.5, 2.0]))
    expected = Independent(Normal(_tensor(MEAN), _tensor([[0.5, 2.0]] * 2)), 1)
    np.testing.assert_allclose(distribution.entropy().numpy(), expected.entropy().numpy())
    assert distribution.sample().shape == [2, 2]


def test_gaussian_samples_have_the_mean_and_the_deviation() -> None:
    mean, logstd = _tensor(np.repeat(MEAN[:1], 20_000, axis=0)), _tensor(LOGSTD[:1])
    drawn = DiagGaussianDistribution((mean, logstd)).sample()
    assert drawn.stop_gradient
    np.testing.assert_allclose(drawn.numpy().mean(axis=0), MEAN[0], atol=0.05)
    np.testing.assert_allclose(drawn.numpy().std(axis=0), np.exp(LOGSTD[0]), atol=0.05)


def test_soft_samples_lie_on_the_simplex_and_carry_gradients() -> None:
    logits = _tensor(LOGITS)
    logits.stop_gradient = False
    sample = SoftCategoricalDistribution(logits).sample()
    np.testing.assert_allclose(sample.sum(axis=-1).numpy(), 1.0)
    sample[:, 0].sum().backward()
    assert logits.grad is not None
    assert (logits.grad.numpy()[:, 0] > 0).all()


def test_the_soft_multi_categorical_is_its_parts_side_by_side() -> None:
    both = SoftMultiCategoricalDistribution(_tensor(np.hstack([LOGITS, OTHER[:, :2]])), low=[0, 1], high=[2, 2])
    other = SoftMultiCategoricalDistribution(_tensor(np.hstack([OTHER, LOGITS[:, :2]])), low=[0, 1], high=[2, 2])
    parts = [SoftCategoricalDistribution(_tensor(part)) for part in (LOGITS, OTHER[:, :2])]
    others = [SoftCategoricalDistribution(_tensor(part)) for part in (OTHER, LOGITS[:, :2])]
    np.testing.assert_allclose(both.entropy().numpy(), sum(part.entropy().numpy() for part in parts))
    np.testing.assert_allclose(
        both.kl(other).numpy(), sum(mine.kl(theirs).numpy() for mine, theirs in zip(parts, others, strict=True))
    )
    assert both.mode().tolist() == [[2, 0], [0, 0]]
    expected = np.log(_probabilities(LOGITS)[:, 1]) + np.log(_probabilities(OTHER[:, :2])[:, 1])
    np.testing.assert_allclose(both.logp(_tensor([[0.0, 1.0, 0.0, 0.0, 1.0]] * 2)).numpy(), expected)
    np.testing.assert_allclose(both.sample().sum(axis=-1).numpy(), 2.0)


def test_a_wrong_number_of_logits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"actions of sizes \[3, 2\] need 5 logits, got 4"):
        SoftMultiCategoricalDistribution(paddle.zeros([2, 4]), low=[0, 1], high=[2, 2])
