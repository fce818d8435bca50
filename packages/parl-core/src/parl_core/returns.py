"""Returns and advantages from rewards and values, in numpy; time is the first axis, environments the second.

                       r_t        terminated_t  truncated_t
    arrays `[T, N]`:   V(s_t)     ── the value of the observation that was acted on
                       V(s_t+1)   ── of the one the step led to: at the end of an episode the final one,
                                     not that after the reset

A terminated step does not bootstrap. A truncated step (time limit) bootstraps from V(s_t+1), which stands for the
rewards that were cut off. Neither uses anything of the next episode. Arrays may be `[T]` or `[T, N]`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_core.checks import check_fraction, check_int, first_not_finite

__all__ = [
    "VTrace",
    "calc_discount_norm_reward",
    "calc_discount_sum_rewards",
    "calc_gae",
    "discounted_returns",
    "gae",
    "n_step_returns",
    "vtrace",
]

Floats = NDArray[np.floating[Any]]


class VTrace(NamedTuple):
    """Results of V-trace: value targets `vs` and policy-gradient advantages, both of the rewards' shape."""

    vs: Floats
    pg_advantages: Floats


def gae(
    rewards: ArrayLike,
    values: ArrayLike,
    next_values: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    *,
    gamma: float,
    lam: float,
) -> Floats:
    """Return generalized advantages (Schulman et al. 2016, arXiv:1506.02438, equations 11, 12 and 16).

        delta_t = r_t + gamma V(s_t+1) (1 - terminated_t) - V(s_t)
        A_t     = delta_t + gamma lam (1 - terminated_t) (1 - truncated_t) A_t+1

    Args:
        rewards: `[T, N]` or `[T]`, like all others.
        values: V(s_t).
        next_values: V(s_t+1); see this module's description for the ends of episodes.
        terminated: bool, True where the step terminated its episode.
        truncated: bool, True where the step truncated its episode.
        gamma: Discount of the next step, in [0, 1].
        lam: The lambda in [0, 1]: 0 is the one-step error, 1 the Monte-Carlo return minus the value.

    Returns:
        Advantages, of the rewards' shape, in the float type of rewards and values. Plus `values` they are the
        lambda-returns that values are trained on.

    Raises:
        HyperparameterError: Gamma or lam is out of its range.
        ValueError: The shapes differ.
    """
    check_fraction("gamma", gamma)
    check_fraction("lam", lam)
    r, v, v_next, end, cut = _aligned(rewards, values, next_values, terminated, truncated)
    advantages = r + gamma * v_next * ~end - v
    return _scan(advantages, (gamma * lam) * _ongoing(end, cut, r))


def discounted_returns(
    rewards: ArrayLike,
    next_values: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    *,
    gamma: float,
) -> Floats:
    """Return discounted sums of rewards to the end of each episode, or to the last step and V(s_T) from there.

        R_t = r_t + gamma R_t+1            inside an episode
        R_t = r_t                          where it terminated
        R_t = r_t + gamma V(s_t+1)         where it was truncated, and at the last step

    Args:
        rewards: `[T, N]` or `[T]`, like all others.
        next_values: V(s_t+1); only those of truncated steps and of the last one count.
        terminated: bool, True where the step terminated its episode.
        truncated: bool, True where the step truncated its episode.
        gamma: Discount of the next step, in [0, 1].

    Raises:
        HyperparameterError: Gamma is out of its range.
        ValueError: The shapes differ.
    """
    check_fraction("gamma", gamma)
    r, v_next, _, end, cut = _aligned(rewards, next_values, next_values, terminated, truncated)
    cut = cut.copy()
    cut[-1:] = True
    returns = r + gamma * v_next * (cut & ~end)
    return _scan(returns, gamma * _ongoing(end, cut, r))


