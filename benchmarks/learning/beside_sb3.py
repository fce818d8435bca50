"""A recipe in Stable-Baselines3: its hyper-parameters are translated, and trained and evaluated by the same protocol.

    Recipe ──> model_of ──> Stable-Baselines3's model ──> measure ──> the `Measured` of `parl_core.training.results`

`run.py --backend sb3` runs it. Settings that Stable-Baselines3 lacks (double Q-learning, n-step returns and priorities,
a squared error in DQN, our own networks) raise an error, and so does normalisation: a row exists only with equal
settings.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

from parl_core.schedules import Scheduled, stages_of
from parl_core.training import evaluate
from parl_core.training.recipes import Recipe
from parl_core.training.results import (
    EPISODES_AFTER,
    EPISODES_WHILE_TRAINING,
    EVALUATIONS,
    SEED_AFTER,
    SEED_WHILE_TRAINING,
    Measured,
)

__all__ = ["AsAgent", "Watch", "decaying", "measure", "model_of"]

_OUR_GRADIENT_LIMIT = 40.0  # for A2C, whose losses are sums over the batch


def measure(
    algorithm: str,
    env: str,
    recipe: Recipe,
    seed: int,
    *,
    episodes: int = EPISODES_AFTER,
    progress: Callable[[float], None] = lambda _: None,
) -> Measured:
    """Train one model and evaluate it, like `parl_core.training.results.measure` for our agents."""
    torch.set_num_threads(1)
    model = model_of(algorithm, env, recipe, seed)
    watch = _Progress(env, max(recipe.steps // EVALUATIONS, 1), progress)
    model.learn(recipe.steps, callback=watch)
    last = evaluate(AsAgent(model), env, episodes, seed=SEED_AFTER)
    return Measured(watch.curve, last.returns, model.num_timesteps)


def model_of(algorithm: str, env: str, recipe: Recipe, seed: int) -> Any:
    """Return Stable-Baselines3's model with the hyper-parameters of a recipe.

    Raises:
        ValueError: It has no such algorithm, or not with these settings.
    """
    if recipe.normalize or recipe.network or recipe.environment or set(recipe.sizes) - {"hidden", "continuous"}:
        raise ValueError(
            f"{algorithm} on {env}: Stable-Baselines3's networks and vector environments differ from this recipe's"
        )
    makers = {"PPO": _ppo, "A2C": _a2c, "DQN": _dqn, "SAC": _sac, "TD3": _deterministic, "DDPG": _deterministic}
    if algorithm not in makers:
        raise ValueError(f"Stable-Baselines3 has no {algorithm}; beside it stand {', '.join(makers)}")
    envs = make_vec_env(env, recipe.num_envs, seed=seed)
    settings = makers[algorithm](algorithm, recipe, envs.action_space)
    given = {"policy_kwargs": {"net_arch": list(recipe.sizes["hidden"])}, "seed": seed, "device": "cpu", **settings}
    return getattr(sb3, algorithm)("MlpPolicy", envs, **given)


def _ppo(algorithm: str, recipe: Recipe, _: Any) -> dict[str, Any]:
    loop, own = recipe.loop, dict(recipe.algorithm)
    clipped, coefficient = own.pop("use_clipped_value_loss"), own.pop("value_loss_coef")
    _refuse_others(algorithm, own, "entropy_coef", "continuous_action")
    if clipped:
        raise ValueError(
            "the recipe clips PPO's value function as in OpenAI's baselines, which Stable-Baselines3 does differently"
        )
    return {
        "n_steps": loop.n_steps,
        "batch_size": loop.minibatch_size,
        "n_epochs": loop.epochs,
        "gamma": loop.gamma,
        "gae_lambda": loop.gae_lambda,
        "learning_rate": decaying(loop.lr) if loop.decay else loop.lr,
        "clip_range": decaying(loop.clip) if loop.decay else loop.clip,
        "ent_coef": loop.entropy_coef,
        "vf_coef": 0.5 * coefficient,
    }


def _a2c(algorithm: str, recipe: Recipe, _: Any) -> dict[str, Any]:
    loop = recipe.loop
    _refuse_others(algorithm, recipe.algorithm, "continuous_action")
    return {
        "n_steps": loop.n_steps,
        "gamma": loop.gamma,
        "gae_lambda": loop.gae_lambda,
        "learning_rate": decaying(loop.lr) if loop.decay else loop.lr,
        "ent_coef": 0.01 if loop.entropy_coef is None else loop.entropy_coef,
        "vf_coef": 0.25,
        "max_grad_norm": _OUR_GRADIENT_LIMIT / (recipe.num_envs * loop.n_steps),
        "use_rms_prop": False,
    }


def _dqn(algorithm: str, recipe: Recipe, _: Any) -> dict[str, Any]:
    loop, own = recipe.loop, dict(recipe.algorithm)
    epsilon = dict(stages_of(loop.exploration["epsilon"])["stages"])
    if own.pop("huber", None) != 1.0:
        raise ValueError("Stable-Baselines3's DQN has Huber's loss with a threshold of 1")
    settings = {
        **_replayed(recipe),
        "learning_rate": _rate(loop.rates.get("learning_rate", own.pop("lr", None)), recipe.steps),
        "gamma": own.pop("gamma"),
        "tau": own.pop("tau", 1.0),
        "max_grad_norm": own.pop("max_grad_norm"),
        "target_update_interval": max(own.pop("sync_every") * loop.train_every // loop.gradient_steps, 1),
        "exploration_initial_eps": epsilon[min(epsilon)],
        "exploration_final_eps": epsilon[max(epsilon)],
        "exploration_fraction": max(epsilon) / recipe.steps,
    }
    _refuse_others(algorithm, own)
    return settings


def _sac(algorithm: str, recipe: Recipe, _: Any) -> dict[str, Any]:
    return {**_replayed(recipe), **_continuous(algorithm, recipe)}


def _deterministic(algorithm: str, recipe: Recipe, space: Any) -> dict[str, Any]:
    noise = np.full(space.shape, recipe.loop.exploration["noise"])
    return {
        **_replayed(recipe),
        **_continuous(algorithm, recipe),
        "action_noise": NormalActionNoise(np.zeros(space.shape), noise),
    }


def _continuous(algorithm: str, recipe: Recipe) -> dict[str, Any]:
    own = dict(recipe.algorithm)
    actor, critic = own.pop("actor_lr", 3e-4), own.pop("critic_lr", 3e-4)
    if actor != critic:
        raise ValueError(f"Stable-Baselines3's {algorithm} has one learning rate, got {actor} and {critic}")
    settings = {
        "learning_rate": _rate(actor, recipe.steps),
        "gamma": own.pop("gamma", 0.99),
        "tau": own.pop("tau", 0.005),
    }
    _refuse_others(algorithm, own)
    return settings


def _replayed(recipe: Recipe) -> dict[str, Any]:
    loop = recipe.loop
    if loop.prioritized is not None:
        raise ValueError("Stable-Baselines3 has no priorities")
    return {
        "batch_size": loop.batch_size,
        "buffer_size": loop.memory_size,
        "learning_starts": loop.learning_starts,
        "train_freq": loop.train_every,
        "gradient_steps": loop.gradient_steps,
        "n_steps": loop.n_step,
    }


def _refuse_others(algorithm: str, own: Any, *known: str) -> None:
    others = sorted(set(own) - set(known))
    if others:
        raise ValueError(f"no translation of {', '.join(others)} to Stable-Baselines3's {algorithm}")


def decaying(value: float) -> Any:
    """Return a schedule that decays linearly to 0."""
    return lambda left: value * left


def _rate(value: Scheduled | None, steps: int) -> Any:
    if value is None or not callable(value):
        return value
    return lambda left: value((1.0 - left) * steps)


class AsAgent:
    """A model of Stable-Baselines3 with the interface of our evaluation.

    Args:
        model: The model, which predicts.
    """

    training = False

    def __init__(self, model: Any) -> None:
        self._model = model

    def train(self) -> None:
        """Do nothing, because `predict` sets the mode itself."""

    eval = train

    def predict(self, obs: Any) -> Any:
        """Return deterministic actions."""
        return self._model.predict(obs, deterministic=True)[0]


class Watch(BaseCallback):
    """Callback that evaluates between updates.

    Args:
        env: Id of the environment.
        every: Number of steps between evaluations.
        episodes: Number of episodes per evaluation.
        options: Options of `parl_core.training.evaluate`.
    """

    def __init__(self, env: str, every: int, episodes: int, **options: Any) -> None:
        super().__init__()
        self.curve: list[tuple[int, float]] = []
        self._env, self._every, self._episodes, self._options = env, every, episodes, options

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self._every * (len(self.curve) + 1):
            found = evaluate(AsAgent(self.model), self._env, self._episodes, **self._options)
            self.curve.append((self.num_timesteps, found.mean))

    def _on_step(self) -> bool:
        return True


class _Progress(Watch):
    """Callback that reports the number of completed evaluations; the last one is at the end of the run."""

    def __init__(self, env: str, every: int, progress: Callable[[float], None]) -> None:
        super().__init__(env, every, EPISODES_WHILE_TRAINING, seed=SEED_WHILE_TRAINING)
        self._progress = progress

    def _on_rollout_start(self) -> None:
        done = len(self.curve)
        super()._on_rollout_start()
        if len(self.curve) > done:
            self._progress(min(len(self.curve) / EVALUATIONS, 1.0))

    def _on_training_end(self) -> None:
        self._on_rollout_start()
