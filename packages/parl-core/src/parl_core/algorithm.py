"""The contract of `parl.Algorithm`, which updates the parameters of a model, and of its optimizers.

Both backends share this module: weights, the state of a saved agent, the rule that turns a network's output into
actions, and the check of a model's outputs before the first update. Tensor code is in the backends.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from parl_core import _config, logger
from parl_core._attached_state import (
    Digest,
    StateAccessor,
    accessor_of,
    attributes,
    changed_values,
    decode,
    encode,
    first_value,
    is_generator,
    values_of,
)
from parl_core._deprecation import REMOVED_ATTRIBUTES, REMOVED_OPTIMIZER_ATTRIBUTES, found_or_successor
from parl_core._nested import holds_tensors, map_nested, rows_of
from parl_core._small_networks import Framework, HostActing, Way, has_hooks
from parl_core.backends import Learners
from parl_core.checks import check_non_negative
from parl_core.errors import CheckpointError, HyperparameterError, ModelContractError, UnknownOptionError
from parl_core.layers import NoisyFc
from parl_core.model import Model, Weights, check_names, check_weights
from parl_core.recurrent import has_memory

__all__ = ["Algorithm", "AlgorithmState", "FrameworkOptimizer", "LearningRate", "Optimizer", "require_gradient"]

_MOST_TRIED = 64  # number of rows; among so many logarithms, one is almost surely not above 0


class LearningRate:
    """The learning rate of an optimizer: the rate that steps are called with, or one that a program sets.

    The later change applies. A rate that a program sets holds until a step is called with a different rate than the
    step before, for instance by a schedule; a constant rate of the algorithm does not replace it.
    """

    _RATES: ClassVar[tuple[str, ...]] = ("_set", "_asked")
    """The attributes that are saved."""

    _lr: float | None
    _asked: float | None = None
    _set: float | None = None

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the steps to come; it is saved with the optimizer's state.

        Args:
            lr: The learning rate, at least 0.

        Raises:
            HyperparameterError: It is not a number, or below 0.
        """
        self._set = check_non_negative("lr", lr)

    def get_lr(self) -> float | None:
        """Return the learning rate of the last step, or the one that has been set for the next."""
        return next((rate for rate in (self._set, self._asked) if rate is not None), self._lr)

    @property
    def param_groups(self) -> list[MutableMapping[str, Any]]:
        """One group with all parameters, as PyTorch's optimizers have: `param_groups[0]["lr"] = 1e-4` sets the rate."""
        return [_Group(self)]

    def _rate(self, asked: float | None) -> Any:
        """Return the rate of a step that is requested with or without a rate."""
        if asked is not None and asked != self._asked:
            if self._asked is not None:
                self._set = None
            self._asked = asked
        if self._set is not None:
            return self._set
        return self._lr if asked is None else asked

    def _listed(self) -> Sequence[Any]:
        """Return the parameters that steps change."""
        raise NotImplementedError

    def _rate_state(self) -> dict[str, NDArray[Any]]:
        """Return the rates to be saved, NaN for those that there are not; empty before the first step with a rate."""
        rates = [getattr(self, name) for name in self._RATES]
        if all(rate is None for rate in rates):
            return {}
        return {"rates": np.asarray([np.nan if rate is None else rate for rate in rates])}

    def _restore_rate(self, state: Mapping[str, Any]) -> None:
        rates = np.asarray(state.get("rates", state.get("set_lr", ())))  # checkpoints of older versions have "set_lr"
        for name, rate in itertools.zip_longest(self._RATES, rates.tolist()):
            setattr(self, name, None if rate is None or np.isnan(rate) else float(rate))

    if not TYPE_CHECKING:  # type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            return found_or_successor(self, name, REMOVED_OPTIMIZER_ATTRIBUTES)


