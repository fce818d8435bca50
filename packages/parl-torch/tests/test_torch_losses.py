"""Losses on numbers worked out by hand."""

import math

import pytest
import torch

from parl_torch.losses._proximal import Behaviour, proximal_losses
from parl_torch.losses.policy import (
    approximate_kl,
    clipped_surrogate,
    kl_penalised_surrogate,
    log_prob_of_action,
    policy_gradient,
)
from parl_torch.losses.squashed import squashed_gaussian
from parl_torch.losses.value import clipped_value_loss, double_q_learning, q_learning, squared_error, td_error

Q_TM1 = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
Q_T = torch.tensor([[5.0, 1.0], [0.0, 2.0]])
A_TM1, R_T, DISCOUNT_T = torch.tensor([0, 1]), torch.tensor([1.0, -1.0]), torch.tensor([0.5, 0.0])


def test_q_learning_bootstraps_from_the_best_action() -> None:
    # 1 + 0.5 * 5 - 1 and -1 + 0 * 2 - 4
    assert q_learning(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T).tolist() == [2.5, -5.0]


def test_double_q_learning_takes_the_selector_s_action() -> None:
    selector = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    # 1 + 0.5 * 1 - 1 and -1 + 0 - 4
    assert double_q_learning(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T, selector).tolist() == [0.5, -5.0]


def test_no_gradient_flows_into_the_target() -> None:
    q_t = Q_T.clone().requires_grad_()
    q_tm1 = Q_TM1.clone().requires_grad_()
    squared_error(q_learning(q_tm1, A_TM1, R_T, DISCOUNT_T, q_t)).backward()  # type: ignore[no-untyped-call]  # PyTorch's
    assert q_t.grad is None
    # d/dq mean(error**2) = -2 * error / n at the action taken
    assert q_tm1.grad is not None
    assert q_tm1.grad.tolist() == [[-2.5, 0.0], [0.0, 5.0]]


def test_weights_scale_each_squared_error() -> None:
    error = torch.tensor([2.0, 3.0])
    assert squared_error(error).item() == 6.5
    assert squared_error(error, torch.tensor([1.0, 0.5])).item() == (4.0 + 4.5) / 2


def test_the_clipped_value_loss_takes_the_larger_error() -> None:
    v, v_old, target = torch.tensor([1.0, 0.1]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0])
    # First: free 0, limited (0.2 - 1)**2 = 0.64. Second: within the limit, (0.1 - 1)**2 = 0.81.
    assert clipped_value_loss(v, v_old, target, 0.2).item() == pytest.approx(0.5 * (0.64 + 0.81) / 2)


def test_the_surrogate_is_limited_on_the_side_that_pays() -> None:
    ratio, adv = torch.tensor([2.0, 2.0, 0.5, 0.5]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    # min(r A, clip(r) A): 1.2, -2, 0.5, -0.8
    assert clipped_surrogate(ratio, adv, 0.2).item() == pytest.approx(-(1.2 - 2.0 + 0.5 - 0.8) / 4)


def test_the_kl_penalty_is_added() -> None:
    ratio, adv, kl = torch.tensor([2.0, 1.0]), torch.tensor([1.0, 3.0]), torch.tensor([0.1, 0.3])
    assert kl_penalised_surrogate(ratio, adv, kl, 10.0).item() == pytest.approx(-2.5 + 2.0)


def test_the_policy_gradient_weighs_log_probabilities() -> None:
    probabilities = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    log_prob = log_prob_of_action(probabilities, torch.tensor([0, 1]))
    assert policy_gradient(log_prob, torch.tensor([2.0, -1.0])).item() == pytest.approx(
        -(2.0 * math.log(0.25) - math.log(0.5)) / 2
    )


def test_an_impossible_action_has_a_finite_log_probability() -> None:
    assert torch.isfinite(log_prob_of_action(torch.tensor([[0.0, 1.0]]), torch.tensor([0]))).all()


def test_the_approximate_kl_is_never_negative_and_zero_without_change() -> None:
    log_ratio = torch.tensor([0.5, -0.5, 0.0])
    assert approximate_kl(log_ratio, log_ratio.exp()).item() == pytest.approx((math.exp(0.5) + math.exp(-0.5) - 2) / 3)
    assert approximate_kl(torch.zeros(3), torch.ones(3)).item() == 0.0


@pytest.mark.parametrize("wrong", [torch.zeros(2, 1), torch.zeros(3)])
def test_shapes_that_would_broadcast_are_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"shapes differ: a_tm1 \(2,\), r_t "):
        q_learning(Q_TM1, A_TM1, wrong, DISCOUNT_T, Q_T)
    with pytest.raises(ValueError, match="shapes differ"):
        clipped_surrogate(torch.ones(2), wrong, 0.2)
    with pytest.raises(ValueError, match="shapes differ"):
        squared_error(torch.ones(2), wrong)


def test_the_temporal_difference_bootstraps_where_something_follows() -> None:
    r_t, discount_t, v_t, q_tm1 = (
        torch.tensor([1.0, -1.0]),
        torch.tensor([0.5, 0.0]),
        torch.tensor([4.0, 9.0]),
        torch.tensor([2.0, 2.0]),
    )
    assert td_error(q_tm1, r_t, discount_t, v_t).tolist() == [1.0, -3.0]


def test_a_squashed_gaussian_has_the_density_of_the_change_of_variables() -> None:
    # u = 0.5 + 2 * 0.25 = 1; log N(1; 0.5, 2) = -0.5 * 0.25^2 - log 2 - 0.5 log(2 pi); tanh has the slope 1 - tanh^2.
    mean, log_std, noise = torch.tensor([[0.5]]), torch.tensor([[math.log(2.0)]]), torch.tensor([[0.25]])
    action, log_prob = squashed_gaussian(mean, log_std, noise)
    assert action.item() == pytest.approx(math.tanh(1.0), abs=1e-6)
    log_normal = -0.5 * 0.25**2 - math.log(2.0) - 0.5 * math.log(2.0 * math.pi)
    assert log_prob.item() == pytest.approx(log_normal - math.log(1.0 - math.tanh(1.0) ** 2), abs=1e-5)


@pytest.mark.parametrize("clips_value", [True, False])
def test_second_derivatives_of_the_fused_loss_of_ppo_are_those_of_finite_differences(clips_value: bool) -> None:
    draw = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    inputs, targets, chosen = drawn(32, 4), [drawn(32) for _ in range(3)], torch.randint(3, (32,), generator=draw)
    start = drawn(4, 4)

    def loss(weights: torch.Tensor) -> torch.Tensor:
        output = inputs @ weights
        log_probs = output[:, :3].log_softmax(1)
        log_prob = log_probs.gather(1, chosen.unsqueeze(1)).squeeze(1)
        entropy = -(log_probs.exp() * log_probs).sum(1)
        behaviour = Behaviour(targets[0] - 1.5, targets[1], targets[2] + 0.1, targets[2])
        return proximal_losses(
            log_prob, entropy, output[:, 3], behaviour, 0.2, clips_value=clips_value, value_coef=0.7, entropy_coef=0.1
        )[0]

    vector = drawn(4, 4)
    weights = start.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(weights), weights, create_graph=True)
    (product,) = torch.autograd.grad((gradient * vector).sum(), weights)

    def gradient_at(shift: float) -> torch.Tensor:
        moved = (start + shift * vector).requires_grad_()
        (found,) = torch.autograd.grad(loss(moved), moved)
        return found

    expected = (gradient_at(1e-6) - gradient_at(-1e-6)) / 2e-6
    torch.testing.assert_close(product, expected, rtol=1e-5, atol=1e-6)