def n_step_returns(
    rewards: ArrayLike,
    next_values: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    *,
    gamma: float,
    n: int,
) -> Floats:
    """Return sums of at most `n` rewards, and the value of where they lead (Sutton & Barto 2018, equation 7.1).

        G_t = r_t + gamma r_t+1 + ... + gamma^(m-1) r_t+m-1 + gamma^m V(s_t+m)

    m is n, or less where the episode or the arrays end earlier; after a terminated step the value is 0.

    Args:
        rewards: `[T, N]` or `[T]`, like all others.
        next_values: V(s_t+1).
        terminated: bool, True where the step terminated its episode.
        truncated: bool, True where the step truncated its episode.
        gamma: Discount of the next step, in [0, 1].
        n: Number of rewards, at least 1.

    Raises:
        HyperparameterError: Gamma or n is out of its range.
        ValueError: The shapes differ.
    """
    check_fraction("gamma", gamma)
    check_int("n", n)
    r, v_next, _, end, cut = _aligned(rewards, next_values, next_values, terminated, truncated)
    goes_on = ~(end | cut)
    bootstrapped = r + gamma * v_next * ~end  # G of one step
    returns = bootstrapped.copy()
    for _ in range(n - 1):  # G of k + 1 steps is r_t + gamma times G of k steps, one step later
        longer = r[:-1] + gamma * returns[1:]
        returns[:-1] = np.where(goes_on[:-1], longer, bootstrapped[:-1])
    return returns


def vtrace(
    behaviour_log_prob: ArrayLike,
    target_log_prob: ArrayLike,
    rewards: ArrayLike,
    values: ArrayLike,
    next_values: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    *,
    gamma: float,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
) -> VTrace:
    """Return V-trace targets for data of an older policy (Espeholt et al. 2018, arXiv:1802.01561, section 4.1).

        rho_t   = min(rho_bar, pi(a_t|s_t) / mu(a_t|s_t)),    c_t = lam min(c_bar, the same ratio)
        delta_t = rho_t (r_t + gamma V(s_t+1) - V(s_t))
        vs_t    = V(s_t) + delta_t + gamma c_t (vs_t+1 - V(s_t+1))
        A_t     = min(pg_rho_bar, ratio) (r_t + gamma vs_t+1 - V(s_t))

    At a truncated step and at the last one vs_t+1 is V(s_t+1); after a terminated one both are 0.

    Args:
        behaviour_log_prob: log mu(a_t|s_t) of the policy that acted; `[T, N]` or `[T]`, like all others.
        target_log_prob: log pi(a_t|s_t) of the policy that learns.
        rewards: The rewards r_t.
        values: V(s_t).
        next_values: V(s_t+1).
        terminated: bool, True where the step terminated its episode.
        truncated: bool, True where the step truncated its episode.
        gamma: Discount of the next step, in [0, 1].
        lam: The lambda, in [0, 1] (remark 2 of the paper); 1 is the paper's choice.
        rho_bar: The bound that decides which policy's value is learned (1 in the paper).
        c_bar: The bound that decides how fast (1 in the paper).
        pg_rho_bar: The bound of the policy gradient's weights (1 in the paper).

    Raises:
        HyperparameterError: Gamma or lam is out of its range.
        ValueError: The shapes differ.
    """
    check_fraction("gamma", gamma)
    check_fraction("lam", lam)
    r, v, v_next, end, cut = _aligned(rewards, values, next_values, terminated, truncated)
    ratio = np.exp(np.asarray(target_log_prob, r.dtype) - np.asarray(behaviour_log_prob, r.dtype))
    if ratio.shape != r.shape:
        raise ValueError(
            f"log-probabilities have the shape {list(ratio.shape)}, rewards {list(r.shape)}: pass the same"
        )
    v_next = v_next * ~end
    corrections = np.minimum(rho_bar, ratio) * (r + gamma * v_next - v)
    vs = _scan(corrections, gamma * lam * np.minimum(c_bar, ratio) * _ongoing(end, cut, r)) + v
    vs_next = v_next.copy()
    vs_next[:-1] = np.where((end | cut)[:-1], v_next[:-1], vs[1:])
    return VTrace(vs, np.minimum(pg_rho_bar, ratio) * (r + gamma * vs_next - v))