class _Group(MutableMapping[str, Any]):
    """The only group of parameters of an optimizer."""

    def __init__(self, optimizer: LearningRate) -> None:
        self._optimizer = optimizer

    def __getitem__(self, key: str) -> Any:
        if key == "lr":
            return self._optimizer.get_lr()
        if key == "params":
            return list(self._optimizer._listed())
        raise KeyError(key)

    def __setitem__(self, key: str, value: Any) -> None:
        if key != "lr":
            raise HyperparameterError(f"a group's {key!r} cannot be set, only its 'lr'")
        self._optimizer.set_lr(value)

    def __delitem__(self, key: str) -> None:
        raise HyperparameterError(f"a group keeps its {key!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(("params", "lr"))

    def __len__(self) -> int:
        return 2


class Optimizer(LearningRate):
    """Adam (Kingma & Ba 2015, algorithm 1) for some or all parameters of one model.

    Its state is created when the first loss arrives, because lazily shaped layers have no parameters before the first
    batch.

    Args:
        model: The model whose parameters are updated.
        lr: Default learning rate, above 0.
        eps: The number added to the root of the second moment.
        max_grad_norm: Limit of the gradients' global norm, None for none.
        part: The part to update: only the parameters below this attribute of the model, or those that this function
            lists.
        compiles: `descend` compiles losses and gradients if the backend does.
    """

    def __init__(
        self,
        model: Model,
        *,
        lr: float,
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
        part: str | Callable[[], Iterable[Any]] | None = None,
        compiles: bool = False,
    ) -> None:
        self._model = model
        self._lr = lr
        self._eps = eps
        self._max_grad_norm = max_grad_norm
        self._part = part
        self._compiles = compiles

    def minimize(self, loss: Any, lr: float | None = None) -> Any:
        """Compute gradients of `loss` and take one step.

        Args:
            loss: A scalar tensor.
            lr: Learning rate of this step; default the constructor's.

        Returns:
            The gradients' global norm before clipping, a tensor, where a limit was set; else None.
        """
        raise NotImplementedError

    def descend(self, loss: Callable[..., Any], *batch: Any, lr: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Take one step down the gradient of `loss(*batch)`.

        Args:
            loss: A function of tensors without side effects that returns a scalar, and figures by name; where the
                algorithm compiles, it is compiled together with its gradient.
            batch: The arguments of the loss: batches, tensors, dictionaries of tensors or None.
            lr: Learning rate of this step; default the constructor's.

        Returns:
            The result of `loss`, detached from the graph.
        """
        raise NotImplementedError

    def get_state(self) -> Weights:
        """Return copies of the state, empty before the first step.

        Returns:
            `step/<parameter>` (int64 scalar), `moment1/<parameter>` and `moment2/<parameter>` of Adam, in the names and
            layouts of `Model.get_weights(portable=True)`; and `rates`, those set by `set_lr()` and of the last step,
            where there are any.
        """
        raise NotImplementedError

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned, of either backend.

        Raises:
            WeightsMismatchError: Names or shapes do not fit the model; nothing was changed.
        """
        raise NotImplementedError

    def _named(self) -> dict[str, Any]:
        """Return the parameters that are updated, by name."""
        named = self._model._named_parameters()
        if self._part is None:
            return named
        if isinstance(self._part, str):
            return {name: value for name, value in named.items() if name.startswith(f"{self._part}.")}
        listed = {id(parameter) for parameter in self._part()}
        return {name: value for name, value in named.items() if id(value) in listed}

    def _saved(self, state: Mapping[str, Any]) -> tuple[Weights, Weights, Weights]:
        """Return steps, first and second moments of a saved state, by the names and in the layouts of this backend.

        Raises:
            WeightsMismatchError: Names or shapes do not fit the model.
        """
        slots: dict[str, Weights] = {"step": {}, "moment1": {}, "moment2": {}}
        for path, array in state.items():
            slot, _, name = path.partition("/")
            if slot in slots:
                slots[slot][name] = np.asarray(array)
        named = self._named()
        known = {name: tuple(named[name].shape) for name in slots["step"] if name in named}
        for slot in ("moment1", "moment2"):
            converted = self._model._from_portable(slots[slot])  # it adds what no optimizer has, such as counters
            slots[slot] = {name: array for name, array in converted.items() if name in slots[slot]}
            check_weights(f"{slot} of the optimizer", known, slots[slot])
        check_weights("step of the optimizer", dict.fromkeys(known, ()), slots["step"])
        return slots["step"], slots["moment1"], slots["moment2"]


class FrameworkOptimizer(LearningRate):
    """An adapter of one of the framework's optimizers for an algorithm, which saves its state.

    Args:
        optimizer: An optimizer with parameters of the model.
        parameters: All parameters of the model.
        max_grad_norm: Limit of the global norm of the gradients; None for no limit.
        part: The parameters that the optimizer may have; default all.

    Raises:
        HyperparameterError: `optimizer` is not an optimizer or one that computes losses several times, has no parameter
            of the model or one of another part, or several processes learn together.
    """

    BASE: ClassVar[type[Any]]
    """The base of the framework's optimizers."""
    EXAMPLE: ClassVar[str]
    """An optimizer of a model, for messages."""

    _RATES = (*LearningRate._RATES, "_given")

    _learners: Callable[[], Learners]
    """Backend hook: the processes that learn together."""
    _given: float | None = None

    def __init__(
        self,
        optimizer: Any,
        parameters: Iterable[Any],
        max_grad_norm: float | None = None,
        *,
        part: Iterable[Any] | None = None,
    ) -> None:
        kind = type(optimizer).__name__
        if not isinstance(optimizer, self.BASE):
            package = self.BASE.__module__.rpartition(".")[0]
            raise HyperparameterError(
                f"optimizer must be one of {package} or parl.optim, got {optimizer!r}: for instance {self.EXAMPLE}"
            )
        if self._repeats_losses(optimizer):
            raise HyperparameterError(
                f"{kind} computes the loss of one step several times, and updates compute it once: use another "
                f"optimizer, such as {self.EXAMPLE}"
            )
        self.optimizer = optimizer
        own = set(map(id, self._listed()))
        if own.isdisjoint(map(id, parameters)):
            raise HyperparameterError(
                f"the {kind} has no parameters of this model, so nothing would be learned: make it of the parameters "
                f"of the model that the algorithm is given, as {self.EXAMPLE}"
            )
        if part is not None and not own.issubset(map(id, part)):
            raise HyperparameterError(
                f"the {kind} has parameters of another part of the model, whose loss it would also follow: make it of "
                "what the model lists for its part, such as model.get_actor_params()"
            )
        if self._learners().size > 1:
            raise HyperparameterError("several processes learn together with optimizers of parl.optim: leave it out")
        self._lr = None
        self._max_grad_norm = max_grad_norm

    def descend(self, loss: Callable[..., Any], *batch: Any, lr: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Take one step down the gradient of the loss."""
        value, figures = loss(*batch)
        self.minimize(value, lr)
        return value.detach(), {name: figure.detach() for name, figure in figures.items()}

    def minimize(self, loss: Any, lr: float | None = None) -> Any:
        """Compute gradients of `loss` and take one step; `lr` becomes the learning rate of the optimizer."""
        raise NotImplementedError

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the optimizer, of all its groups of parameters, for later steps; see the base."""
        super().set_lr(lr)
        self._give(lr)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, and the rates that it was given."""
        return {**self._accessor().get(), **self._rate_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._accessor().set({name: part for name, part in state.items() if name != "rates"})
        self._restore_rate(state)

    def _follow(self, lr: float | None) -> None:
        """Give the optimizer the rate of a step that is requested with one; a rate that a program gave it stays."""
        if lr is not None and self._rate(lr) != self._given:
            self._give(self._rate(lr))

    def _give(self, lr: float) -> None:
        self._given = lr
        self._set_rate(lr)

    # Backend hooks

    def _repeats_losses(self, optimizer: Any) -> bool:
        """Return whether one step computes the loss several times."""
        raise NotImplementedError

    def _set_rate(self, lr: float) -> None:
        """Set the learning rate of the optimizer itself."""
        raise NotImplementedError

    def _accessor(self) -> StateAccessor:
        """Return the functions that read and write the state of the optimizer."""
        raise NotImplementedError


def require_gradient(has_one: bool, owner: str) -> None:
    """Reject a loss on which no trainable parameter has an influence.

    Args:
        has_one: Whether the loss has a gradient.
        owner: The owner of the parameters, for the message.

    Raises:
        ModelContractError: It has no numpy form.
    """
    if not has_one:
        raise ModelContractError(
            f"the loss has no gradient, so nothing would be learned: let some parameters of {owner} require "
            "gradients, and compute the loss of them, where gradients are recorded"
        )


@dataclass(frozen=True)
class AlgorithmState:
    """The state that an exact continuation needs.

    Attributes:
        arrays: `<attribute>/<name>` -> array: every model (targets included) and every optimizer of the algorithm.
        counters: Whole numbers by attribute, such as the updates since the last target synchronisation.
        others: The state of the algorithm's other objects by attribute (optimizers, schedulers, generators and modules
            of the framework, and numbers, arrays and tensors that have changed): `class`, the full name of its class,
            and `state`, whose arrays and tensors are among `arrays`, below the attribute's name.
    """

    arrays: Weights
    counters: dict[str, int] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Value:
    """A number, an array or a tensor, or None, in an attribute, and a copy of it in which tensors are arrays."""

    owner: Any
    attribute: str
    held: Any
    copied: Any


@dataclass
class _MetricSums:
    """Sums of figures by name, which stay on the device."""

    sums: dict[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


class Algorithm:
    """Defines the loss and updates `self.model`; its methods take and return tensors of the framework.

    A new algorithm is a subclass with `learn` and `predict`, and `sample` where exploring differs from `predict`.
    Calling `super().__init__(model)` moves the model to the device; without the call it stays where it is.

        class Imitation(parl.Algorithm):
            def __init__(self, model, lr):
                super().__init__(model)
                self.optimizer = parl.optim.Adam(model, lr=lr)

            def predict(self, obs):
                return self.model.policy(obs).argmax(-1)

            def learn(self, obs, action):
                logits = self.model.policy(obs)
                loss = parl.layers.mean(parl.layers.softmax_with_cross_entropy(logits, action.reshape([-1, 1])))
                self.optimizer.minimize(loss)
                return loss

        agent = parl.Agent(Imitation(parl.networks.ActorCritic(act_dim=2), lr=1e-3))
        loss = agent.learn(np.zeros((32, 4), np.float32), np.ones(32, np.int64))

    Args:
        model: The network to train.
        hyperparas: PARL 1.x's dictionary of settings, kept as `self.hyperparas`; new code uses arguments.
        device: `"auto"` (the environment variable `PARL_DEVICE`, else a GPU when there is one, else the CPU) or a name
            of the framework, such as `"cpu"` or `"cuda:1"`.
        compile: Whether losses and their gradients are compiled (`torch.compile`; on CUDA with graphs): the first
            updates take many seconds, later ones less than before. Off by default. Without a C++ compiler there is a
            warning, and nothing is compiled; paddle refuses the option.
        compute_dtype: `"bfloat16"` lets the networks multiply in half the bits, which pays for convolutions where the
            processor or GPU can do it; weights, losses, optimizer and what agents return stay float32. Default:
            float32. Paddle refuses it.

    Raises:
        ModelContractError: The model keeps layers where the framework does not find them.
        HyperparameterError: The device is unknown or missing, the backend does not support `compile` or
            `compute_dtype`, or the model has a memory and the algorithm does not learn from sequences.
    """

    model: Any

    COUNTERS: ClassVar[tuple[str, ...]] = ()
    """Attributes with whole numbers that belong to the saved state."""

    LATER_COUNTERS: ClassVar[tuple[str, ...]] = ()
    """The members of `COUNTERS` that files of older versions lack; they keep their values then."""

    ACTS_IN_UNIT_BOX: ClassVar[bool] = False
    """True if actions lie in [-1, 1]; the loops map them in a straight line to the bounds of the action space."""

    TARGETS: ClassVar[tuple[str, ...]] = ("target_model",)
    """Attributes with models that only give targets. They stay in evaluation mode: no dropout, and batch statistics are
    those that `sync_weights_to` has brought, which their own forward passes do not touch. Only noisy layers
    (`parl.layers.noisy_fc`) draw there, too (Fortunato et al. 2018, section 3.1)."""

    NEEDS_HISTORY: ClassVar[bool] = False
    """True if `predict` takes the previous steps as well, so that an agent cannot act on an observation alone."""

    TEAM: ClassVar[str | None] = None
    """The kind of `parl.networks.for_team` whose models an algorithm for several agents trains. Loops show it
    joint observations (`parl_core.env.joint`) for an action of each agent; rollouts have a column an agent
    (`parl_core.contracts.batches.TeamRollout`)."""

    LEARNS_SEQUENCES: ClassVar[bool] = False
    """True if the algorithm learns with models that have a memory (`parl_core.recurrent`)."""

    NAMED: ClassVar[frozenset[str]] = frozenset()
    """Names of the figures of its losses that the algorithm itself uses or returns.

    Other scalars of a subclass's losses are for the logs: see `take_figures`."""

    UNUSED: ClassVar[frozenset[str]] = frozenset()
    """Settings of its loop that the algorithm has no use for: `parl settings` does not list them, and they are refused.
    Algorithms for several agents have more of them (`parl_core.contracts._base.unused_settings`)."""

    RECORDED: ClassVar[bool] = False
    """True if updates may be recorded in a program and run later, so that what follows one has to be recorded, too."""

    CHOOSES: ClassVar[bool] = False
    """True if losses take actions as int64 `[n]`; `learn` takes whole numbers of any dtype, `[n]` or `[n, 1]`."""

    ON_HOST: ClassVar[Mapping[Any, Way]] = {}
    """The ways in which methods of this very class, not of derived ones, act in numpy (`parl_core._small_networks`)."""

    FRAMEWORK: ClassVar[Framework | None] = None
    """The backend's framework as small networks see it; None where they do not act in numpy."""

    LOSSES_HIDE_NAN: ClassVar[bool] = False
    """True if a loss may be finite although observations are NaN, so that programs check observations first."""

    _ways: ClassVar[Mapping[Any, Way]] = {}

    _learn_of_parl2: Callable[[Any], Any] | None = None
    """Backend hook: `learn(batch)` with the results of PARL 2.x, for calls with its columns and nothing else; None if
    PARL 2.x had the same results."""

    remembers: bool = False
    """True if the model has a memory (`parl_core.recurrent`)."""

    _device_chosen: bool = True
    """True if the user chose the device, by the argument or `PARL_DEVICE`; False if it is the one that was found."""

    _compiles: bool = False
    _has_gaussians: bool = False
    _reduces: bool = False
    _threads_settled: bool = False
    _figures: _MetricSums | None = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        is_ours = cls.FRAMEWORK is not None and cls.__module__.partition(".")[0] == cls.FRAMEWORK.backend
        # Those of its own contract: any other class may change what the contract's methods call.
        cls._ways = vars(cls.__bases__[0]).get("ON_HOST", {}) if is_ours else {}

    def __init__(
        self,
        model: Model | None = None,
        hyperparas: Mapping[str, Any] | None = None,
        *,
        device: str = "auto",
        compile: bool = False,
        compute_dtype: str | None = None,
    ) -> None:
        self.hyperparas = dict(hyperparas or {})
        self._device = self._resolve_device(device)
        self._device_chosen = device != "auto" or _config.device_choice() is not None
        self._compiles = bool(compile) and self._require_compiler()
        if compute_dtype not in (None, "float32", "bfloat16"):
            raise HyperparameterError(f'compute_dtype must be "float32" or "bfloat16", got {compute_dtype!r}')
        self._reduces = compute_dtype == "bfloat16" and self._require_bfloat16()
        if model is not None:
            self.model = self._place(model, self._device)
            if isinstance(model, Model):
                model.require_found_layers()
                self.remembers = self._learns_with_memory(model)

    if not TYPE_CHECKING:  # type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            return found_or_successor(self, name, REMOVED_ATTRIBUTES)

    @property
    def device(self) -> Any:
        """The device of batches, in the framework's own type.

        An algorithm of your own may set it, by a name or the framework's device, and then moves its models itself.
        """
        found = getattr(self, "_device", None)
        return self._device_of_models() if found is None else found

    @device.setter
    def device(self, device: Any) -> None:
        self._device = self._resolve_device(device)

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        """Update the model from one batch of tensors and return the loss, detached from the graph."""
        raise NotImplementedError(f"{type(self).__name__} does not define learn()")

    def learn_many(self, batches: Iterable[Any], **settings: Any) -> list[Any]:
        """Update the model from several batches of tensors, one after the other; return the results of `learn`."""
        return [self.learn(batch, **settings) for batch in batches]

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output for a batch of observations, without noise."""
        raise NotImplementedError(f"{type(self).__name__} does not define predict()")

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """Return actions with exploration noise; where a subclass does not define it, `choose` explores."""
        raise NotImplementedError(f"{type(self).__name__} does not define sample()")

    def sample_actions(self, *args: Any, **kwargs: Any) -> Any:
        """Return the values for `Agent.sample` if a subclass defines `sample`; here all that `sample` returns.

        It passes all options on.
        """
        return self.sample(*args, **kwargs)

    def choose(
        self,
        output: Any,
        *,
        rng: np.random.Generator | None = None,  # noqa: ARG002 - for subclasses
        **options: Any,
    ) -> Any:
        """Turn the numpy output of `predict` into actions, on the host.

        Args:
            output: The result of `predict`, as numpy arrays with one row an observation.
            rng: The generator of exploration; None acts greedily.
            options: Settings of exploration that the algorithm documents.

        Returns:
            Actions, one row an observation; here the output itself.
        """
        if options:
            raise self._without_option(options)
        return output

    def check_batch(self, batch: Any) -> Any:
        """Return a user's batch of arrays with columns that fit this algorithm; here it is unchanged.

        Raises:
            ValueError: The columns do not fit.
        """
        return self._fitted(batch)

    def settle_shapes(self, obs: Any, action: Any) -> None:  # noqa: ARG002  # of the interface
        """Run lazily shaped layers that acting does not run, such as critics, on a first batch; targets get the shapes.

        The loops call it before they begin, so that a checkpoint can be written before the first update without an
        effect on the run. It does not learn or draw. Here it gives targets the shapes of the model; algorithms with
        further layers run those first.

        Args:
            obs: `[n, ...]`, or a dictionary of arrays.
            action: The actions of the agent, `[n, ...]`.
        """
        self._settle_copies()

    def take_figures(self) -> dict[str, float]:
        """Return the means, since the last call, of the figures that losses add to the algorithm's (`NAMED`).

        The loops report them with the losses. They are not in checkpoints.
        """
        found, self._figures = self._figures, None
        if found is None:
            return {}
        means = {name: total / found.counts[name] for name, total in found.sums.items()}
        return {name: float(mean) for name, mean in self._read(means).items()}

    def train(self) -> None:
        """Put the models into training mode (dropout and batch statistics active), except for targets."""
        for name, model in self._models().items():
            if name not in self.TARGETS:
                model.train()
        self._settle_targets()

    def eval(self) -> None:
        """Put all models into evaluation mode."""
        for model in self._models().values():
            model.eval()

    def get_weights(self) -> Weights:
        """Return copies of the weights of `self.model`, by name, for actors."""
        weights: Weights = self._main_model().get_weights()
        return weights

    def set_weights(self, weights: Mapping[str, Any] | Sequence[Any]) -> None:
        """Copy weights into `self.model`.

        Raises:
            WeightsMismatchError: A name is missing or unknown, or two shapes differ.
        """
        self._main_model().set_weights(weights)

    def get_state(self) -> AlgorithmState:
        """Return copies of all state that learning changes: models, optimizers, counters, other stateful attributes.

        The state is collected from the attributes, and from the lists, tuples and dictionaries among them; what other
        objects hold is in it if they have `get_state` and `set_state`. Models of
        `parl.Model` and optimizers of `parl.optim` have names and layouts that both backends share. The framework's own
        optimizers, schedulers, generators, modules and tensors that require gradients, numpy's generators, and whatever
        has `state_dict` and `load_state_dict`, or `get_state` and `set_state`, can be restored in the same framework
        only. The same holds for numbers, arrays and dense tensors among the attributes that have changed since an agent
        was made with the algorithm, such as a running mean or a weight that decays.

        Beside weights, such numbers, arrays and tensors in attributes of a model's layers belong to the state, too, and
        random generators of numpy, Python and the framework, if the layer's class is the user's own.

        Raises:
            CheckpointError: The state contains something that cannot be saved, such as a function.
        """
        arrays: Weights = {}
        self._settle_copies()
        for owner, model in self._models().items():
            arrays |= {f"{owner}/{name}": array for name, array in model.get_weights(portable=True).items()}
        for owner, optimizer in self._optimizers().items():
            arrays |= {f"{owner}/{name}": array for name, array in optimizer.get_state().items()}
        others = {}
        for owner, (value, accessor) in self._attached().items():
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            others[owner] = {"class": kind, "state": encode(accessor.get(), owner, arrays, self._copied)}
        for name, value in self._changed_values().items():
            kind = f"{type(value.held).__module__}.{type(value.held).__qualname__}"
            others[name] = {"class": kind, "value": encode(value.held, name, arrays, self._copied)}
        return AlgorithmState(arrays, {name: int(getattr(self, name)) for name in self.COUNTERS}, others)

    def set_state(self, state: AlgorithmState) -> None:
        """Restore a state that `get_state` of this or of the other backend returned.

        Raises:
            WeightsMismatchError: Names or shapes do not fit.
            CheckpointError: A counter is missing, or an object of the framework rejects its state.
        """
        parts = _split(state.arrays)
        models, optimizers = self._models(), self._optimizers()
        ours = [owner for owner in parts if owner not in optimizers and owner not in state.others]
        later = self._models_that_older_files_lack()
        check_names(type(self).__name__, [owner for owner in models if owner in ours or owner not in later], ours)
        missing = [name for name in self.COUNTERS if name not in (*state.counters, *self.LATER_COUNTERS)]
        if missing:
            raise CheckpointError(f"the state of {type(self).__name__} lacks the counters {', '.join(missing)}")
        before = None if any(model._waiting() for model in models.values()) else self.get_state()
        try:
            self._load_values(state)
            self._load(parts)  # after the values, because one may share the memory of a weight
            self._load_others(state)
        except Exception:
            if before is not None:
                self._load_values(before)
                self._load(_split(before.arrays))
                self._load_others(before)
            raise
        for name in self.COUNTERS:
            setattr(self, name, state.counters.get(name, getattr(self, name)))

    # Backend hooks

    def _resolve_device(self, device: str) -> Any:
        """Return the framework's device for the argument of the constructor."""
        raise NotImplementedError

    def _require_compiler(self) -> bool:
        """Return whether the backend can compile here; raise HyperparameterError where it never does."""
        raise NotImplementedError

    def _require_bfloat16(self) -> bool:
        """Return True where the backend lets networks compute in bfloat16; else raise HyperparameterError."""
        raise NotImplementedError

    def _place(self, model: Any, device: Any) -> Any:
        """Return the model, moved to the device."""
        raise NotImplementedError

    def _settle_threads(self) -> None:
        """Set the framework's number of threads to one that suits these models, once the shapes of all are known.

        It goes by size and never by timing: another number of threads sums in another order, and a resumed run is to
        have the same bits. What the user has chosen stays.
        """
        if not self._threads_settled:
            self._threads_settled = self._choose_threads()

    def _choose_threads(self) -> bool:
        """Backend hook: choose the number of threads; return False while it cannot be decided yet."""
        return True

    def _device_of_models(self) -> Any:
        """Return the device of the models' parameters, for algorithms that did not call `super().__init__`."""
        raise NotImplementedError

    def _adam(
        self,
        model: Any,
        *,
        lr: float,
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
        part: str | Callable[[], Iterable[Any]] | None = None,
    ) -> Optimizer:
        """Return Adam (beta 0.9 and 0.999) for the parameters of `model`.

        `part` restricts it to those below an attribute of that name, or to those that a function lists when the first
        loss arrives.
        """
        raise NotImplementedError

    def _adapted(
        self, optimizer: Any, max_grad_norm: float | None, part: Iterable[Any] | None = None
    ) -> FrameworkOptimizer:
        """Return an adapter that takes steps with an optimizer of the framework.

        Args:
            optimizer: An optimizer that was made of parameters of the model.
            max_grad_norm: Limit of the gradients' global norm, None for none.
            part: The parameters that it may update; default all of the model.

        Raises:
            HyperparameterError: It is none, or has no parameters of the model, or others than those of its part.
        """
        raise NotImplementedError

    def _tensor(self, array: Any) -> Any:
        """Return a tensor on this algorithm's device that holds the array's values."""
        raise NotImplementedError

    def _choices_of(self, action: Any) -> Any:
        """Return a tensor of whole numbers of any dtype, `[n]` or `[n, 1]`, as int64 `[n]`."""
        raise NotImplementedError

    def _stacked(self, tensors: Sequence[Any]) -> Any:
        """Return tensors of equal shapes as one, `[count, ...]`."""
        raise NotImplementedError

    def _within(self, tensor: Any, low: Any, high: Any) -> Any:
        """Return a tensor clipped to tensors of bounds."""
        raise NotImplementedError

    def _read(self, result: Any) -> Any:
        """Return tensors that an algorithm returned, one or in tuples and dictionaries, as floats and arrays.

        A backend reads a single tensor; anything else stays as it is.
        """
        if isinstance(result, tuple):
            parts = [self._read(part) for part in result]
            return result._make(parts) if hasattr(result, "_make") else tuple(parts)  # a named tuple
        if isinstance(result, dict):
            return {name: self._read(part) for name, part in result.items()}
        return result

    def _on_device(self, batch: Any) -> Any:
        """Return a batch of tensors with the values of a batch of arrays; the one conversion that an update makes."""
        raise NotImplementedError

    def _exact_tensor(self, array: NDArray[Any], like: Any = None) -> Any:
        """Return a tensor of the array's own dtype, on the device of the tensor `like`, else on the CPU.

        Values of a bfloat16 tensor, which numpy has as float32, become bfloat16 again if `like` is.
        """
        raise NotImplementedError

    def _overwrite(self, tensor: Any, values: Any) -> bool:
        """Give a tensor the values of another one in place; return False where it cannot take them."""
        raise NotImplementedError

    def _copied(self, tensor: Any) -> NDArray[Any] | None:
        """Return a copy of a dense tensor's values as an array; None for others, and for dtypes that numpy lacks."""
        raise NotImplementedError

    def _is_generator(self, value: Any) -> bool:
        """Return whether an object is a random generator of numpy, Python or the framework."""
        return is_generator(value)

    def _accessor(self, value: Any) -> StateAccessor | None:
        """Return the functions that read and write the state of an attached object; None if it has none."""
        return accessor_of(value)

    def _array(self, tensor: Any) -> Any:
        """Return a numpy array that holds the tensor's values; other values pass unchanged."""
        raise NotImplementedError

    def _run(self, network: Callable[..., Any], *inputs: Any) -> Any:
        """Return the output of a network, widened again if the network computes in fewer bits."""
        return network(*inputs)

    def _no_gradients(self) -> AbstractContextManager[Any]:
        """Provide a context in which the framework records no gradients."""
        raise NotImplementedError

    def _drawing_from(self, seed: int) -> AbstractContextManager[Any]:
        """Provide a context in which this device draws from a stream that `seed` begins; afterwards its own goes on."""
        raise NotImplementedError

    def _noise(self, like: Any) -> Any:
        """Return draws from N(0, 1) of the shape and dtype of a tensor."""
        raise NotImplementedError

    def _distribution(self, output: Any, kind: Any, mask: Any) -> Any:
        """Return the backend's distribution of actions of an `ActionKind`, made of the output of `policy(obs)`."""
        raise NotImplementedError

    def _normalised(self, values: Any) -> Any:
        """Return a tensor `[batch]` shifted and scaled to mean 0 and deviation 1, over all processes that learn."""
        raise NotImplementedError

    def _means(self, steps: Sequence[Any]) -> list[float]:
        """Return the mean of each column of scalar tensors, over all processes that learn; the device is read once."""
        raise NotImplementedError

    def _branch_on(self, condition: Callable[[], bool], yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """Return `yes()` where the condition holds, else `no()`.

        Of an update that is recorded and run later, the condition is asked at each run; both return tensors of equal
        shapes and dtypes there.
        """
        return yes() if condition() else no()

    def _missing_metric(self, like: Any) -> Any:  # noqa: ARG002
        """Return the stand-in for a loss that an update lacks: None; if it is recorded a NaN of the dtype of `like`."""
        return None

    def _value_before_update(self, value: Callable[[], Any]) -> Any:
        """Return `value()`; in an update that is recorded and run later, its result at each run."""
        return value()

    def _call_after_update(self, action: Callable[[], object]) -> None:
        """Do `action` now; of an update that is recorded and run later, after each run."""
        action()

    def _is_recording(self) -> bool:
        """Return True while `learn` is recorded in a program, of placeholders without rows."""
        return False

    # Shared

    def _taking_options(self) -> Callable[..., Any]:
        """Return the method with the options of `Agent.sample`: `sample` where `sample_actions` passes all to it."""
        function = type(self).sample_actions
        parameters = inspect.signature(function).parameters.values()
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        is_of_program = function.__module__.partition(".")[0] != __name__.partition(".")[0]
        return self.sample_actions if is_of_program or not takes_any else self.sample

    def _without_option(self, names: Iterable[str]) -> UnknownOptionError:
        return UnknownOptionError(
            f"{type(self).__name__} has no option {', '.join(names)} for acting; predict gives the best actions, "
            "sample explores"
        )

    def _on_host(self, method: Callable[..., Any], obs: NDArray[Any], action_mask: NDArray[Any] | None = None) -> Any:
        """Return the result of a method for observations as arrays; None if only the framework can."""
        acting = self._acting_on_host(method, obs)
        return None if acting is None else acting(obs, action_mask)

    def _acting_on_host(self, method: Callable[..., Any], obs: NDArray[Any]) -> HostActing | None:
        """Return a method for such observations in numpy, with the model's present layers; None if there is none."""
        framework = self.FRAMEWORK
        way_of = self._ways.get(getattr(method, "__func__", None))  # of the contract's method, unless it was replaced
        if framework is None or way_of is None or self._reduces or obs.ndim != 2 or obs.dtype.kind != "f":
            return None
        known = self.__dict__.setdefault("_host_acting", {})
        acting = known.get(method.__name__)
        if acting is None or not acting.is_of(self.model):
            way = way_of(self)
            if way is None or has_hooks(framework, self.model):
                return None
            try:
                acting = known[method.__name__] = HostActing(framework, self.model, way, obs)
            except Exception:  # any: of the model, which is run again and explained
                return None
        return acting  # type: ignore[no-any-return]  # of a dictionary in the instance's own

    def _descend(self, optimizer: Any, loss: Callable[..., Any], *batch: Any, lr: Any = None) -> tuple[Any, Any]:
        """Take one step of an optimizer down the gradient of `loss(*batch)`, and return its results, detached."""
        value, figures = optimizer.descend(loss, *batch, lr=lr)
        if not figures.keys() <= self.NAMED:
            self._add_figures(figures)
        return value, figures

    def _add_figures(self, figures: Mapping[str, Any]) -> None:
        """Add up the scalars that are not the algorithm's own, where they are: no update waits for the device."""
        if self._is_recording():
            return
        kept = self._figures = self._figures or _MetricSums()
        for name, figure in figures.items():
            if name not in self.NAMED and not len(figure.shape):
                kept.sums[name] = kept.sums.get(name, 0.0) + figure
                kept.counts[name] += 1

    def _checked_batch(self, batch: Any) -> Any:
        """Return a batch of arrays or tensors that a user gave, with columns that fit this algorithm.

        Numbers of tensors are not looked at: the host would wait for the device.
        """
        action = batch.action
        if type(action) is not np.ndarray and holds_tensors(action):
            return self._with_choices(self._fitted(batch).map(self._tensor))
        return self.check_batch(batch)

    def _with_choices(self, batch: Any) -> Any:
        """Return a batch of tensors with discrete actions as losses take them."""
        if not self.CHOOSES:
            return batch
        choices = self._choices_of(batch.action)
        return batch if choices is batch.action else batch.made(**{**batch.__dict__, "action": choices})

    def _fitted(self, batch: Any) -> Any:
        """Return a batch of arrays or tensors with all columns that losses need; at the first one, look at the model.

        Raises:
            ValueError: A column is missing, or has another shape than it should have.
            ModelContractError: A method of the model returns something else than it should.
        """
        return batch

    def _given_or_adam(
        self,
        given: Any,
        lr: Any,
        *,
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
        part: Callable[[], Iterable[Any]] | None = None,
    ) -> Any:
        """Return the optimizer that was given, of `parl.optim` or of the framework, else Adam for `self.model`.

        `part` lists the parameters that it is for, where these are not all of the model.

        Raises:
            HyperparameterError: It is not an optimizer of this model, or the algorithm was to compile.
        """
        if given is None:
            return self._adam(self.model, lr=lr, eps=eps, max_grad_norm=max_grad_norm, part=part)
        if isinstance(given, Optimizer):
            return given
        if self._compiles:
            raise HyperparameterError(
                f"compile=True compiles steps of parl.optim, and optimizer= is a {type(given).__name__}: leave out one"
            )
        return self._adapted(given, max_grad_norm, None if part is None else part())

    def _optimizers_of_parts(
        self,
        given: Any,
        parts: Mapping[str, Callable[[], Iterable[Any]]],
        rates: Mapping[str, float],
        max_grad_norm: float | None = None,
    ) -> list[Any]:
        """Return the optimizer of each part of the model, in their order: the given one, else Adam.

        Args:
            given: None, or optimizers of `parl.optim` or of the framework by part.
            parts: Functions that list the parameters, by part.
            rates: Learning rates of Adam, by part.
            max_grad_norm: Limit of each part's gradients' norm.

        Raises:
            HyperparameterError: `given` is no such dictionary, or an optimizer does not fit its part.
        """
        found = {} if given is None else given
        if not isinstance(found, Mapping) or not set(found) <= set(parts):
            wanted = ", ".join(f"{part!r}: ..." for part in parts)
            raise HyperparameterError(
                f"{type(self).__name__} updates its networks apart, so optimizer= takes a dictionary, "
                f"{{{wanted}}}, of which any may be left out; got {given!r}"
            )
        return [
            self._given_or_adam(found.get(part), rates[part], max_grad_norm=max_grad_norm, part=listed)
            for part, listed in parts.items()
        ]

    def _learns_with_memory(self, model: Model) -> bool:
        """Return whether the model has a memory.

        Raises:
            HyperparameterError: It has, and this algorithm does not learn so.
        """
        if not has_memory(model):
            return False
        name = f"{type(model).__name__} has a memory (it defines `remember`)"
        if not self.LEARNS_SEQUENCES:
            raise HyperparameterError(
                f"{name}, and {type(self).__name__} learns from single steps; PPO, A2C, A3C, IMPALA, DQN, "
                "DDQN, QMIX, VDN, MAPPO, IPPO and COMA learn with memories; set LEARNS_SEQUENCES = True in an "
                "algorithm of your own that does"
            )
        if self._compiles:
            raise HyperparameterError(f"{name}, and compile=True compiles losses of single steps: leave it out")
        return True

    def _features(self, obs: Any, state: Any, begins: Any, *, model: Any = None) -> Any:
        """Return the inputs of a model's heads: observations, or a memory's outputs for sequences of them.

        Args:
            obs: Tensors `[rows * T, ...]`, or a dictionary of arrays.
            state: The state before each sequence, `[rows, ...]` by name.
            begins: `[rows * T]`, not zero where a step is the first of its episode; None: none is.
            model: The model whose memory is used; default `self.model`.

        Raises:
            ValueError: The model has a memory, and there is no state.
        """
        if not self.remembers:
            return obs
        if state is None:
            raise ValueError(
                f"{type(self.model).__name__} has a memory, so a batch needs state=, the state before the first "
                "step of each of its sequences, and begins= (docs/how-to/memory.md)"
            )
        return (model or self.model).remember(obs, state, begins)[0]

    def _initial_state(self, rows: int) -> dict[str, Any] | None:
        """Return the tensors of a memory before the first step of `rows` episodes; None without a memory."""
        if not self.remembers:
            return None
        return {name: self._tensor(array) for name, array in self.model.initial_state(rows).items()}

    def _main_model(self) -> Any:
        model = getattr(self, "model", None)
        if model is None:
            raise ModelContractError(f"{type(self).__name__} has no `self.model`; set it in __init__")
        return model

    def _models(self) -> dict[str, Any]:
        return {name: value for name, value in attributes(self) if isinstance(value, Model)}

    def _models_that_older_files_lack(self) -> set[str]:
        """Return the names of models in collections of other classes, which were not looked into."""
        return set(self._models()) - {name for name, _ in attributes(self, of_any_class=False)}

    def _attached(self) -> dict[str, tuple[Any, StateAccessor]]:
        """Return the other objects with a state, by attribute; parts of models belong to their models."""
        own: set[int] = set()
        for model in self._models().values():
            own.update(map(id, model._all_layers().values()))
            own.update(map(id, model._named_parameters().values()))
        found: dict[str, tuple[Any, StateAccessor]] = {}
        for name, value in (*attributes(self), *self._generators_of_models().items()):
            if id(value) in own or isinstance(value, (Model, Optimizer)):
                continue
            accessor = self._accessor(value)
            if accessor is not None:
                own.add(id(value))  # one that two attributes share counts once
                found[name] = value, accessor
        return found

    def _parts_of_models(self) -> Iterator[tuple[str, object, Mapping[str, Any]]]:
        """Yield the layers of models with the beginning of their attributes' names, and those that no weights hold."""
        seen: set[int] = set()
        for owner, model in self._models().items():
            for path, layer in model._all_layers().items():
                if id(layer) not in seen:
                    seen.add(id(layer))
                    yield f"{owner}.{path}." if path else f"{owner}.", layer, model._beside_weights(layer)

    def _beside_weights(self) -> dict[str, Any]:
        """Return the attributes of the layers of models that are in no saved weights, by name."""
        return {place + name: value for place, _, held in self._parts_of_models() for name, value in held.items()}

    def _generators_of_models(self) -> dict[str, Any]:
        """Return the random generators among the attributes of the layers of models, by name."""
        return {name: value for name, value in self._beside_weights().items() if self._is_generator(value)}

    def _note_values(self) -> None:
        """Record the numbers, arrays and tensors in attributes before learning changes some of them."""
        if "_first_values" not in self.__dict__:
            self._first_values = {
                name: value.copied if value.owner is self else first_value(value.copied)
                for name, value in self._present_values().items()
            }

    def _present_values(self) -> dict[str, _Value]:
        """Return the numbers, arrays and tensors among the attributes of the algorithm and of its models' layers."""
        found: dict[str, _Value] = {}
        own = "", self, dict(vars(self)), self._value_in
        for place, owner, given, to_array in (
            own,
            *((*part, self._value_in_layer) for part in self._parts_of_models()),
        ):
            for name, copied in values_of(owner, to_array, given).items():
                found[place + name] = _Value(owner, name, given[name], copied)
        return found

    def _value_in(self, held: Any) -> NDArray[Any] | None:
        """Return the values of a tensor that is not trained, None of anything else."""
        array = self._copied(held)
        return None if array is None or self._accessor(held) is not None else array

    def _value_in_layer(self, held: Any) -> NDArray[Any] | None:
        """Return the values of a tensor that is not the result of a pass with gradients, None of anything else."""
        return self._copied(held) if getattr(held, "is_leaf", False) else None

    def _changed_values(self) -> dict[str, _Value]:
        """Return the attributes whose numbers, arrays or tensors are not those that they were at first."""
        if "_first_values" not in self.__dict__:
            return {}
        present = self._present_values()
        changed = changed_values({name: value.copied for name, value in present.items()}, self._first_values)
        return {name: present[name] for name in changed if name not in self.COUNTERS}

    def _load_values(self, state: AlgorithmState) -> None:
        """Set the attributes that had changed when a state was taken, and set those back that had not."""
        saved = {name: one["value"] for name, one in state.others.items() if "value" in one}
        first = self.__dict__.get("_first_values", {})
        for name, changed in self._changed_values().items():
            if name in first and name not in saved:
                if isinstance(first[name], Digest):
                    logger.warning(
                        "%s.%s keeps its present value: its first one is not kept", type(self).__name__, name
                    )
                    continue
                is_tensor = _is_tensor(changed.held) and first[name] is not None
                value = self._exact_tensor(first[name], changed.held) if is_tensor else first[name]
                self._set(changed.owner, changed.attribute, value)
        owners: dict[str, Any] = {"": self, **{place: owner for place, owner, _ in self._parts_of_models()}}
        for name, tree in saved.items():
            place, dot, attribute = name.rpartition(".")
            owner = owners.get(place + dot)
            now = getattr(owner, attribute, None)
            if owner is None or (not _is_tensor(now) and self._accessor(now) is not None):
                logger.warning("%s has no %s, whose saved value stays unused", type(self).__name__, name)
                continue
            like = now if _is_tensor(now) else self._tensor(np.zeros(1, np.float32))
            self._set(owner, attribute, decode(tree, state.arrays, partial(self._exact_tensor, like=like)))

    def _set(self, owner: Any, attribute: str, value: Any) -> None:
        """Set an attribute to a value: in place where it can be, because another attribute may be the same object."""
        now = getattr(owner, attribute, None)
        if isinstance(now, np.ndarray) and isinstance(value, np.ndarray):
            if now.shape == value.shape and now.dtype == value.dtype and now.flags.writeable:
                now[...] = value
                return
        elif _is_tensor(now) and _is_tensor(value) and self._overwrite(now, value):
            return
        setattr(owner, attribute, value.copy() if isinstance(value, np.ndarray) else value)

    def _model_restorer(self) -> Callable[[], None]:
        """Return a function that sets buffers, plain values and generators of models as they are now."""
        accessors = [self._accessor(generator) for generator in self._generators_of_models().values()]
        generators = [(accessor, accessor.get()) for accessor in accessors if accessor is not None]
        values = {name: value for name, value in self._present_values().items() if "." in name}
        buffers = [
            _Value(owner, attribute, tensor, copied)
            for model in self._models().values()
            for owner, attribute, tensor in model._buffers_in_weights()
            if (copied := self._copied(tensor)) is not None
        ]

        def put_back() -> None:
            for accessor, state in generators:
                accessor.set(state)
            present = self._beside_weights()
            plain = [value for name, value in values.items() if name in present and _is_plain(present[name])]
            for value in (*plain, *buffers):
                if getattr(value.owner, value.attribute, None) is not value.held:
                    setattr(value.owner, value.attribute, value.held)
                if isinstance(value.held, np.ndarray):
                    if changed_values({"": value.held}, {"": value.copied}):
                        value.held[...] = value.copied
                elif _is_tensor(value.held) and changed_values({"": self._copied(value.held)}, {"": value.copied}):
                    self._set(value.owner, value.attribute, self._exact_tensor(value.copied, value.held))

        return put_back

    def _load_others(self, state: AlgorithmState) -> None:
        attached = self._attached()
        for name, (value, accessor) in attached.items():
            saved = state.others.get(name)
            framework = type(value).__module__.partition(".")[0]
            if saved is None or "state" not in saved or saved["class"].partition(".")[0] != framework:
                logger.warning(
                    "%s.%s keeps its initial state: the restored state has %s",
                    type(self).__name__,
                    name,
                    "no state of it" if saved is None or "state" not in saved else f"that of a {saved['class']}",
                )
                continue
            try:
                accessor.set(decode(saved["state"], state.arrays, self._exact_tensor))
            except Exception as error:  # any: the framework's own
                raise CheckpointError(
                    f"{type(self).__name__}.{name}, a {type(value).__name__}, does not take the state that was saved "
                    f"of a {saved['class']}: {error}"
                ) from error
        values = {name for name, one in state.others.items() if "value" in one}
        for name in sorted(set(state.others) - set(attached) - values):
            logger.warning("%s has no %s, whose saved state stays unused", type(self).__name__, name)

    def _new_target(self) -> Any:
        """Return a copy of `self.model` for targets."""
        copied = copy.deepcopy(self.model)
        return _as_target(copied) if "target_model" in self.TARGETS else copied

    def _settle_targets(self) -> None:
        """Put targets into evaluation mode, wherever they come from."""
        for name, model in self._models().items():
            if name in self.TARGETS:
                _as_target(model)

    def _layers_by_mode(self) -> list[Any]:
        """Return the layers of all models that compute something else in training mode, such as dropout."""
        return [layer for model in self._models().values() for layer in model.layers_by_mode()]

    def _load(self, parts: Mapping[str, Weights]) -> None:
        models = self._models()
        restored = {id(model) for owner, model in models.items() if owner in parts}
        for owner, model in models.items():
            if owner in parts:
                model.set_weights(parts[owner], portable=True)
            elif id(model) not in restored:  # else another attribute, with the same model, had weights
                logger.warning("%s.%s keeps its weights: the restored state has none", type(self).__name__, owner)
        for owner, optimizer in self._optimizers().items():
            optimizer.set_state(parts.get(owner, {}))

    def _settle_copies(self) -> None:
        """Give models that have not run yet, such as targets, the shapes of one of their class that has."""
        models = list(self._models().values())
        for waiting in [model for model in models if model._waiting()]:
            for model in models:
                if type(model) is type(waiting) and waiting._begins_as(model):
                    waiting.take_shapes_of(model)

    def _optimizers(self) -> dict[str, Optimizer]:
        return {name: value for name, value in attributes(self) if isinstance(value, Optimizer)}

    def _require_pairs(self, pairs: Mapping[str, str], obs: Any, action: NDArray[Any]) -> None:
        """Reject a model of which one of the methods returns something else than a pair.

        Args:
            pairs: The required result of each method, in words; methods other than `policy` also take the action.
            obs: The observations of a batch, `[batch, ...]`, or a dictionary of arrays; the first row is tried.
            action: `[batch, act_dim]`.

        Raises:
            ModelContractError: The output is invalid; the message names the method, its output and the required one.
        """
        with self._trying_out(obs, action) as (rows, actions, count):
            for method, wanted in pairs.items():
                try:
                    found = getattr(self.model, method)(*((rows,) if method == "policy" else (rows, actions)))
                except Exception:  # any exception: the next update raises it again with an explanation
                    return
                if not hasattr(found, "__len__") or len(found) != 2:
                    several = isinstance(found, tuple | list)
                    returned = f"{len(found)} parts" if several else f"one {type(found).__name__}"
                    shape = f" of shape {list(found.shape)} for {count} rows" if hasattr(found, "shape") else ""
                    raise self._wrong_return(method, wanted, f"{returned}{shape}")
                if method == "policy":
                    continue
                first, second = (list(getattr(part, "shape", ())) for part in found)
                if first != second or first not in ([count], [count, 1]):
                    raise self._wrong_return(
                        method, wanted, f"{first} and {second} for {count} rows: both have to be [batch] or [batch, 1]"
                    )

    def _require_gaussians(self, method: str, obs: Any, *, after: int = 0) -> None:
        """Reject a policy that does not return means and standard deviations above 0: it has no log-probabilities.

        It is looked at until it was one that does.

        Args:
            method: The name of a method of the model, such as `policy`; of the results of `policy_and_value` the first
                one counts.
            obs: The observations of a batch, `[batch, ...]` or a dictionary of such; its first rows are tried, and
                signs may differ.
            after: The number of the policy's outputs that come before the mean.

        Raises:
            ModelContractError: The output is invalid; the message names the method, its output and the required one.
        """
        if self._has_gaussians:
            return
        with self._trying_out(obs, np.zeros(1), most=_MOST_TRIED) as (rows, _, count):
            try:
                found = self._run(getattr(self.model, method), rows)
            except Exception:  # any exception: the next update raises it again with an explanation
                return
        if method == "policy_and_value":
            found = found[0]
        wanted = f"({'logits, ' * after}mean, std) of a Gaussian, with std above 0,"
        if not isinstance(found, tuple | list) or len(found) < after + 2:
            shape = f" of shape {list(found.shape)} for {count} rows" if hasattr(found, "shape") else ""
            raise self._wrong_return(method, wanted, f"{_named(found)}{shape}")
        smallest = np.min(self._array(found[after + 1]))
        if smallest <= 0.0:
            raise self._wrong_return(
                method, wanted, f"a std of {smallest:.4g}: if the network gives its logarithm, return its exponential"
            )
        self._has_gaussians = True

    def _require_logits(self, method: str, obs: Any) -> None:
        """Reject a policy that does not return a tensor, such as one that returns a distribution.

        Args:
            method: The name of a method of the model, such as `policy`; of the results of `policy_and_value` the first
                one counts.
            obs: The observations of a batch, `[batch, ...]`, or a dictionary of arrays; the first row is tried.

        Raises:
            ModelContractError: The output is invalid; the message names the method, its output and the required one.
        """
        with self._trying_out(obs, np.zeros(1)) as (rows, _, _):
            try:
                found = self._run(getattr(self.model, method), rows)
                found = found[0] if method == "policy_and_value" else found
            except Exception:  # any exception: the next update raises it again with an explanation
                return
        if not hasattr(found, "shape"):
            raise self._wrong_return(method, "logits, a tensor [batch, act_dim],", _named(found))

    def _shape_returned(
        self, method: str, wanted: str, obs: Any, action: NDArray[Any] | None = None
    ) -> tuple[int, ...] | None:
        """Return the shape of the result of a model's method for a row; None if it raises.

        Args:
            method: The name of a method that takes observations, and actions where there are some.
            wanted: The required result, in words that end in a shape, `[batch, ...]`.
            obs: The observations of a batch, `[batch, ...]`, or a dictionary of arrays; the first row is tried.
            action: `[batch, act_dim]`.

        Raises:
            ModelContractError: It returns something else.
        """
        with self._trying_out(obs, np.zeros(1) if action is None else action) as (rows, actions, count):
            call = getattr(self.model, method)
            try:
                found = self._run(call, rows) if action is None else call(rows, actions)
            except Exception:  # any exception: the next update raises it again with an explanation
                return None
        shape = tuple(found.shape) if hasattr(found, "shape") else ()
        if len(shape) == 1 + wanted.count(",") and shape[0] == count:
            return shape[1:]
        raise self._other_shape(method, wanted, found, count)

    def _other_shape(self, method: str, wanted: str, found: Any, rows: int) -> ModelContractError:
        """Return the error for a result of a model's method whose shape is not the required one."""
        shape = list(getattr(found, "shape", ()))
        return self._wrong_return(method, wanted, f"{shape} for {rows} rows" if shape else _named(found))

    def _wrong_return(self, method: str, wanted: str, returned: str) -> ModelContractError:
        return ModelContractError(
            f"{type(self.model).__name__}.{method} has to return {wanted} for {type(self).__name__}; it returned "
            f"{returned}"
        )

    def _output_size(self, method: str, obs: Any, dimensions: int = 2) -> int | None:
        """Return the number of columns that a method of the model returns for an observation.

        Args:
            method: The name of a method that takes observations alone; where it returns several arrays, the first one
                counts.
            obs: The observations of a batch, `[batch, ...]`, or a dictionary of arrays; the first row is tried.
            dimensions: The number of dimensions of the result, that of the batch included.

        Returns:
            The size of the last dimension; None where the method fails or returns something else, which the update,
            which is next, explains.
        """
        with self._trying_out(obs, np.zeros(1)) as (rows, _, _), suppress(Exception):  # any exception, as above
            found = self._run(getattr(self.model, method), rows)
            shape = tuple((found[0] if isinstance(found, tuple) else found).shape)
            return int(shape[-1]) if len(shape) == dimensions else None
        return None

    def _require_act_dim(self, method: str, obs: Any, action: Any) -> None:
        """Reject actions with another number of columns than a method of the model returns.

        Args:
            method: The name of a method that takes observations alone; where it returns several arrays, the first one
                counts.
            obs: The observations of a batch, `[batch, ...]`, or a dictionary of arrays; the first row is tried.
            action: `[batch, act_dim]`.

        Raises:
            ValueError: It has both shapes.
        """
        width = self._output_size(method, obs)
        if width not in (None, action.shape[-1]):
            raise ValueError(
                f"action must have shape [n, {width}], as {type(self.model).__name__}.{method} chooses, got "
                f"{list(action.shape)}: give the model as many outputs as an action has numbers, or the actions of its "
                "own environment"
            )

    @contextmanager
    def _trying_out(self, obs: Any, action: NDArray[Any], most: int | None = None) -> Iterator[tuple[Any, Any, int]]:
        """Provide a context in which the model can be called: nothing is learned, counted or drawn by it.

        Args:
            obs: The observations of a batch, `[batch, ...]`, or a dictionary of arrays; the first row is tried.
            action: `[batch, act_dim]`.
            most: The largest number of first rows of the observations that are tried instead.

        Yields:
            (observations, actions, rows): tensors of so many rows, equal ones without `most`.
        """
        # More than two equal rows, so that the result of a single critic cannot be unpacked as a pair.
        rows = 3 if most is None else min(most, rows_of(obs))

        def repeated(array: Any) -> Any:
            return self._tensor(array[[0] * rows])

        def first(array: Any) -> Any:
            return self._tensor(array[:rows])

        put_back = self._model_restorer()
        switched = [layer for layer in self._layers_by_mode() if layer.training]
        for layer in switched:
            layer.training = False
        try:
            with self._no_gradients(), self._drawing_from(0):
                tensors = map_nested(repeated if most is None else first, obs)
                if self.remembers:
                    tensors = self.model.remember(tensors, self._initial_state(rows))[0]
                yield tensors, repeated(action), rows
        finally:
            for layer in switched:
                layer.training = True
            put_back()


def _is_tensor(value: Any) -> bool:
    return not isinstance(value, Mapping) and holds_tensors(value)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, np.generic, np.ndarray)) or _is_tensor(value)


def _named(found: Any) -> str:
    return "None" if found is None else f"a {type(found).__name__}"


def _as_target(model: Any) -> Any:
    """Put a model into evaluation mode except for its noisy layers, of which targets draw noise, too; return it."""
    model.eval()
    noisy: list[Any] = [layer for layer in model._all_layers().values() if isinstance(layer, NoisyFc)]
    for layer in noisy:
        layer.training = True
    return model


def _split(arrays: Weights) -> dict[str, Weights]:
    ordered = sorted(arrays.items(), key=lambda item: item[0].partition("/")[0])
    return {
        owner: {name.partition("/")[2]: array for name, array in group}
        for owner, group in itertools.groupby(ordered, key=lambda item: item[0].partition("/")[0])
    }
