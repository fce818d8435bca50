"""Distributions of actions, beside those of PyTorch itself."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions

from parl_core.errors import DivergedError
from parl_torch.distributions import (
    CategoricalDistribution,
    DiagGaussianDistribution,
    SoftCategoricalDistribution,
    SoftMultiCategoricalDistribution,
)

D: Any = distributions  # PyTorch leaves them untyped

LOGITS = torch.tensor([[0.3, -1.2, 2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
OTHER = torch.tensor([[1.0, 0.5, -0.2], [2.0, 0.1, 0.0]], dtype=torch.float64)
MEAN, LOGSTD = torch.tensor([[0.5, -1.0], [2.0, 0.0]]).double(), torch.tensor([[-0.5, 0.3], [0.1, -1.0]]).double()


def test_the_categorical_agrees_with_pytorch_s() -> None:
    mine, theirs, action = CategoricalDistribution(LOGITS), D.Categorical(logits=LOGITS), torch.tensor([2, 1])
    torch.testing.assert_close(mine.logp(action), theirs.log_prob(action))
    torch.testing.assert_close(mine.entropy(), theirs.entropy())
    expected = D.kl_divergence(theirs, D.Categorical(logits=OTHER))
    torch.testing.assert_close(mine.kl(CategoricalDistribution(OTHER)), expected)
    assert mine.mode().tolist() == [2, 0]


def test_huge_logits_give_no_nan() -> None:
    distribution = CategoricalDistribution(torch.tensor([[1e4, 0.0, -1e4]]))
    assert distribution.entropy().item() == 0.0
    assert distribution.logp(torch.tensor([0])).item() == 0.0


def test_the_gaussian_agrees_with_pytorch_s() -> None:
    mine = DiagGaussianDistribution((MEAN, LOGSTD))
    theirs = D.Independent(D.Normal(MEAN, LOGSTD.exp()), 1)
    other = D.Independent(D.Normal(MEAN + 1.0, 2.0 * LOGSTD.exp()), 1)
    action = torch.tensor([[0.1, 0.2], [0.3, -0.4]]).double()
    torch.testing.assert_close(mine.logp(action), theirs.log_prob(action))
    torch.testing.assert_close(mine.entropy(), theirs.entropy())
    divergence = mine.kl(DiagGaussianDistribution((MEAN + 1.0, LOGSTD + np.log(2.0))))
    torch.testing.assert_close(divergence, D.kl_divergence(theirs, other))


def test_one_deviation_serves_a_whole_batch() -> None:
    distribution = DiagGaussianDistribution.from_std(MEAN, torch.tensor([0.5, 2.0]).double())
    expected = D.Independent(D.Normal(MEAN, torch.tensor([0.5, 2.0]).double()), 1)
    torch.testing.assert_close(distribution.entropy(), expected.entropy())
    assert distribution.sample().shape == MEAN.shape


def test_soft_samples_lie_on_the_simplex_and_carry_gradients() -> None:
    logits = LOGITS.clone().requires_grad_()
    sample = SoftCategoricalDistribution(logits).sample()
    torch.testing.assert_close(sample.sum(dim=-1), torch.ones(2).double())
    sample[:, 0].sum().backward()  # type: ignore[no-untyped-call]  # PyTorch's
    assert logits.grad is not None
    assert (logits.grad[:, 0] > 0).all()


def test_the_largest_entry_of_soft_samples_follows_the_probabilities() -> None:
    # The Gumbel-max trick: argmax(logits + noise) is distributed as softmax(logits).
    drawn = SoftCategoricalDistribution(LOGITS[:1].expand(20_000, -1)).sample().argmax(dim=-1)
    shares = torch.bincount(drawn, minlength=3) / 20_000
    torch.testing.assert_close(shares.double(), torch.softmax(LOGITS[0], 0), atol=0.02, rtol=0)


def test_the_soft_multi_categorical_is_its_parts_side_by_side() -> None:
    logits = torch.cat([LOGITS, OTHER[:, :2]], dim=1)
    distribution = SoftMultiCategoricalDistribution(logits, low=[0, 1], high=[2, 2])
    parts = [D.Categorical(logits=LOGITS), D.Categorical(logits=OTHER[:, :2])]
    torch.testing.assert_close(distribution.entropy(), sum(part.entropy() for part in parts))
    assert distribution.mode().tolist() == [[2, 0], [0, 0]]
    hard = torch.tensor([[0.0, 1.0, 0.0, 0.0, 1.0]] * 2).double()
    expected = parts[0].log_prob(torch.tensor([1, 1])) + parts[1].log_prob(torch.tensor([1, 1]))
    torch.testing.assert_close(distribution.logp(hard), expected)
    torch.testing.assert_close(distribution.sample().sum(dim=-1), torch.full((2,), 2.0).double())
    other = SoftMultiCategoricalDistribution(torch.cat([OTHER, LOGITS[:, :2]], dim=1), low=[0, 1], high=[2, 2])
    divergence = D.kl_divergence(parts[0], D.Categorical(logits=OTHER)) + D.kl_divergence(
        parts[1], D.Categorical(logits=LOGITS[:, :2])
    )
    torch.testing.assert_close(distribution.kl(other), divergence)


def test_a_wrong_number_of_logits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"actions of sizes \[3, 2\] need 5 logits, got 4"):
        SoftMultiCategoricalDistribution(torch.zeros(2, 4), low=[0, 1], high=[2, 2])


@pytest.mark.parametrize("logit", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_end_sampling_with_what_to_do(logit: float) -> None:
    with pytest.raises(DivergedError, match="logits are NaN or infinite; go back to the last checkpoint"):
        CategoricalDistribution(torch.tensor([[0.0, logit]])).sample()


def test_log_probabilities_of_many_short_rows_and_their_slopes_are_those_of_a_few() -> None:
    logits = torch.randn(2048, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    many = CategoricalDistribution(logits).log_probabilities
    few = torch.cat([CategoricalDistribution(rows).log_probabilities for rows in logits.split(64)])
    torch.testing.assert_close(many, few)
    weights = torch.arange(5.0)
    slopes = [torch.autograd.grad((found * weights).sum(), logits) for found in (many, few)]
    torch.testing.assert_close(*slopes)
    assert many.is_contiguous()
