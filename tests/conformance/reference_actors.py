"""Networks of `continuous_models` in numpy, of weights that may be complex: see `complex_step`."""

from typing import Any

import numpy as np

from conformance.complex_step import layers
from parl_core.model import Weights

__all__ = ["action_of", "clipped", "drawn_of", "gaussian_of", "log_density", "q_of"]


def action_of(weights: Weights, obs: Any) -> Any:
    """Actions of `deterministic` and `twin`, `[batch, act_dim]`."""
    return np.tanh(layers(weights, ("pi1", "pi2"), obs))


def gaussian_of(weights: Weights, obs: Any) -> tuple[Any, Any]:
    """Mean and log std of `squashed`, each `[batch, act_dim]`."""
    return layers(weights, ("pi1", "pi2"), obs), layers(weights, ("pi1", "spread"), obs)


def drawn_of(weights: Weights, obs: Any, noise: Any) -> tuple[Any, Any]:
    """Actions tanh(u) of `squashed`, u = mean + std * noise, and their log-densities `[batch]`."""
    mean, log_std = gaussian_of(weights, obs)
    u = mean + np.exp(log_std) * noise
    log_slope = 2.0 * (np.log(2.0) - u - np.log(1.0 + np.exp(-2.0 * u)))  # of tanh, where 1 - tanh(u)**2 rounds to 0
    return np.tanh(u), log_density(u, mean, log_std) - log_slope.sum(axis=1)


def q_of(weights: Weights, name: str, obs: Any, action: Any) -> Any:
    """Values `[batch]` of a critic."""
    return layers(weights, (f"{name}1", f"{name}2"), np.concatenate([obs, action], axis=1))[:, 0]


def log_density(action: Any, mean: Any, log_std: Any) -> Any:
    """Log-density `[batch]` of independent Gaussians."""
    normal = -0.5 * ((action - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2.0 * np.pi)
    return normal.sum(axis=1)


def clipped(noise: Any, scale: float, limit: float) -> Any:
    """Noise of a standard deviation, kept within a limit."""
    return np.clip(scale * noise, -limit, limit)
