"""The contracts of algorithms that imitate logged data: behaviour cloning and the Decision Transformer."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from parl_core.algorithm import Optimizer
from parl_core.checks import (
    check_int,
    check_limit,
    check_non_negative,
    check_positive,
    first_method,
)
from parl_core.contracts._base import CountingUpdates, Scheduled, check_schedule
from parl_core.contracts.actions import ActionKind, mask_of
from parl_core.contracts.batches import Transitions, Windows, learns_from
from parl_core.contracts.continuous import unit_box
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Model
from parl_core.offline import OfflineDataset, SequenceSampler

__all__ = ["BC", "DecisionTransformer"]


class BC(CountingUpdates):
    """Behaviour cloning: supervised learning of the actions in logged data (Pomerleau 1991, section 2).

        loss = -mean(log pi(action | obs))

    One Adam step per call. It does not use rewards, so it is the baseline for every algorithm that learns from the same
    log. Deviations from the paper: none known; its network regresses one steering angle, ours is a distribution.

    The model's `policy(obs)` returns logits `[batch, act_dim]`, with `nvec` those of all parts side by side
    `[batch, sum(nvec)]`, or with `continuous_action` the pair (mean, std) of a Gaussian over actions in [-1, 1], each
    broadcastable to `[batch, act_dim]`.

    Args:
        model: The policy.
        lr: Learning rate of Adam, above 0, or a schedule of the updates taken; default 1e-3 (Kingma & Ba 2015).
        continuous_action: Whether the policy is a Gaussian; default: that of the model (`action_kind`), else False.
        nvec: The number of choices of each part of a multi-discrete action; None if actions are not multi-discrete.
        optimizer: One of `parl.optim` or the framework, made from this model's parameters; default Adam. It keeps its
            own learning rate unless one is given here or in a call.
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range.
        ModelContractError: The model has no `policy`.
    """

    ACTS_IN_UNIT_BOX: ClassVar[bool] = True
    FIGURES: ClassVar[tuple[str, ...]] = ("loss",)

    optimizer: Optimizer

    _outputs: int | None = None

    def __init__(
        self,
        model: Model,
        lr: Scheduled | None = None,
        *,
        continuous_action: bool = False,
        nvec: Sequence[int] | None = None,
        optimizer: Any = None,
        device: str = "auto",
        compile: bool = False,
    ) -> None:
        self.lr = check_schedule("lr", 1e-3 if lr is None else lr, check_positive)
        self.actions = ActionKind.of(continuous_action, nvec, model)
        first_method(model, ("policy",), "BC")
        super().__init__(model, device=device, compile=compile)
        self.optimizer = self._given_or_adam(optimizer, self._at_start(self.lr))
        self.lr = self._own_rate(optimizer, lr, self.lr)

    def predict(self, obs: Any, action_mask: Any = None) -> Any:
        """Return the most likely actions: int64 `[batch]` or `[batch, parts]`, or means `[batch, act_dim]`."""
        with self._no_gradients():
            return self._clipped_action(self._policy(obs, action_mask).mode())

    def sample(self, obs: Any, action_mask: Any = None) -> Any:
        """Draw actions of the policy, shaped as those of `predict`."""
        with self._no_gradients():
            return self._clipped_action(self._policy(obs, action_mask).sample())

    @learns_from(Transitions, settings=("learning_rate",))
    def learn(self, batch: Transitions, learning_rate: float | None = None) -> Any:
        """Take one step: `learn(batch)`, or the columns of transitions one by one.

        Args:
            batch: Tensors; only observations and actions are used.
            learning_rate: The learning rate of this step; default: the constructor's.

        Returns:
            The loss, a detached scalar.
        """
        loss, _ = self._descend(self.optimizer, self.loss, batch, lr=self._now("lr", self.lr, learning_rate))
        self._call_after_update(self._count_update)
        return loss

    def loss(self, batch: Transitions) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a batch of tensors, and figures by name; a subclass adds its own to `super().loss`."""
        return -self._policy(batch.obs).logp(batch.action).mean(), {}

    def check_batch(self, batch: Transitions) -> Transitions:
        """Return a batch of arrays with valid actions, continuous ones in [-1, 1]."""
        if self._outputs is None and self.actions == ActionKind():
            self._outputs = self._output_size("policy", batch.obs)
        action = self.actions.column("action", batch.action, self._outputs)
        self._fitted(batch)
        if self.actions.continuous:
            unit_box("action", action[:, len(self.actions.nvec or ()) :])  # choices come before numbers
        return batch.made(**{**batch.__dict__, "action": action})

    def _fitted(self, batch: Transitions) -> Transitions:
        if self.actions.continuous and not self._has_gaussians:
            if self.actions.nvec is None:
                self._require_act_dim("policy", batch.obs, batch.action)
            self._require_gaussians("policy", batch.obs, after=int(self.actions.nvec is not None))
        return batch

    def _policy(self, obs: Any, mask: Any = None) -> Any:
        return self._distribution(self.model.policy(obs), self.actions, mask_of(obs, mask))

    def _clipped_action(self, action: Any) -> Any:
        if not self.actions.continuous:
            return action
        inside = action.clip(-1.0, 1.0)
        if self.actions.nvec is not None:  # choices come before numbers
            inside[:, : len(self.actions.nvec)] = action[:, : len(self.actions.nvec)]
        return inside


