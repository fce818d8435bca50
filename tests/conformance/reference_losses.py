"""The losses of the algorithms and their derivatives with respect to the networks' outputs, in numpy (float64)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.reference import Array, log_softmax

__all__ = [
    "Surrogate",
    "clipped_surrogate",
    "clipped_value",
    "gaussian_entropy",
    "gaussian_kl",
    "gaussian_log_prob",
    "policy_gradient",
    "q_learning",
]

Actions = NDArray[np.int64]


def policy_gradient(logits: Array, action: Actions, reward: Array) -> tuple[float, Array]:
    """-mean(log softmax(z)[a] * r); its derivative by z is (softmax(z) - onehot(a)) * r / n."""
    rows = np.arange(len(action))
    log_p = log_softmax(logits)
    gradient = np.exp(log_p)
    gradient[rows, action] -= 1.0
    return float(-(log_p[rows, action] * reward).mean()), gradient * reward[:, None] / len(action)


def q_learning(q: Array, action: Actions, target: Array, weights: Array) -> tuple[float, Array, Array]:
    """mean(w * (target - q[a])**2); its derivative by q[a] is -2 w (target - q[a]) / n. Also target - q[a]."""
    rows = np.arange(len(action))
    error = target - q[rows, action]
    gradient = np.zeros_like(q)
    gradient[rows, action] = -2.0 * weights * error / len(action)
    return float((weights * error**2).mean()), gradient, error


@dataclass(frozen=True)
class Surrogate:
    """PPO's policy loss and what comes with it; `gradient` is by the log-probability of each action."""

    loss: float
    gradient: Array
    approx_kl: float
    clip_fraction: float


def clipped_surrogate(log_prob: Array, log_prob_old: Array, advantage: Array, clip: float) -> Surrogate:
    """-mean(min(r A, clip(r) A)), r = exp(log p - log p_old), so that dr / dlog p = r."""
    ratio = np.exp(log_prob - log_prob_old)
    plain, limited = ratio * advantage, np.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage
    slope = np.where(plain <= limited, advantage * ratio, 0.0)  # where the limit is lower, it does not depend on r
    return Surrogate(
        float(-np.minimum(plain, limited).mean()),
        -slope / len(ratio),
        float((ratio - 1.0 - (log_prob - log_prob_old)).mean()),
        float((np.abs(ratio - 1.0) > clip).mean()),
    )


def clipped_value(value: Array, value_old: Array, return_: Array, clip: float) -> tuple[float, Array]:
    """0.5 mean(max((v - R)**2, (v_old + clip(v - v_old) - R)**2)) and its derivative by v."""
    near = value_old + np.clip(value - value_old, -clip, clip)
    free, limited = (value - return_) ** 2, (near - return_) ** 2
    inside = np.abs(value - value_old) < clip
    slope = np.where(free >= limited, value - return_, np.where(inside, near - return_, 0.0))
    return float(0.5 * np.maximum(free, limited).mean()), slope / len(value)


def gaussian_log_prob(mean: Array, log_std: Array, action: Array) -> tuple[Array, Array, Array]:
    """Log N(a; m, s) summed over dimensions, and its derivatives by m and by log s, before the sum."""
    scaled = (action - mean) / np.exp(log_std)
    log_prob = -(0.5 * scaled**2 + log_std + 0.5 * np.log(2.0 * np.pi)).sum(axis=1)
    return log_prob, scaled / np.exp(log_std), scaled**2 - 1.0


def gaussian_entropy(log_std: Array) -> Array:
    """Sum over dimensions of log s + 0.5 log(2 pi e); its derivative by log s is 1."""
    entropy: Array = (log_std + 0.5 * np.log(2.0 * np.pi * np.e)).sum(axis=1)
    return entropy


def gaussian_kl(mean_old: Array, log_std_old: Array, mean: Array, log_std: Array) -> tuple[Array, Array, Array]:
    """KL(old || new) summed over dimensions, and its derivatives by the new m and log s, before the sum."""
    variance, variance_old = np.exp(2.0 * log_std), np.exp(2.0 * log_std_old)
    spread = (variance_old + (mean_old - mean) ** 2) / variance
    kl = (log_std - log_std_old + 0.5 * spread - 0.5).sum(axis=1)
    return kl, (mean - mean_old) / variance, 1.0 - spread
