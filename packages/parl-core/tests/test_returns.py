"""Returns and advantages, against numbers made by hand and sums written out as the papers have them."""

import numpy as np
import pytest

from parl_core.errors import HyperparameterError
from parl_core.returns import (
    calc_discount_norm_reward,
    calc_discount_sum_rewards,
    calc_gae,
    discounted_returns,
    gae,
    n_step_returns,
    vtrace,
)

T, N = 12, 5


class Data:
    """Random steps of N environments in which episodes end both ways."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.r, self.v, self.v_next = rng.normal(size=(3, T, N))
        self.end = rng.random((T, N)) < 0.2
        self.cut = ~self.end & (rng.random((T, N)) < 0.2)
        # As in real rollouts: inside an episode the next value is that of the next row.
        inside = ~(self.end | self.cut)[:-1]
        self.v_next[:-1][inside] = self.v[1:][inside]
        self.log_mu, self.log_pi = rng.normal(size=(2, T, N)) * 0.5

    @property
    def steps(self) -> tuple[np.ndarray, ...]:
        return self.r, self.v, self.v_next, self.end, self.cut


def last_step(data: Data, t: int, i: int, most: int = T) -> int:
    """The last step of the episode that t is in, or of the data, or `most` steps on."""
    for k in range(t, min(T, t + most)):
        if data.end[k, i] or data.cut[k, i]:
            return k
    return min(T, t + most) - 1


def future_value(data: Data, t: int, i: int) -> float:
    return 0.0 if data.end[t, i] else float(data.v_next[t, i])


def test_gae_by_hand_for_a_terminated_and_a_truncated_step() -> None:
    # delta: 1 + 0.5 * 4 - 2 = 1;  1 + 0 - 4 = -3 (terminated);  2 + 0.5 * 6 - 1 = 4 (truncated);  0 + 0.5 * 2 - 3 = -2
    advantage = gae(
        [1.0, 1.0, 2.0, 0.0],
        [2.0, 4.0, 1.0, 3.0],
        [4.0, 9.0, 6.0, 2.0],
        [False, True, False, False],
        [False, False, True, False],
        gamma=0.5,
        lam=0.5,
    )
    assert advantage.tolist() == [1 + 0.25 * -3, -3.0, 4.0, -2.0]


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_gae_is_the_sum_of_equation_16(lam: float) -> None:
    data, gamma = Data(1), 0.9
    got = gae(*data.steps, gamma=gamma, lam=lam)
    for t in range(T):
        for i in range(N):
            expected = sum(
                (gamma * lam) ** (k - t) * (data.r[k, i] + gamma * future_value(data, k, i) - data.v[k, i])
                for k in range(t, last_step(data, t, i) + 1)
            )
            assert got[t, i] == pytest.approx(expected, abs=1e-12)


def test_gae_with_lambda_one_is_the_return_minus_the_value() -> None:
    data = Data(2)
    returns = discounted_returns(data.r, data.v_next, data.end, data.cut, gamma=0.9)
    assert np.allclose(gae(*data.steps, gamma=0.9, lam=1.0), returns - data.v)


def test_discounted_returns_sum_to_the_end_of_the_episode() -> None:
    data, gamma = Data(3), 0.8
    got = discounted_returns(data.r, data.v_next, data.end, data.cut, gamma=gamma)
    for t in range(T):
        for i in range(N):
            last = last_step(data, t, i)
            expected = sum(gamma ** (k - t) * data.r[k, i] for k in range(t, last + 1))
            expected += gamma ** (last + 1 - t) * future_value(data, last, i)
            assert got[t, i] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n", [1, 3, 50])
def test_n_step_returns_sum_n_rewards_and_bootstrap(n: int) -> None:
    data, gamma = Data(4), 0.8
    got = n_step_returns(data.r, data.v_next, data.end, data.cut, gamma=gamma, n=n)
    for t in range(T):
        for i in range(N):
            last = last_step(data, t, i, most=n)
            expected = sum(gamma ** (k - t) * data.r[k, i] for k in range(t, last + 1))
            expected += gamma ** (last + 1 - t) * future_value(data, last, i)
            assert got[t, i] == pytest.approx(expected, abs=1e-12)


def test_vtrace_is_the_sum_of_equation_1() -> None:
    data, gamma, rho_bar, c_bar = Data(5), 0.9, 1.2, 0.8
    got = vtrace(data.log_mu, data.log_pi, *data.steps, gamma=gamma, rho_bar=rho_bar, c_bar=c_bar)
    ratio = np.exp(data.log_pi - data.log_mu)
    rho, c = np.minimum(rho_bar, ratio), np.minimum(c_bar, ratio)
    vs = np.zeros((T, N))
    for t in range(T):
        for i in range(N):
            vs[t, i] = data.v[t, i] + sum(
                gamma ** (k - t)
                * np.prod(c[t:k, i])
                * rho[k, i]
                * (data.r[k, i] + gamma * future_value(data, k, i) - data.v[k, i])
                for k in range(t, last_step(data, t, i) + 1)
            )
    assert np.allclose(got.vs, vs)
    for t in range(T):
        for i in range(N):
            over = data.end[t, i] or data.cut[t, i] or t == T - 1
            following = future_value(data, t, i) if over else vs[t + 1, i]
            expected = min(1.0, ratio[t, i]) * (data.r[t, i] + gamma * following - data.v[t, i])
            assert got.pg_advantages[t, i] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("lam", [0.6, 1.0])
def test_vtrace_of_the_acting_policy_itself_is_the_lambda_return(lam: float) -> None:
    data = Data(6)
    on_policy = vtrace(data.log_mu, data.log_mu, *data.steps, gamma=0.9, lam=lam)
    assert np.allclose(on_policy.vs, gae(*data.steps, gamma=0.9, lam=lam) + data.v)


def test_one_environment_without_its_axis_gives_the_same_numbers() -> None:
    data = Data(7)
    column = [array[:, 0] for array in data.steps]
    assert np.array_equal(gae(*column, gamma=0.9, lam=0.8), gae(*data.steps, gamma=0.9, lam=0.8)[:, 0])


def test_float32_stays_float32_and_arguments_stay_as_they_were() -> None:
    data = Data(8)
    given = [array.astype(np.float32) if array.dtype == np.float64 else array for array in data.steps]
    before = [array.copy() for array in given]
    assert gae(*given, gamma=0.9, lam=0.8).dtype == np.float32
    assert n_step_returns(given[0], *given[2:], gamma=0.9, n=3).dtype == np.float32
    discounted_returns(given[0], *given[2:], gamma=0.9)
    for array, original in zip(given, before, strict=True):
        assert np.array_equal(array, original)


def test_shapes_that_differ_are_all_in_the_message() -> None:
    with pytest.raises(ValueError, match=r"\[3\], \[2\], \[3\], \[3\], \[3\]"):
        gae(np.zeros(3), np.zeros(2), np.zeros(3), np.zeros(3), np.zeros(3), gamma=0.9, lam=0.9)


@pytest.mark.parametrize(("gamma", "lam"), [(1.1, 0.5), (0.5, -0.1), (float("nan"), 0.5)])
def test_discounts_out_of_range_are_refused(gamma: float, lam: float) -> None:
    with pytest.raises(HyperparameterError):
        gae([1.0], [1.0], [1.0], [False], [False], gamma=gamma, lam=lam)


def test_calc_discount_sum_rewards_by_hand() -> None:
    assert calc_discount_sum_rewards([1, 2, 3], 0.5).tolist() == [1 + 0.5 * 2 + 0.25 * 3, 2 + 0.5 * 3, 3]
    assert calc_discount_sum_rewards([], 0.5).tolist() == []


def test_calc_gae_by_hand() -> None:
    # delta: 1 + 0.5 * 1 - 2 = -0.5;  2 + 0.5 * 4 - 1 = 3
    assert calc_gae([1, 2], [2, 1], 4, 0.5, 0.5).tolist() == [-0.5 + 0.25 * 3, 3.0]


def test_calc_discount_norm_reward_has_mean_zero_and_deviation_one() -> None:
    got = calc_discount_norm_reward([1, 1, 1], 0.5)  # sums 1.75, 1.5, 1
    sums = np.array([1.75, 1.5, 1.0])
    assert np.allclose(got, (sums - sums.mean()) / sums.std())


@pytest.mark.parametrize("rewards", [[1.0], [0.0, 0.0, 0.0], [0.1, 0.1, 0.1], []])
def test_equal_sums_normalise_to_zeros_not_to_nan(rewards: list[float]) -> None:
    assert calc_discount_norm_reward(rewards, 0.0).tolist() == [0.0] * len(rewards)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_normalised_sums_of_rewards_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=rf"rewards must be finite, got {bad} in step 1"):
        calc_discount_norm_reward([1.0, bad, 2.0], 0.9)