_WINDOW = ("obs", "action", "return_to_go", "timestep", "mask")


class DecisionTransformer(CountingUpdates):
    """Offline reinforcement learning as sequence modelling (Chen et al. 2021, arXiv:2106.01345, algorithm 1).

        loss = mean over steps that are not padding, and action dimensions, of (predicted action - action)**2

    One step of Adam with decoupled weight decay (Loshchilov & Hutter 2019), gradients clipped to a norm of 0.25, the
    learning rate growing linearly over the first updates (paper, tables 8 and 9).

    The model's `forward(obs, action, return_to_go, timestep, mask)` returns predicted actions `[batch, K, act_dim]`,
    each from what precedes the action; `parl_torch.transformer.TrajectoryTransformer` is one. If it has an attribute
    `max_timestep`, longer episodes raise an error.

    Args:
        model: The sequence model.
        learning_rate: The learning rate after the warm-up, above 0, or a schedule of the updates taken, which the
            warm-up scales; default 1e-4 (paper, table 9).
        warmup_steps: Number of updates of the warm-up, at least 1; default 10 000 (paper, table 9).
        weight_decay: The weight decay, at least 0; default 1e-4 (paper, table 9).
        context: Steps K of a window; default 20 (paper, table 9).
        return_scale: The number by which returns-to-go are divided; 1000 for most MuJoCo tasks (paper's code).
        max_grad_norm: Limit of the gradients' global norm, `math.inf` for none; default 0.25 (paper, table 9).
        device: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range.
        ModelContractError: The model has no `forward`, or is one of PARL 2.x.
    """

    FIGURES: ClassVar[tuple[str, ...]] = ("loss",)
    ACTS_IN_UNIT_BOX: ClassVar[bool] = True
    NEEDS_HISTORY: ClassVar[bool] = True

    optimizer: Optimizer

    def __init__(
        self,
        model: Model,
        learning_rate: Scheduled = 1e-4,
        warmup_steps: int = 10_000,
        weight_decay: float = 1e-4,
        *,
        context: int = 20,
        return_scale: float = 1.0,
        max_grad_norm: float = 0.25,
        device: str = "auto",
    ) -> None:
        self.learning_rate = check_schedule("learning_rate", learning_rate, check_positive)
        self.warmup_steps = check_int("warmup_steps", warmup_steps)
        self.weight_decay = check_non_negative("weight_decay", weight_decay)
        self.context = check_int("context", context)
        self.return_scale = check_positive("return_scale", return_scale)
        first_method(model, ("forward",), type(self).__name__)
        if model.implements("get_action"):
            raise ModelContractError(
                f"{type(model).__name__} has get_action(), as models of PARL 2.x have: here "
                "forward(obs, action, return_to_go, timestep, mask) returns the predicted actions alone, learn and "
                "predict take these columns, and get_action() is not needed; or use the backend's TrajectoryTransformer"
            )
        super().__init__(model, device=device)
        limit = check_limit("max_grad_norm", max_grad_norm)
        self.optimizer = self._adam(self.model, lr=self._at_start(self.learning_rate), max_grad_norm=limit)
        self._sampler: tuple[OfflineDataset, SequenceSampler] | None = None

    def predict(self, obs: Any, action: Any, return_to_go: Any, timestep: Any, mask: Any) -> Any:
        """Return the action of each window's last step, `[batch, act_dim]`; arguments as in `learn`."""
        with self._no_gradients():
            return self.model(obs, action, return_to_go, timestep, mask)[:, -1]

    @learns_from(Windows, keywords=("learning_rate",))
    def learn(self, batch: Windows, *, learning_rate: float | None = None) -> Any:
        """Take one step: `learn(batch)`, or its columns one by one.

        Args:
            batch: Tensors.
            learning_rate: The learning rate of this step; default: the constructor's, with its warm-up.

        Returns:
            The loss, a detached scalar.
        """
        loss = self._step(batch, self._rate(learning_rate))
        self._call_after_update(self._count_update)
        return loss

    def loss(self, batch: Windows) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a batch of tensors, and figures by name; a subclass adds its own to `super().loss`."""
        raise NotImplementedError

    _step: Callable[..., Any]
    """Backend hook: one step with weight decay, of a batch and a learning rate; returns the loss, detached."""

    def draw_batch(self, dataset: OfflineDataset, n: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """Draw `n` windows of a dataset: the arguments of `learn`, by name.

        Raises:
            HyperparameterError: The actions are not vectors, or an episode is longer than the model's `max_timestep`.
        """
        return vars(self._windows(dataset).draw(n, rng))

    def whole_log(self, dataset: OfflineDataset) -> dict[str, NDArray[Any]]:
        """Return the columns of one window over all steps, for a check; errors as in `draw_batch`."""
        self._windows(dataset)
        n = len(dataset)
        columns = {"obs": dataset.obs, "action": dataset.action, "return_to_go": dataset.reward[:, None]}
        columns |= {"timestep": np.zeros(n, np.int64), "mask": np.ones(n, np.bool_)}
        return {name: column[None] for name, column in columns.items()}

    def _windows(self, dataset: OfflineDataset) -> SequenceSampler:
        if self._sampler is None or self._sampler[0] is not dataset:
            self.check_length(max(stop - start for start, stop in dataset.episodes), dataset.source)
            self._sampler = dataset, SequenceSampler(dataset, self.context, self.return_scale)
        return self._sampler[1]

    def check_length(self, steps: int, source: str) -> None:
        """Reject episodes that are longer than the model supports.

        Args:
            steps: Number of steps of the longest episode.
            source: The origin of the setting, for the message.

        Raises:
            HyperparameterError: The model has a `max_timestep` below `steps`.
        """
        limit = getattr(self.model, "max_timestep", None)
        if limit is not None and steps > limit:
            raise HyperparameterError(
                f"{source} has an episode of {steps} steps, the model was made for at most max_timestep={limit}: make "
                "it with a larger max_timestep, or cut the episodes"
            )

    def check_batch(self, batch: Windows) -> Windows:
        """Return a batch of arrays with consistent windows."""
        columns = {name: np.asarray(column) for name, column in batch.named().items() if name in _WINDOW}
        name = f"{type(self).__name__}.learn"
        for key in ("obs", "action", "return_to_go"):
            if columns[key].dtype.kind not in "fiub":
                raise ValueError(f"{key} must hold numbers, got dtype {columns[key].dtype}")
        if len({column.shape[:2] for column in columns.values()}) > 1:
            shapes = ", ".join(f"{key} {column.shape}" for key, column in columns.items())
            raise ValueError(f"{name} needs windows [batch, K, ...] of the same K, got {shapes}")
        if columns["timestep"].dtype.kind not in "iu":
            raise ValueError(f"timestep must hold whole numbers, got dtype {columns['timestep'].dtype}")
        if columns["timestep"].min() < 0:
            raise ValueError(f"timestep must be at least 0, got {columns['timestep'].min()}")
        self.check_length(int(columns["timestep"].max()) + 1, name)
        if not ((columns["mask"] == 0) | (columns["mask"] == 1)).all():
            raise ValueError("mask must be 1 for a step and 0 for padding, got other numbers")
        if not columns["mask"].any():
            raise ValueError("mask has no step at all: every window is padding")
        width = columns["action"].shape[-1]
        if getattr(self.model, "act_dim", width) != width:
            raise ValueError(
                f"action must have {self.model.act_dim} numbers, the model's act_dim, got {width}: make it with "
                f"act_dim={width}, or use the actions of its own environment"
            )
        flat = unit_box("action", columns["action"].reshape(-1, columns["action"].shape[-1]))
        columns["action"] = flat.reshape(columns["action"].shape)
        if columns["mask"].dtype.kind == "b":
            columns["mask"] = columns["mask"].astype(np.float32)
        return batch.made(**{**batch.__dict__, **columns})

    def _rate(self, given: Any) -> Any:
        if given is not None:
            return given
        return self._value_before_update(lambda: self._now("learning_rate", self.learning_rate) * self._warmup_factor())

    def _warmup_factor(self) -> float:
        return min((self.updates + 1) / self.warmup_steps, 1.0)
