"""The contract of `parl.Agent`: numpy arrays and Python numbers outside, one algorithm and its tensors inside.

`parl.Agent` works unchanged around the standard algorithms. Write a subclass for special needs: other preprocessing,
other exploration, several algorithms.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from parl_core import _agent_file, logger
from parl_core._agent_file import SavedAgent
from parl_core._deprecation import REMOVED_ATTRIBUTES, found_or_successor
from parl_core._nested import holds_tensors, leaves, map_nested, rows_of
from parl_core.algorithm import Algorithm, AlgorithmState
from parl_core.checks import check_finite
from parl_core.contracts._base import OnPolicy, RolloutSettings
from parl_core.contracts.actions import check_mask, mask_of
from parl_core.contracts.batches import Batch, Columns, Rollout
from parl_core.errors import (
    CheckpointError,
    DivergedError,
    HyperparameterError,
    ModelContractError,
    ParlError,
    SpoiledBatchError,
    WeightsMismatchError,
)
from parl_core.layers import NoisyFc
from parl_core.model import Weights
from parl_core.seeding import make_generator
from parl_core.stats import statistics_of

__all__ = ["Agent"]


class Agent:
    """Connects an environment with an algorithm.

    One observation or a batch: `predict`, `sample` and `value` take either. With `obs_ndim` set, an array of that many
    dimensions is one observation, one of `obs_ndim + 1` a batch. Without it, arrays of 1 or 3 dimensions (a vector, an
    image) are one observation, arrays of 2 or 4 dimensions a batch of them; anything else is refused. For a batch the
    result has one row per observation, for one observation it is the row itself. A dictionary of arrays is an
    observation of several parts: the model gets a dictionary of tensors. Tensors of a framework, such as those of GPU
    simulators, are passed to the model as they are (those of another framework by DLPack), except that floats become
    those of the model's dtype, and the results are tensors, too.

        agent = parl.Agent(parl.algorithms.DQN(parl.networks.QNetwork(act_dim=2)), seed=0)
        obs = np.zeros((32, 4), np.float32)
        action = agent.sample(obs, epsilon=0.1)  # [32]; agent.predict(obs[0]) is one action
        loss = agent.learn(obs, action, np.ones(32), obs, np.zeros(32))
        agent.save("dqn.ckpt")

    Args:
        algorithm: The algorithm to act and learn with.
        gpu_id: An argument of PARL 1.x, without effect; pass `device=` to the algorithm instead.
        obs_ndim: Number of dimensions of one observation; 0 for a `Discrete` space. Of dictionaries, the number of each
            part by name; of tuples the same with the names "0", "1", … Default: that of the model, which those of
            `parl.networks.for_spaces` have.
        seed: The seed of the generator that draws exploration on the host; default: from the operating system.

    Raises:
        ModelContractError: `algorithm` is not an algorithm, or one of its models stores layers where the framework does
            not find them.
        HyperparameterError: The seed is not a whole number of at least 0.
    """

    BACKEND: ClassVar[str] = ""

    obs_ndim: int | Mapping[str, int] | None = None
    alg: Any
    training: bool

    _by_mode: Sequence[Any] | None = None
    """The layers that acting puts into evaluation mode; None before it acted."""

    _has_learned: bool = False
    _has_settled: bool = False
    _has_warned_of_nan: bool = False
    _columns: Columns | None = None
    """The positional form of the algorithm's `learn`; None if its arguments are not a batch."""
    _acted_on: dict[str, tuple[int, ...]] | None = None
    """Shapes of the first observation that it acted on, for messages."""

    def __init__(
        self,
        algorithm: Algorithm,
        gpu_id: int | None = None,
        *,
        obs_ndim: int | Mapping[str, int] | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        if gpu_id is not None:
            message = "gpu_id of parl.Agent has no effect: pass device='cuda:0' or 'cpu' to the algorithm"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        self.gpu_id = gpu_id
        if not isinstance(algorithm, Algorithm):
            raise ModelContractError(
                f"parl.Agent needs an algorithm, got {algorithm!r}; make one, for instance "
                "parl.Agent(parl.algorithms.DQN(model))"
            )
        for model in algorithm._models().values():
            model.require_found_layers()
        algorithm._settle_targets()
        algorithm._note_values()
        self.alg = algorithm
        self._columns = getattr(type(algorithm).learn, "columns", None)
        self._find_learn()
        self.training = True
        if obs_ndim is None and self.obs_ndim is None:
            obs_ndim = getattr(getattr(algorithm, "model", None), "obs_ndim", None)
        if obs_ndim is not None:
            self.obs_ndim = obs_ndim
        self.rng = make_generator(seed)
        self._build()

    def _find_learn(self) -> None:
        learn = type(self.alg).learn
        self._learn = getattr(learn, "__wrapped__", learn)  # the undecorated method, which takes batches only

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_learn"}  # a function without a name

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        if "alg" in state:
            self._find_learn()

    if not TYPE_CHECKING:  # type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            return found_or_successor(self, name, REMOVED_ATTRIBUTES)

    @property
    def takes_batches(self) -> bool:
        """True if `learn` is that of `parl.Agent`, which takes batches; else loops pass the columns one by one."""
        return type(self).learn is Agent.learn and self._columns is not None

    def predict(self, obs: Any, *args: Any, **options: Any) -> Any:
        """Act greedily.

        The first call gives all layers of the models their shapes, including layers that acting does not run.

        Args:
            obs: One observation or a batch `[n, ...]`.
            args: Arguments of a subclass's own method, which may define `predict` with other parameters.
            options: The options of the algorithm's choice of actions, such as `action_mask=`: bool `[act_dim]`, or
                `[n, act_dim]` for a batch, True where an action is possible. Such a mask may also come with
                observations that are a dictionary, under the key `action_mask`.

        Returns:
            The algorithm's best action: an int or an array `[act_dim]`; for a batch `[n]` or `[n, act_dim]`. If the
            algorithm defines no `Algorithm.choose`, the result of its `predict`.

        Raises:
            HyperparameterError: The algorithm also needs the previous steps (`Algorithm.NEEDS_HISTORY`).
        """
        self._refuse_unnamed("predict", args)
        batch, single = self._batched(obs)
        options = self._options(options, batch, single)
        if type(self.alg).choose is Algorithm.choose:
            action = self._forward(self.alg.predict, batch, **options)
        else:
            action = self._chosen(batch, options)
        if not self._has_settled:
            self._settle_shapes(batch, action)
        return _unbatched(action, single)

    def sample(self, obs: Any, *args: Any, **options: Any) -> Any:
        """Act with exploration.

        Args:
            obs: One observation or a batch `[n, ...]`.
            args: Arguments of a subclass's own method, which may define `sample` with other parameters.
            options: Settings of the algorithm's exploration, such as `epsilon=` of DQN.

        Returns:
            As `predict`; for PPO `(value, action, log_prob, entropy)`, for A2C and A3C `(action, value)`, and for
            IMPALA `(action, logits)`.
        """
        self._refuse_unnamed("sample", args)
        batch, single = self._batched(obs)
        options = self._options(options, batch, single)
        if type(self.alg).sample is not Algorithm.sample:
            actions = self._forward(self.alg.sample_actions, batch, True, **options)
        else:
            actions = self._chosen(batch, {**options, "rng": self.rng}, with_noise=True)
        return _unbatched(actions, single)

    def _settle_shapes(self, batch: Any, action: Any) -> None:
        """Shape the layers that acting does not run, so that an agent that has acted can be saved."""
        self._has_settled = True
        with suppress(Exception):  # what a model cannot do is explained by the update that needs it
            self.alg.settle_shapes(batch, action[0] if self.alg.remembers else action)

    def _chosen(self, batch: Any, options: Mapping[str, Any], *, with_noise: bool = False) -> Any:
        """Return the actions that the algorithm chooses on the host; of tensors they become one again."""
        if self.alg.remembers:
            options = dict(options)
            output, state = self._forward(self.alg.predict, batch, with_noise, state=options.pop("state"))
            return self._choice(output, batch, options), state
        return self._choice(self._forward(self.alg.predict, batch, with_noise), batch, options)

    def _choice(self, output: Any, batch: Any, options: Mapping[str, Any]) -> Any:
        if not holds_tensors(batch):
            return self.alg.choose(output, **options)
        return self._tensors(np.asarray(self.alg.choose(self._arrays(output), **options)))

    def _refuse_unnamed(self, method: str, args: tuple[Any, ...]) -> None:
        if args:
            raise TypeError(f"{type(self).__name__}.{method} takes settings by name, got {args}")

    def explore(self, obs: Any, **options: Any) -> Any:
        """Act with exploration and return the values for on-policy learning: (value, action, log-probability).

        Args:
            obs: One observation or a batch `[n, ...]`.
            options: As in `predict`.

        Raises:
            TypeError: The algorithm does not learn from its own policy's experience.
        """
        batch, single = self._batched(obs)
        options = self._options(options, batch, single)
        return _unbatched(self._forward(self._on_policy("explore").explore, batch, **options), single)

    def value(self, obs: Any, **state: Any) -> Any:
        """Return the estimated value of an observation (float) or a batch (`[n]`), if the algorithm has one.

        Args:
            obs: One observation or a batch `[n, ...]`.
            state: `state=` of a model with a memory.
        """
        batch, single = self._batched(obs)
        if self.alg.remembers:
            return _unbatched(self._forward(self.alg.value, batch, **self._with_state(state, batch, single))[0], single)
        return _unbatched(self._forward(self.alg.value, batch, **state), single)

    def logits(self, obs: Any, **state: Any) -> Any:
        """Return the logits of the policy, `[act_dim]` or `[n, act_dim]`, for algorithms that have them (IMPALA).

        Args:
            obs: One observation or a batch `[n, ...]`.
            state: `state=` of a model with a memory; (logits, the state after) is returned then.
        """
        batch, single = self._batched(obs)
        if self.alg.remembers:
            state = self._with_state(state, batch, single)
        return _unbatched(self._forward(self.alg.logits, batch, **state), single)

    def initial_state(self, rows: int | None = None) -> dict[str, np.ndarray[Any, Any]] | None:
        """Return the state before the first step of an episode; None where the model has no memory.

        Args:
            rows: Number of environments, for a state `[rows, ...]` by name; None: one, for a state `[...]`.
        """
        if not self.alg.remembers:
            return None
        state = self.alg.model.initial_state(1 if rows is None else rows)
        return {name: array[0] if rows is None else array for name, array in state.items()}

    @contextmanager
    def drawing_from(self, seed: int) -> Iterator[None]:
        """Provide a context in which all random draws of this agent come from streams seeded with `seed`.

        The previous streams, also the framework's global one, continue afterwards as if nothing had been drawn.
        """
        before, self.rng = self.rng, np.random.default_rng(seed)
        try:
            with self.alg._drawing_from(seed % 2**63):  # the largest seed of frameworks
                yield
        finally:
            self.rng = before

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        """Update the algorithm from one batch of arrays.

        Args:
            args: A batch (`Transitions`, `Rollout`, `Fragment`, `Windows`), or its columns one by one, as in PARL 1.x
                and 2.x; the same arguments as those of the algorithm's `learn`, your own algorithms included.
            kwargs: The same arguments by name.

        Returns:
            The result of the algorithm, as floats and arrays.

        Raises:
            DivergedError: The loss is NaN or infinite; if a number of the batch is, a `SpoiledBatchError` that names
                its row.
            ValueError: The arrays do not fit together.
        """
        columns = self._columns
        if columns is None:
            if self.alg.LOSSES_HIDE_NAN and not self._has_warned_of_nan:
                self._warn_of_nan((*args, *kwargs.values()))
            return self.run(self.alg.learn, *args, **kwargs)
        try:
            batch, settings = columns.batch(args, kwargs)
            figures = self.alg._read(self._update(batch, settings))
            if type(figures) is not float or not math.isfinite(figures):
                self._check_figures(figures, batch)
        except ValueError as error:
            raise columns.as_called(error, args) from error.__cause__
        return figures

    def learn_unread(self, batch: Batch, **settings: Any) -> Any:
        """Update the algorithm from one batch, and leave the results on the device, so that no update waits for them.

        Args:
            batch: As in `learn`.
            settings: The settings of the algorithm's `learn`, such as learning rates.

        Returns:
            The algorithm's result; `read` converts it to floats and arrays, and checks that they are finite.
        """
        return self._update(batch, settings)

    def learn_many(self, batches: Iterable[Batch], **settings: Any) -> list[Any]:
        """Update the algorithm from several batches, one after the other, and read the results after the last one.

        Args:
            batches: Each as in `learn`.
            settings: The settings of the algorithm's `learn`, for all batches.

        Returns:
            The result of `learn` for each batch.

        Raises:
            TypeError: The algorithm's `learn` takes no batches, or an element is not a batch.
            DivergedError: As in `learn`; the updates after that batch have still been made.
            ValueError: The arrays do not fit together.
        """
        if self._columns is None:
            raise TypeError(f"{type(self.alg).__name__}.learn takes no batches; call agent.learn for each update")
        batches = list(batches)
        wrong = next((batch for batch in batches if not isinstance(batch, Batch)), None)
        if wrong is not None:
            kind = self._columns.kind.__name__
            raise TypeError(f"learn_many takes batches, such as {kind}(*columns), got a {type(wrong).__name__}")
        results = [self._update(batch, settings) for batch in batches]
        return [self.read(result, batch) for result, batch in zip(results, batches, strict=True)]

    def read(self, figures: Any, batch: Batch | None = None) -> Any:
        """Return the result of `learn_unread` as floats and arrays.

        Args:
            figures: The result of one update.
            batch: The batch that is searched for the bad row if a loss is not finite.

        Raises:
            DivergedError: As in `learn`.
        """
        found = self.alg._read(figures)
        self._check_figures(found, batch)
        return found

    def _update(self, batch: Batch, settings: Mapping[str, Any]) -> Any:
        algorithm = self.alg
        if not (batch.checked and self._has_learned):
            given, batch = batch, algorithm._checked_batch(batch)
            if algorithm.LOSSES_HIDE_NAN:
                self._refuse_spoiled("learn", given)
            self._has_learned = True
        settled = algorithm._threads_settled
        if not settled:
            algorithm._settle_threads()
        try:
            result = self._learn(algorithm, algorithm._on_device(batch), **settings)
        except Exception as error:
            _explain(error, type(algorithm).__name__, algorithm.learn, (), batch.named())
            raise
        if not settled:  # an update gives all layers their shapes
            algorithm._settle_threads()
        return result

    def _warn_of_nan(self, given: Iterable[Any]) -> None:
        arrays = (array for value in given for array in leaves("", value).values() if isinstance(array, np.ndarray))
        self._has_warned_of_nan = any(array.dtype.kind == "f" and np.isnan(array).any() for array in arrays)
        if self._has_warned_of_nan:
            logger.warning(
                "%s.learn was given NaN; on %s losses may stay finite all the same while weights become NaN",
                type(self.alg).__name__,
                self.BACKEND,
            )

    def _refuse_spoiled(self, method: str, batch: Batch) -> None:
        """Reject numbers that are not finite before an update, where its losses would not show them.

        Raises:
            SpoiledBatchError: It names the row.
        """
        strange = batch.describe_not_finite()
        if strange is not None:
            raise SpoiledBatchError(
                f"{strange}: one such number spoils all weights; clip or drop it in the environment. "
                f"{type(self.alg).__name__}.{method} learned nothing from this batch"
            )

    def _check_figures(self, figures: Any, batch: Batch | None) -> None:
        """Reject figures that are not finite, and name the row of the batch that spoiled them.

        Raises:
            DivergedError: One is NaN or infinite.
        """
        try:
            _check_figures(f"{type(self.alg).__name__}.learn", figures)
        except DivergedError as error:
            raise _with_row(error, batch) from None

    def learn_rollout(
        self, batch: Rollout, *, rng: np.random.Generator, **settings: Unpack[RolloutSettings]
    ) -> dict[str, float]:
        """Learn from one rollout, with PPO, A2C or PolicyGradient: see `parl_core.contracts._base.OnPolicy`.

        Raises:
            TypeError: The algorithm does not learn from its own policy's experience.
            DivergedError: A figure is NaN or infinite.
        """
        learn_rollout = self._on_policy("learn_rollout").learn_rollout
        if self.alg.LOSSES_HIDE_NAN and not batch.checked:
            self._refuse_spoiled("learn_rollout", batch)
        self.alg._settle_threads()
        try:
            figures: dict[str, float] = learn_rollout(batch, rng=rng, **settings)
            check_finite(f"{type(self.alg).__name__}.learn_rollout", figures)
        except DivergedError as error:
            raise _with_row(error, batch) from None
        return figures

    def run(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the algorithm with arrays as tensors, and return its tensors as floats and arrays.

        For subclasses: `self.run(self.alg.policy_learn, obs, actions, advantages)`.

        Raises:
            DivergedError: A scalar that it returned is NaN or infinite.
        """
        try:
            result = method(
                *map(self._tensors, args),
                **{name: self._tensors(value) for name, value in kwargs.items()},
            )
        except Exception as error:
            _explain(error, type(self.alg).__name__, method, args, kwargs)
            raise
        self.alg._settle_threads()
        figures = self.alg._read(result)
        _check_figures(f"{type(self.alg).__name__}.{getattr(method, '__name__', 'learn')}", figures)
        return figures

    def train(self) -> None:
        """Enter training mode, in which learning uses dropout and batch statistics.

        Acting and targets never do, except for the targets of DroQ. Agents start in this mode.
        """
        self.alg.train()
        self.training = True

    def eval(self) -> None:
        """Enter evaluation mode, in which learning uses neither dropout nor batch statistics.

        The loops of `parl.training` return to training mode to learn.
        """
        self.alg.eval()
        self.training = False

    def get_weights(self) -> Weights:
        """Return copies of the weights of the algorithm's model, by name."""
        weights: Weights = self.alg.get_weights()
        return weights

    def set_weights(self, weights: Mapping[str, Any] | Sequence[Any]) -> None:
        """Copy weights into the algorithm's model.

        Raises:
            WeightsMismatchError: A name is missing or unknown, or two shapes differ.
        """
        self.alg.set_weights(weights)

    def save(
        self, save_path: str | os.PathLike[str], model: Any = None, *, program: Any = None, normalization: Any = None
    ) -> None:
        """Save everything that `restore` needs to continue: models, targets, optimizer, counters.

        Args:
            save_path: A file (`./model.ckpt`), or a directory (`./model_dir`) that will hold `agent.safetensors`.
            model: The model whose weights alone are saved.
            program: For agents that build programs of static graphs on paddle, a program with parameters of this agent;
                default `self.learn_program`. It may also be given as `model`.
            normalization: The environment whose running statistics normalise this agent's observations
                (`NormalizeVector`, or the result of `wrap_rms`). They are saved with the agent, which needs them to
                act.

        Raises:
            ModelContractError: A program is given to an agent that builds none.
            TypeError: Neither `normalization` nor an environment that it wraps has running statistics.
            ValueError: The agent builds programs, none was given and there is no `self.learn_program`; or the given one
                has no parameters of this agent.
        """
        model = self._model_to_store(model, program)
        statistics = {} if normalization is None else statistics_of(normalization).get_state()
        state = self.alg.get_state() if model is None else AlgorithmState(_prefixed(model.get_weights(portable=True)))
        _agent_file.write(save_path, SavedAgent(state, type(self.alg).__name__, self.BACKEND, statistics))

    def restore(
        self,
        save_path: str | os.PathLike[str],
        model: Any = None,
        map_location: Any = None,  # noqa: ARG002 - PARL 2.x's programs pass it
        *,
        program: Any = None,
        normalization: Any = None,
    ) -> None:
        """Continue from a saved file, of this or of the other backend.

        Args:
            save_path: The path that was passed to `save`.
            model: The model whose weights alone are restored.
            map_location: An argument of PARL 2.x, without effect: the weights go to the device of the models.
            program: As in `save`.
            normalization: The environment that receives the statistics saved with the agent. Without one, saved
                statistics cause a warning.

        Raises:
            CheckpointError: There is no such file, it is damaged or does not fit, or it has no statistics although
                `normalization` was given. The agent and the statistics are unchanged, except that layers without shapes
                may have received some.
            ModelContractError, TypeError, ValueError: As in `save`.
        """
        model = self._model_to_store(model, program)
        environment = None if normalization is None else statistics_of(normalization)
        saved = _agent_file.read(save_path)
        file = _agent_file.locate(save_path)
        if environment is not None and not saved.normalization:
            raise CheckpointError(f"{file} holds no statistics; save the agent by agent.save(path, normalization=envs)")
        before = None if environment is None else environment.get_state()
        try:
            if environment is not None:
                environment.set_state(saved.normalization)
            elif saved.normalization and model is None:
                logger.warning(
                    "%s holds statistics by which the agent's observations were normalised, which are not used: call "
                    "agent.restore(path, normalization=env) with env of NormalizeVector(envs) or wrap_rms(env, ...)",
                    file,
                )
            if model is None:
                self.alg.set_state(saved.state)
            else:
                model.set_weights(_unprefixed(saved.state.arrays), portable=True)
        except (WeightsMismatchError, CheckpointError) as error:
            if environment is not None and before:
                environment.set_state(before)
            raise CheckpointError(
                f"{file}, written by {saved.algorithm} on {saved.backend}, does not fit this "
                f"{type(self.alg).__name__}: {error}"
            ) from error

    # Backend hooks

    def _model_to_store(self, model: Any, program: Any) -> Any:
        """Return the model of which `save` and `restore` are to use the weights alone; None for the whole agent."""
        if program is not None:
            raise ModelContractError(
                f"{type(self).__name__} builds no programs of static graphs: leave program out, which saves and "
                "restores the whole agent"
            )
        return model

    # Shared

    def _build(self) -> None:
        build_program = getattr(self, "build_program", None)
        if build_program is not None:
            build_program()

    def _on_policy(self, method: str) -> OnPolicy:
        if not isinstance(self.alg, OnPolicy):
            raise TypeError(
                f"{method} needs an algorithm that learns from its own policy's experience, such as PPO or A2C; "
                f"this agent's is {type(self.alg).__name__}"
            )
        return self.alg

    def _options(self, options: dict[str, Any], batch: Any, single: bool) -> dict[str, Any]:
        """Return options of one observation as those of a batch, with the mask of actions checked."""
        if single:
            arrays = {k: np.asarray(v)[None] for k, v in options.items() if isinstance(v, (np.ndarray, list))}
            options = options | arrays
        if self.alg.remembers:
            options = self._with_state(options, batch, single)
        mask = mask_of(batch, options.get("action_mask"))
        if mask is None:
            return options
        checked = check_mask(mask, getattr(getattr(self.alg, "actions", None), "nvec", None))
        # Networks find a mask among their observations; a choice on the host needs it as an option.
        takes_mask = "action_mask" in options or type(self.alg).choose is not Algorithm.choose
        return {**options, "action_mask": checked} if takes_mask else options

    def _with_state(self, options: Mapping[str, Any], batch: Any, single: bool) -> dict[str, Any]:
        """Return options with the state of a batch, all zeros where none was given.

        Raises:
            ValueError: It is not that of such a batch.
        """
        rows = rows_of(batch)
        expected = self.alg.model.initial_state(rows)
        given = options.get("state")
        if given is None:
            return {**options, "state": expected}
        if not isinstance(given, Mapping) or set(given) != set(expected):
            raise ValueError(f"state must be a dictionary of {', '.join(expected)}, as agents return it, got {given!r}")
        state = {name: given[name][None] if single else given[name] for name in expected}
        for name, array in state.items():
            if tuple(array.shape) != expected[name].shape:
                raise ValueError(
                    f"state[{name!r}] must have shape {list(expected[name].shape)} for {rows} observations, got "
                    f"{list(array.shape)}"
                )
        return {**options, "state": state}

    def _through_memory(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of features as one of an observation and the state, which also returns the state after."""

        @functools.wraps(method)
        def through(obs: Any, *, state: Any, **options: Any) -> tuple[Any, Any]:
            features, after = self.alg.model.remember(obs, state)
            return method(features, **options), after

        return through

    def _batched(self, obs: Any) -> tuple[Any, bool]:
        if self.alg.NEEDS_HISTORY:
            name = type(self.alg).__name__
            raise HyperparameterError(
                f"{name} chooses from the steps before and the return still wanted, not from an observation alone: "
                "play episodes with parl_core.training.offline.evaluate_with_target_return, or give all of "
                "it to agent.run(agent.alg.predict, obs, action, return_to_go, timestep, mask)"
            )
        ndim = self.obs_ndim
        # no function call for the usual case
        if type(obs) is np.ndarray and type(ndim) is int and obs.ndim == ndim + 1:
            return obs, False
        of_parts = isinstance(ndim, Mapping)
        if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], Mapping) and not of_parts:
            raise ValueError(
                "the observation is a pair of an observation and a dictionary, which is what env.reset() returns: "
                "write obs, info = env.reset() and pass obs"
            )
        return _as_batch(obs, ndim)

    def _forward(self, method: Callable[..., Any], batch: Any, with_noise: bool = False, **options: Any) -> Any:
        """Return the result of a method of the algorithm for a batch of observations, in evaluation mode.

        With noise, layers whose weights have some (`parl.layers.noisy_fc`) draw it, whatever the agent's mode.
        """
        if type(batch) is np.ndarray and (not options or options.keys() == {"action_mask"}):
            found = self.alg._on_host(method, batch, **options)
            if found is not None:
                if self._acted_on is None:
                    self._acted_on = {"obs": batch.shape[1:]}
                self.alg._settle_threads()
                return found
        if not holds_tensors(batch):  # a small network in numpy has found that its outputs are not finite
            _refuse_nan(batch)
        if self.alg.remembers:
            method = self._through_memory(method)
        if self._by_mode is None:
            self._by_mode = self.alg._layers_by_mode()
        switched = [
            (layer, draws)
            for layer in self._by_mode
            if layer.training != (draws := with_noise and isinstance(layer, NoisyFc))
        ]
        for layer, draws in switched:
            layer.training = draws
        try:
            with self.alg._no_gradients():
                tensors = {name: self._tensors(value) for name, value in options.items()}
                result = method(self._tensors(batch), **tensors)
            if holds_tensors(batch):
                return result
            if self._acted_on is None:
                self._acted_on = {name: array.shape[1:] for name, array in leaves("obs", batch).items()}
            return self._arrays(result)
        except Exception as error:
            if holds_tensors(batch):
                raise
            if isinstance(error, TypeError) and (unknown := self._unknown_options(method, options)):
                raise self.alg._without_option(unknown) from None
            shapes = {name: array.shape[1:] for name, array in leaves("obs", batch).items()}
            if self._acted_on not in (None, shapes) and not isinstance(error, ParlError):
                raise ValueError(
                    f"{type(self.alg.model).__name__} failed on {_listed(shapes)}; until now it was given "
                    f"{_listed(self._acted_on or {})}: pass observations [*obs], or a batch of them [n, *obs], as "
                    f"env.reset() and env.step() return them ({error})"
                ) from error
            _explain(error, type(self.alg).__name__, method, (batch,), options)
            raise
        finally:
            for layer, draws in switched:
                layer.training = not draws
            self.alg._settle_threads()

    def _steady(self, name: str, obs: Any) -> Callable[[Any], Any] | None:
        """Return one of this agent's methods as a function of batches like `obs` that does not look for new layers.

        It gives what the method gives while no layer or method of the model is replaced; weights may change in place.

        Args:
            name: Name of a method without options, `explore` or `logits`.
            obs: A batch `[n, ...]`.

        Returns:
            The function; None where the framework acts, the algorithm has no such method, or the agent's is another one
            than `parl.Agent`'s.
        """
        method, of_algorithm = getattr(self, name), getattr(self.alg, name, None)
        is_plain = getattr(method, "__func__", None) is getattr(Agent, name)
        if of_algorithm is None or not is_plain or type(obs) is not np.ndarray:
            return None
        batch, single = self._batched(obs)
        acting = None if single else self.alg._acting_on_host(of_algorithm, batch)
        self.alg._settle_threads()
        if acting is None or not acting.is_chain or not self.alg._threads_settled:
            return None
        self._acted_on = self._acted_on or {"obs": batch.shape[1:]}
        ndim, dtype = batch.ndim, batch.dtype

        def act(obs: Any) -> Any:
            found = acting(obs) if type(obs) is np.ndarray and obs.ndim == ndim and obs.dtype is dtype else None
            return method(obs) if found is None else found

        return act

    def _unknown_options(self, method: Callable[..., Any], options: Iterable[str]) -> list[str]:
        """Return the options of acting that a method of the algorithm does not take."""
        if getattr(method, "__name__", None) == "sample_actions":
            method = self.alg._taking_options()
        parameters = inspect.signature(method).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return []
        given = (name for name in options if name != "state" or not self.alg.remembers)
        return [name for name in given if name not in parameters]

    def _tensors(self, value: Any) -> Any:
        if isinstance(value, dict):
            return map_nested(self._tensors, value)
        known = isinstance(value, (np.ndarray, list)) or holds_tensors(value)
        return self.alg._tensor(value) if known else value

    def _arrays(self, result: Any) -> Any:
        if isinstance(result, tuple):
            return tuple(map(self._arrays, result))
        if type(result) is dict:
            return {name: self.alg._array(part) for name, part in result.items()}
        return self.alg._array(result)


def _with_row(error: DivergedError, batch: Batch | None) -> DivergedError:
    """Return an error with the place of the number that spoiled the loss, where a batch has one."""
    strange = None if batch is None else batch.describe_not_finite()
    if strange is None:
        return error
    return SpoiledBatchError(
        f"{strange}: one such number spoils all weights; clip or drop it in the environment. {error}"
    )


def _prefixed(weights: Weights) -> Weights:
    return {f"model/{name}": array for name, array in weights.items()}


def _unprefixed(arrays: Weights) -> Weights:
    return {name.removeprefix("model/"): array for name, array in arrays.items() if name.startswith("model/")}


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} of shape {list(shape)}" for name, shape in shapes.items())


def _refuse_nan(batch: Any) -> None:
    """Reject observations that are NaN, for which any action is as good as none.

    Raises:
        SpoiledBatchError: It names the number's place.
    """
    for name, array in leaves("obs", batch).items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            row, *place = np.argwhere(np.isnan(array))[0].tolist()
            raise SpoiledBatchError(
                f"{name}{place} of observation {row} is NaN: look for divisions by 0 in the environment "
                "(parl.env.check_env finds such), or for a reset that left numbers out"
            )


def _as_batch(obs: Any, ndim: Any) -> tuple[Any, bool]:
    """Return the observations as a batch, and whether it was a single one.

    Args:
        obs: One observation or a batch: an array, or a dictionary of arrays.
        ndim: As `parl.Agent`'s `obs_ndim`.

    Raises:
        ValueError: The number of dimensions fits neither, or the observation is no dictionary of the model's parts.
    """
    if isinstance(obs, tuple) and isinstance(ndim, Mapping):
        obs = {str(i): part for i, part in enumerate(obs)}
    if isinstance(ndim, Mapping) and not (isinstance(obs, Mapping) and obs.keys() & ndim.keys()):
        given = (
            f"a dictionary of {', '.join(obs)}" if isinstance(obs, Mapping) else f"an array of shape {np.shape(obs)}"
        )
        raise ValueError(
            f"the observation is {given}, and the model's are dictionaries of {', '.join(ndim)}: pass it as "
            "env.reset() and env.step() return it"
        )
    if isinstance(obs, Mapping):
        if not obs:
            raise ValueError("an observation that is a dictionary needs at least one entry, got {}")
        parts = {
            key: _as_batch(value, ndim.get(key) if isinstance(ndim, Mapping) else ndim) for key, value in obs.items()
        }
        singles = {single for _, single in parts.values()}
        if len(singles) > 1:
            raise ValueError(
                "some entries of the observation look like a single one, others like a batch: "
                f"{ {key: np.shape(value) for key, value in obs.items()} }; "
                "set agent.obs_ndim to a dictionary of the number of dimensions of each"
            )
        return {key: batch for key, (batch, _) in parts.items()}, singles.pop()
    array = obs if holds_tensors(obs) else np.asarray(obs)
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


def _unbatched(actions: Any, single: bool) -> Any:
    """Return the rows of a batch, or its row where it was one observation: a number as Python's, a tuple by parts."""
    if not single:
        return actions
    if isinstance(actions, tuple):
        return tuple(_unbatched(part, single) for part in actions)
    if isinstance(actions, dict):
        return {name: array[0] for name, array in actions.items()}
    row = actions[0]
    if holds_tensors(row):
        return row
    return row.item() if np.ndim(row) == 0 else row


def _explain(
    error: Exception, algorithm: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Add to an error of the framework or the model the arrays that led there, and the requirements of a model."""
    if isinstance(error, ParlError) or getattr(error, "__notes__", None):
        return
    try:
        names = list(inspect.signature(method).parameters)
    except (TypeError, ValueError):  # what is not a Python function
        names = [f"argument {i}" for i in range(len(args))]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    arrays = [
        f"{name} {array.dtype} {list(array.shape)}"
        for key, value in given.items()
        if isinstance(value, (np.ndarray, list, dict))
        for name, array in leaves(key, value).items()
    ]
    error.add_note(
        f"It came out of {algorithm}.{getattr(method, '__name__', 'learn')} with {', '.join(arrays) or 'no arrays'}. "
        "The model has to take such observations, casting whole numbers where its layers want others, and to "
        f"return what {algorithm}'s documentation says: help(parl.algorithms.{algorithm})"
    )


def _check_figures(source: str, figures: Any) -> None:
    """Reject NaN and infinity in the result of an algorithm's method: a number, a tuple or a dictionary.

    Raises:
        DivergedError: It names the figures, and what usually helps.
    """
    if isinstance(figures, float):
        check_finite(source, {"the loss": figures})
    elif isinstance(figures, tuple):
        names = getattr(figures, "_fields", None) or [f"figure {i}" for i in range(len(figures))]
        parts = dict(zip(names, figures, strict=True))
        check_finite(source, {name: part for name, part in parts.items() if isinstance(part, float)})
        for part in figures:
            _check_figures(source, part if isinstance(part, tuple) else None)
    elif isinstance(figures, dict):
        check_finite(source, {name: part for name, part in figures.items() if isinstance(part, float)})