def calc_discount_sum_rewards(rewards: ArrayLike, gamma: float) -> Floats:
    """Return the discounted sum of the rewards from each step on: R_t = r_t + gamma R_t+1, R_T-1 = r_T-1.

    Args:
        rewards: `[T]` or `[T, N]`, of one episode each.
        gamma: Discount of the next step.
    """
    sums = _floats(rewards)
    return _scan(sums.copy(), np.full(sums.shape, gamma, sums.dtype))


def calc_discount_norm_reward(reward_list: ArrayLike, gamma: float) -> Floats:
    """Return discounted sums of one episode's rewards, shifted and scaled to mean 0 and standard deviation 1.

    Args:
        reward_list: `[T]` rewards of one episode.
        gamma: Discount of the next step.

    Returns:
        `[T]`; where all sums are equal, zeros.

    Raises:
        ValueError: A reward is NaN or infinite.
    """
    rewards = np.asarray(reward_list, np.float64)
    if (at := first_not_finite(rewards)) is not None:
        raise ValueError(f"rewards must be finite, got {rewards[at]} in step {at[0]}: correct the environment")
    sums = calc_discount_sum_rewards(rewards, gamma)
    size = np.abs(sums).max(initial=0.0)
    spread = sums.std() if sums.size else 0.0
    # If the spread is only rounding error, all sums are equal.
    return (sums - sums.mean()) / spread if spread > 1e-12 * size else np.zeros_like(sums)


def calc_gae(rewards: ArrayLike, values: ArrayLike, next_value: ArrayLike, gamma: float, lam: float) -> Floats:
    """Return generalized advantages of steps within one episode; `gae` also handles ends of episodes.

    Args:
        rewards: `[T]`.
        values: `[T]`, V(s_t).
        next_value: A number, V(s_T); 0 where the episode terminated.
        gamma: Discount of the next step, in [0, 1].
        lam: The lambda, in [0, 1].

    Returns:
        Advantages `[T]`.
    """
    v = _floats(values)
    after = np.append(v[1:], np.reshape(np.asarray(next_value, v.dtype), (1, *v.shape[1:])), axis=0)
    never = np.zeros(v.shape, np.bool_)
    return gae(rewards, v, after, never, never, gamma=gamma, lam=lam)


def _scan(terms: Floats, decay: Floats) -> Floats:
    """Turn terms x_t into y_t = x_t + decay_t y_t+1, in place, y_T-1 = x_T-1."""
    for t in range(len(terms) - 2, -1, -1):
        terms[t] += decay[t] * terms[t + 1]
    return terms


def _ongoing(end: NDArray[np.bool_], cut: NDArray[np.bool_], like: Floats) -> Floats:
    """Return 1 where the next step belongs to the same episode, else 0, in the type of `like`."""
    return (~(end | cut)).astype(like.dtype)


def _floats(array: ArrayLike) -> Floats:
    given = np.asarray(array)
    return given if np.issubdtype(given.dtype, np.floating) else given.astype(np.float64)


def _aligned(
    rewards: ArrayLike, values: ArrayLike, next_values: ArrayLike, terminated: ArrayLike, truncated: ArrayLike
) -> tuple[Floats, Floats, Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    r, v, v_next = _floats(rewards), _floats(values), _floats(next_values)
    end, cut = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
    if not r.shape == v.shape == v_next.shape == end.shape == cut.shape:
        shapes = [list(array.shape) for array in (r, v, v_next, end, cut)]
        raise ValueError(
            f"rewards, values, next_values, terminated and truncated must have one shape [T] or [T, N], got {shapes}"
        )
    return r, v, v_next, end, cut
