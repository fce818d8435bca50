"""The contract of `parl.Agent`: numpy arrays and Python numbers outside, one algorithm and its tensors inside.

Works as it is around the standard algorithms. A subclass is written for something special: another preprocessing, other
exploration, several algorithms.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from parl_core import agent_file
from parl_core.agent_file import SavedAgent
from parl_core.algorithm import Algorithm, AlgorithmState
from parl_core.checks import check_finite
from parl_core.contracts.ppo import PPO, PPOBatch
from parl_core.errors import CheckpointError, ModelContractError, WeightsMismatchError
from parl_core.model import Weights

__all__ = ["Agent"]


class Agent:
    """Connects an environment with an algorithm.

    One observation or a batch: `predict`, `sample` and `value` take either. With `obs_ndim` set, an array of that many
    dimensions is one observation, one of `obs_ndim + 1` a batch. Without it, arrays of 1 or 3 dimensions (a vector, an
    image) are one observation, arrays of 2 or 4 dimensions a batch of them; anything else is refused. A batch gives one
    row an observation, one observation gives the row itself.

    Args:
        algorithm: the algorithm to act and learn with.
        obs_ndim: number of dimensions of one observation; 0 for a `Discrete` space.
        seed: of the generator that draws exploration on the host; default from the operating system.

    Raises:
        ModelContractError: `algorithm` is no algorithm, or a model of it keeps layers where the framework does not find
            them.
    """

    BACKEND: ClassVar[str] = ""

    obs_ndim: int | None = None
    alg: Any
    training: bool

    def __init__(
        self, algorithm: Algorithm, *, obs_ndim: int | None = None, seed: int | np.random.Generator | None = None
    ) -> None:
        if not isinstance(algorithm, Algorithm):
            raise ModelContractError(
                f"parl.Agent needs an algorithm, got {algorithm!r}; make one, for instance "
                "parl.Agent(parl.algorithms.DQN(model))"
            )
        for model in algorithm._models().values():
            model.require_found_layers()
        self.alg = algorithm
        self.training = True
        if obs_ndim is not None:
            self.obs_ndim = obs_ndim
        self.rng = np.random.default_rng(seed)
        self._build()

    def predict(self, obs: Any) -> Any:
        """Act greedily.

        Args:
            obs: one observation or a batch `[n, ...]`.

        Returns:
            The algorithm's best action: an int or an array `[act_dim]`; for a batch `[n]` or `[n, act_dim]`. Of an
            algorithm without a rule of its own (`Algorithm.choose`), what its `predict` returns.
        """
        batch, single = self._batched(obs)
        return _unbatched(self.alg.choose(self._forward(self.alg.predict, batch)), single)

    def sample(self, obs: Any, *args: Any, **options: Any) -> Any:
        """Act with exploration.

        Args:
            obs: one observation or a batch `[n, ...]`.
            args: none here; that a subclass may define `sample(self, obs)` with what it likes.
            options: settings of the algorithm's exploration, such as `epsilon=` of DQN.

        Returns:
            As `predict`; of PPO `(value, action, log_prob, entropy)`.
        """
        if args:
            raise TypeError(f"{type(self).__name__}.sample takes settings by name, got {args}")
        batch, single = self._batched(obs)
        if type(self.alg).sample is not Algorithm.sample:
            actions = self._forward(self.alg.sample, batch, **options)
        else:
            actions = self.alg.choose(self._forward(self.alg.predict, batch), rng=self.rng, **options)
        return _unbatched(actions, single)

    def value(self, obs: Any) -> Any:
        """Return the estimated value of an observation (float) or of a batch (`[n]`), of algorithms that have one."""
        batch, single = self._batched(obs)
        return _unbatched(self._forward(self.alg.value, batch), single)

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        """Update the algorithm from one batch of arrays; arguments are those of the algorithm's `learn`.

        Returns:
            What the algorithm returns, as floats and arrays.

        Raises:
            DivergedError: the loss is NaN or infinite.
            ValueError: arrays do not belong together.
        """
        args, kwargs = self.alg.prepare(*args, **kwargs)
        return self.run(self.alg.learn, *args, **kwargs)

    def learn_rollout(
        self,
        batch: PPOBatch,
        *,
        epochs: int,
        minibatch_size: int,
        rng: np.random.Generator,
        lr: float | None = None,
        clip: float | None = None,
        entropy_coef: float | None = None,
        target_kl: float | None = None,
    ) -> dict[str, float]:
        """Learn several epochs from one rollout, with PPO: see `parl_core.contracts.ppo.PPO.learn_rollout`.

        Raises:
            TypeError: the algorithm is no PPO.
            DivergedError: a figure is NaN or infinite.
        """
        if not isinstance(self.alg, PPO):
            raise TypeError(f"learn_rollout needs PPO; this agent's algorithm is {type(self.alg).__name__}")
        figures = self.alg.learn_rollout(
            batch,
            epochs=epochs,
            minibatch_size=minibatch_size,
            rng=rng,
            lr=lr,
            clip=clip,
            entropy_coef=entropy_coef,
            target_kl=target_kl,
        )
        check_finite(f"{type(self.alg).__name__}.learn_rollout", figures)
        return figures

    def run(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the algorithm with arrays as tensors, and return its tensors as floats and arrays.

        For subclasses: `self.run(self.alg.policy_learn, obs, actions, advantages)`.

        Raises:
            DivergedError: a scalar that it returned is NaN or infinite.
        """
        to_tensor = self.alg._tensor
        result = method(
            *(to_tensor(value) if isinstance(value, (np.ndarray, list)) else value for value in args),
            **{k: to_tensor(value) if isinstance(value, (np.ndarray, list)) else value for k, value in kwargs.items()},
        )
        figures = self._figures(result)
        _check(f"{type(self.alg).__name__}.{getattr(method, '__name__', 'learn')}", figures)
        return figures

    def train(self) -> None:
        """Enter training mode, in which dropout and batch statistics are active; agents start in it."""
        self.alg.train()
        self.training = True

    def eval(self) -> None:
        """Enter evaluation mode."""
        self.alg.eval()
        self.training = False

    def get_weights(self) -> Weights:
        """Copies of the weights of the algorithm's model, by name."""
        weights: Weights = self.alg.get_weights()
        return weights

    def set_weights(self, weights: Mapping[str, Any] | Sequence[Any]) -> None:
        """Copy weights into the algorithm's model.

        Raises:
            WeightsMismatchError: a name is missing or unknown, or two shapes differ.
        """
        self.alg.set_weights(weights)

    def save(self, save_path: str | os.PathLike[str], model: Any = None) -> None:
        """Save everything that `restore` needs to go on: models, targets, optimizer, counters.

        Args:
            save_path: a file (`./model.ckpt`), or a directory (`./model_dir`) that will hold `agent.safetensors`.
            model: save the weights of this model alone.
        """
        state = self.alg.get_state() if model is None else AlgorithmState(_prefixed(model.get_weights(portable=True)))
        agent_file.write(save_path, SavedAgent(state, type(self.alg).__name__, self.BACKEND))

    def restore(
        self,
        save_path: str | os.PathLike[str],
        model: Any = None,
        map_location: Any = None,  # noqa: ARG002 - PARL 2.x's programs pass it
    ) -> None:
        """Continue from a saved file, of this or of the other backend.

        Args:
            save_path: what `save` was given.
            model: restore only this model's weights.
            map_location: of PARL 2.x, and without effect: the weights go to where the models are.

        Raises:
            CheckpointError: there is no such file, it is damaged, or it does not fit. The agent is as before, except
                that layers without shapes may have taken some.
        """
        saved = agent_file.read(save_path)
        try:
            if model is None:
                self.alg.set_state(saved.state)
            else:
                model.set_weights(_unprefixed(saved.state.arrays), portable=True)
        except (WeightsMismatchError, CheckpointError) as error:
            raise CheckpointError(
                f"{agent_file.locate(save_path)}, written by {saved.algorithm} on {saved.backend}, does "
                f"not fit this {type(self.alg).__name__}: {error}"
            ) from error

    # Shared

    def _build(self) -> None:
        build_program = getattr(self, "build_program", None)
        if build_program is not None:
            build_program()

    def _batched(self, obs: Any) -> tuple[NDArray[Any], bool]:
        array = np.asarray(obs)
        ndim = self.obs_ndim
        if ndim is None:
            if array.ndim in (1, 3):
                return array[None], True
            if array.ndim in (2, 4):
                return array, False
        elif array.ndim == ndim + 1:
            return array, False
        elif array.ndim == ndim:
            return array[None], True
        expected = "1 or 3 dimensions (one) or 2 or 4 (a batch)" if ndim is None else f"{ndim} or {ndim + 1} dimensions"
        raise ValueError(
            f"cannot tell one observation from a batch: got shape {array.shape}, expected {expected}; "
            "set agent.obs_ndim to the number of dimensions of one observation"
        )

    def _forward(self, method: Callable[..., Any], batch: NDArray[Any], **options: Any) -> Any:
        with self.alg._no_gradients():
            return self._arrays(method(self.alg._tensor(batch), **options))

    def _arrays(self, result: Any) -> Any:
        if isinstance(result, tuple):
            return tuple(self.alg._array(part) for part in result)
        return self.alg._array(result)

    def _figures(self, result: Any) -> Any:
        if isinstance(result, tuple):
            return tuple(self._figures(part) for part in result)
        if isinstance(result, dict):
            return {name: self._figures(part) for name, part in result.items()}
        array = self.alg._array(result)
        return array.item() if isinstance(array, np.ndarray) and array.ndim == 0 else array


def _unbatched(actions: Any, single: bool) -> Any:
    if not single:
        return actions
    if isinstance(actions, tuple):
        return tuple(_unbatched(part, single) for part in actions)
    row = actions[0]
    return row.item() if np.ndim(row) == 0 else row


def _check(source: str, figures: Any) -> None:
    if isinstance(figures, float):
        check_finite(source, {"the loss": figures})
    elif isinstance(figures, tuple):
        check_finite(source, {f"figure {i}": part for i, part in enumerate(figures) if isinstance(part, float)})
    elif isinstance(figures, dict):
        check_finite(source, {name: part for name, part in figures.items() if isinstance(part, float)})


def _prefixed(weights: Weights) -> Weights:
    return {f"model/{name}": array for name, array in weights.items()}


def _unprefixed(arrays: Weights) -> Weights:
    return {name.removeprefix("model/"): array for name, array in arrays.items() if name.startswith("model/")}
