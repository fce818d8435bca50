"""The contracts of DQN and its special cases: DDQN, the learner of Ape-X, and Q-learning on logged data."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from parl_core._nested import rows_of
from parl_core._small_networks import of_method
from parl_core.algorithm import Optimizer
from parl_core.checks import check_fraction, check_int, check_limit, check_positive, first_method
from parl_core.contracts._base import CountingUpdates, Scheduled, check_schedule, merge
from parl_core.contracts.actions import check_mask, mask_of
from parl_core.contracts.batches import Sequences, Transitions, actions_column, learns_from
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Model

__all__ = ["DDQN", "DQN", "ApeX", "DDQNSettings", "DQNSettings", "OfflineQ"]


_INT64 = np.dtype(np.int64)

SyncEvery = int | Literal["loop"] | None


class DQNSettings(TypedDict, total=False):
    """Keywords of `DQN` that have the same default in its variants."""

    act_dim: int | None
    sync_every: SyncEvery
    tau: float | None
    optimizer: Any
    hyperparas: Mapping[str, Any] | None
    device: str
    compile: bool
    compute_dtype: str | None


class DDQNSettings(DQNSettings, total=False):
    """Keywords of `DDQN`."""

    huber: float | None
    eps: float
    max_grad_norm: float | None
    value_rescaling: float | None


def _rescaled(values: Any, slope: float) -> Any:
    """Return h(x) = sign(x)(sqrt(|x| + 1) - 1) + slope * x of a tensor."""
    return values.sign() * ((values.abs() + 1.0).sqrt() - 1.0) + slope * values


def _restored(values: Any, slope: float) -> Any:
    """Return the argument of `_rescaled` from its result."""
    beyond = values.abs() + (1.0 + slope)
    # (sqrt(1 + 4 e x) - 1) / 2 e, without cancellation
    root = 2.0 * beyond / ((beyond * (4.0 * slope) + 1.0).sqrt() + 1.0)
    return values.sign() * (root.square() - 1.0)


class DQN(CountingUpdates):
    """Deep Q-learning for discrete actions (Mnih et al. 2015, algorithm 1).

        target = reward + discount * (1 - terminal) * max_a Q_target(next_obs, a)
        loss = mean(weights * (Q(obs, action) - target)**2)

    One Adam step per call. Deviations from the paper, as in PARL: Adam instead of RMSProp, and the squared error (the
    paper clips its derivative, as `huber=1.0` does). Variants: `double=True` picks the action by the trained network
    (van Hasselt et al. 2016, equation 4); dueling is the model's choice (Wang et al. 2016); n-step returns pass
    `discount = gamma**n` for each sample; prioritised replay passes importance `weights` and gets `td_error` back
    (Schaul et al. 2016). Where not every action is always possible, `action_mask` to `predict` and `sample` and
    `next_action_mask` to `learn` (or dictionaries of observations with an entry `action_mask`) exclude the others from
    choices and bootstrapping.

    With a model that has a memory, `learn` takes `Sequences`, such as `parl_core.replay.SequenceReplayMemory` draws:
    R2D2 (Kapturowski et al. 2019) in one process, with uniform draws.

    The model's `value(obs)`, or `forward(obs)` where there is no `value`, returns Q values `[batch, act_dim]`.

    Args:
        model: The Q network; a target network is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99 (Mnih et al.).
        lr: Learning rate of Adam, above 0, or a schedule of the updates taken; default 1e-4 (Stable-Baselines3's for
            Atari).
        act_dim: Number of actions; only checked against the model's output.
        double: Whether to use double Q-learning.
        sync_every: Updates between two moves of the target network, in `learn` (paper 10,000). By default,
            `"loop"`, `train_off_policy` and `train_offline` move it a little after each update, by a `tau` of 0.005
            (Lillicrap et al. 2015, arXiv:1509.02971, section 3; the number is from Fujimoto et al. 2018), until the
            program calls `sync_target()`; `learn` alone never moves it, as in PARL. None: only `sync_target()` moves
            it.
        tau: The step size of each of these moves, in (0, 1]; default 1, a copy. Given without
            `sync_every`, the target moves after every update.
        huber: Error from which the loss grows linearly, above 0 (paper 1.0); by default the error is squared.
        eps: Epsilon of Adam, above 0; default 1e-8 (Kingma & Ba 2015). The PARL 1.x manual and Atari recipes have 1e-3
            and 1.5e-4.
        max_grad_norm: Limit of the gradients' global norm, above 0 (Stable-Baselines3: 10); default: no limit, as with
            `math.inf`.
        value_rescaling: The factor of the linear term, above 0, for a model with a memory, which then learns
            h(x) = sign(x)(sqrt(|x| + 1) - 1) + value_rescaling * x of values x (Pohlen et al. 2018, arXiv:1805.11593,
            section 3.2; R2D2 has 1e-3); by default it learns the values.
        optimizer: One of `parl.optim` or the framework, made from this model's parameters; default Adam. It keeps its
            own learning rate unless one is given here or in a call.
        hyperparas: PARL 1.x's dictionary of `act_dim`, `gamma` and `lr`.
        device, compile, compute_dtype: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range, unknown, or given twice.
        ModelContractError: The model implements neither `value` nor `forward`.
    """

    FIGURES: ClassVar[tuple[str, ...]] = ("loss",)
    NAMED: ClassVar[frozenset[str]] = frozenset({"td_error"})
    DEFAULTS: ClassVar[Mapping[str, Any]] = {"act_dim": None, "gamma": 0.99, "lr": 1e-4}
    COUNTERS: ClassVar[tuple[str, ...]] = ("updates", "syncs")
    LATER_COUNTERS: ClassVar[tuple[str, ...]] = ("syncs",)
    CHOOSES: ClassVar[bool] = True
    LOOP_TAU: ClassVar[float] = 0.005
    """The default `tau` by which the loops move the target after each update."""

    LEARNS_SEQUENCES: ClassVar[bool] = True

    syncs: int = 0
    """Number of calls of `sync_target`."""

    METHODS: ClassVar[tuple[str, ...]] = ("value", "forward")
    """Names of the model's method, of which the first existing one is called."""

    target_model: Any
    optimizer: Optimizer

    _value_shape: str = "[batch, act_dim]"
    _outputs: int | None = None

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        lr: Scheduled | None = None,
        *,
        act_dim: int | None = None,
        double: bool = False,
        sync_every: SyncEvery = "loop",
        tau: float | None = None,
        huber: float | None = None,
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
        value_rescaling: float | None = None,
        optimizer: Any = None,
        hyperparas: Mapping[str, Any] | None = None,
        device: str = "auto",
        compile: bool = False,
        compute_dtype: str | None = None,
    ) -> None:
        name = type(self).__name__
        settings = merge(name, hyperparas, {"act_dim": act_dim, "gamma": gamma, "lr": lr}, self.DEFAULTS)
        self.gamma = check_fraction("gamma", settings["gamma"])
        self.lr = check_schedule("lr", settings["lr"], check_positive)
        self.act_dim = None if settings["act_dim"] is None else check_int("act_dim", settings["act_dim"])
        self.double = bool(double)
        self.tau = None if tau is None else check_fraction("tau", tau)
        if self.tau == 0.0:
            raise HyperparameterError("tau must be above 0, else the target never moves; a usual value is 0.005")
        self.sync_every: SyncEvery = sync_every
        if tau is not None and sync_every == "loop":
            self.sync_every = 1
        elif sync_every is not None and sync_every != "loop":
            self.sync_every = check_int("sync_every", sync_every)
        self.huber = None if huber is None else check_positive("huber", huber)
        self._value = first_method(model, self.METHODS, name)
        super().__init__(model, device=device, compile=compile, compute_dtype=compute_dtype)
        if value_rescaling is not None and not self.remembers:
            raise HyperparameterError(
                f"value_rescaling={value_rescaling} is for models with a memory; {type(model).__name__} has none"
            )
        self.value_rescaling = None if value_rescaling is None else check_positive("value_rescaling", value_rescaling)
        self.target_model = self._new_target()
        limit = check_limit("max_grad_norm", max_grad_norm)
        eps = check_positive("eps", eps)
        self.optimizer = self._given_or_adam(optimizer, self._at_start(self.lr), eps=eps, max_grad_norm=limit)
        self.lr = self._own_rate(optimizer, None if lr is None and not hyperparas else self.lr, self.lr)

    def predict(self, obs: Any) -> Any:
        """Return Q values `[batch, act_dim]`."""
        return self._values(self.model, obs)

    ON_HOST: ClassVar = {predict: of_method(lambda algorithm: algorithm._value)}

    @learns_from(
        Transitions,
        settings=("learning_rate",),
        keywords=("weights", "discount"),
        extra=("next_action_mask",),
    )
    def learn(self, batch: Transitions, learning_rate: float | None = None) -> Any:
        """Take one step on a batch, `learn(batch, learning_rate=None)`, or on its columns, as PARL 1.x and 2.x do.

        Args:
            batch: Tensors; its extra column `next_action_mask`, bool `[batch, act_dim]`, is True where an action is
                possible in `next_obs`; default: the entry `action_mask` of `next_obs`, else all are.
            learning_rate: The learning rate of this step; default: the constructor's.

        Returns:
            The loss, a detached scalar; with `batch.weights` the pair (loss, td_error `[batch]`), target - Q.
        """
        rate = self.lr
        if learning_rate is not None or callable(rate):
            rate = self._now("lr", rate, learning_rate, given_as="learning_rate")
        loss, figures = self.optimizer.descend(self.loss, batch, lr=rate)
        if not figures.keys() <= self.NAMED:  # as in `_descend`, inlined for the shortest updates
            self._add_figures(figures)
        if self.RECORDED:
            self._call_after_update(self._count_update)
        else:
            self._count_update()
        return loss if batch.weights is None else (loss, figures["td_error"])

    def loss(self, batch: Transitions) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a batch of tensors, and figures by name: `td_error` `[batch]`.

        Add your own loss in a subclass: `loss, figures = super().loss(batch); return loss + own, figures`.
        """
        raise NotImplementedError

    def sync_target(self, gpu_id: int | None = None) -> None:  # noqa: ARG002 - the signature in the PARL 1.x manual
        """Copy the weights of `model` into `target_model`.

        Args:
            gpu_id: An argument of PARL 1.x, without effect; both models are on `device`.
        """
        self.syncs += 1
        self.model.sync_weights_to(self.target_model)

    def move_target_in_loop(self) -> None:
        """Move the target a little; the loops call it after each update if nothing else moves the target."""
        if self.sync_every == "loop" and not self.syncs:
            self.model.sync_weights_to(self.target_model, 1.0 - self.LOOP_TAU)

    def choose(
        self,
        output: Any,
        *,
        rng: np.random.Generator | None = None,
        epsilon: float = 0.1,
        action_mask: Any = None,
        **options: Any,
    ) -> NDArray[np.int64]:
        """Return the best action of each row; with `rng` a random one with probability `epsilon` (default 0.1).

        Args:
            output: Q values `[batch, act_dim]`.
            rng: The generator to explore with.
            epsilon: The probability of random actions in this call, in [0, 1].
            action_mask: bool `[batch, act_dim]`, True where an action is possible.
            options: Further options of exploration; this algorithm has none.

        Raises:
            HyperparameterError: `epsilon` lies outside [0, 1].
            ValueError: The mask has another shape, or allows no action.
            ModelContractError: The model's output does not have `act_dim` columns.
        """
        super().choose(output, rng=rng, **options)
        shape: tuple[int, ...] = getattr(output, "shape", ())
        if len(shape) != 2 or self.act_dim not in (None, shape[1]):
            raise self._misshapen(shape or (type(output).__name__,))
        if action_mask is not None:
            possible = check_mask(action_mask)
            if possible.shape != output.shape:
                raise ValueError(f"action_mask must have shape {output.shape}, got {possible.shape}")
            output = np.where(possible, output, -np.inf)
        actions = np.asarray(output.argmax(axis=1), np.int64)
        if rng is None:
            return actions
        explore = rng.random(len(actions)) < check_fraction("epsilon", epsilon)
        if action_mask is None:
            return np.where(explore, rng.integers(output.shape[1], size=len(actions)), actions)
        # The largest of independent uniform numbers is a uniform draw among the possible actions.
        return np.where(explore, np.where(possible, rng.random(output.shape), -1.0).argmax(axis=1), actions)

    def check_batch(self, batch: Transitions | Sequences) -> Transitions | Sequences:
        """Return a batch of arrays with actions that the model has.

        Raises:
            ValueError: An action is invalid, or the batch has sequences and the model no memory, or vice versa.
        """
        self._fitted(batch)
        choices, action = self._outputs or self.act_dim, batch.action
        fits = action.ndim == 1 and action.dtype == _INT64
        # negative ones fail this check, too
        if not (fits and np.maximum.reduce(action.view(np.uint64)) < (choices or 0)):
            action = actions_column("action", action, choices)
        if isinstance(batch, Sequences) or (batch.extra is None and not isinstance(batch.next_obs, (dict, Mapping))):
            return batch if action is batch.action else batch.made(**{**batch.__dict__, "action": action})
        columns = {**batch.__dict__, "action": action}
        extra = batch.extra or {}
        mask = extra.get("next_action_mask")
        if mask is None and isinstance(batch.next_obs, Mapping):
            mask = mask_of(batch.next_obs)
        if mask is not None:
            # The state after termination may allow no action; there is no bootstrapping from it.
            over = np.asarray(batch.terminal) != 0
            columns["extra"] = {**extra, "next_action_mask": check_mask(mask, unless=over) | over[:, None]}
        return batch.made(**columns)

    def _fitted(self, batch: Transitions | Sequences) -> Transitions | Sequences:
        if isinstance(batch, Sequences) is not self.remembers:
            wanted = "Sequences, because its model has a memory" if self.remembers else "Transitions"
            raise ValueError(f"{type(self).__name__} learns from {wanted}, got {type(batch).__name__}")
        if self._outputs is None:  # the number of the model's values, which is determined once
            shape = self._shape_returned(self._value, self._value_shape, batch.obs)
            outputs = None if shape is None else shape[-1]
            if outputs is not None and self.act_dim not in (None, outputs):
                raise self._misshapen(("batch", outputs))
            self._outputs = outputs
        return batch

    def _target(self, batch: Sequences, v_t: Any) -> Any:
        """Return the targets `[n * S]` of sequences, given the values that they bootstrap from."""
        slope = self.value_rescaling
        if slope is None:
            return batch.reward + batch.discount * v_t
        return _rescaled(batch.reward + batch.discount * _restored(v_t, slope), slope)

    def _unrolled(self, model: Any, batch: Sequences) -> Any:
        """Return the values `[n * S, act_dim]` of sequences; no gradient flows into the steps before them."""
        state = batch.state
        if batch.before_obs is not None:
            with self._no_gradients():
                _, state = model.remember(batch.before_obs, state, batch.before_begins)
        return self._values(model, model.remember(batch.obs, state, batch.begins)[0])

    def _values(self, model: Any, obs: Any) -> Any:
        return self._run(getattr(model, self._value), obs)

    def _distributions(self, obs: Any) -> Any:
        """Return the model's output for acting, if it has one more dimension than values.

        Raises:
            ModelContractError: It does not.
        """
        found = self._values(self.model, obs)
        if len(getattr(found, "shape", ())) != 1 + self._value_shape.count(","):
            raise self._other_shape(self._value, self._value_shape, found, rows_of(obs))
        return found

    def _misshapen(self, found: tuple[Any, ...]) -> ModelContractError:
        wanted = "act_dim" if self.act_dim is None else self.act_dim
        shape = ", ".join(map(str, found))
        return ModelContractError(
            f"{type(self).__name__}'s model must return [batch, {wanted}], got ({shape}) from "
            f"{type(self.model).__name__}.{self._value}"
        )

    def _count_update(self) -> None:
        self.updates += 1
        if isinstance(self.sync_every, int) and self.updates % self.sync_every == 0:
            self.model.sync_weights_to(self.target_model, 0.0 if self.tau is None else 1.0 - self.tau)


class DDQN(DQN):
    """`DQN` with `double=True` (van Hasselt et al. 2016)."""

    ON_HOST: ClassVar = DQN.ON_HOST

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        lr: Scheduled | None = None,
        **settings: Unpack[DDQNSettings],
    ) -> None:
        super().__init__(model, gamma, lr, double=True, **settings)


class ApeX(DQN):
    """The learner of Ape-X DQN (Horgan et al. 2018, arXiv:1803.00933): double Q-learning from prioritised replay.

        part                                   location
        many actors, an epsilon each           of the loop, `parl_core.training.apex.train_apex`
        priorities that actors compute         likewise
        prioritised replay, n-step returns     likewise, `ApexSettings(prioritized=..., n_step=3)`
        double Q-learning                      `double=True`, the default here
        dueling networks                       of the model: `parl.networks.QNetwork(act_dim, dueling=True)`

    It is `DQN` with these defaults; `train_apex` trains `DQN`, `QRDQN`, `C51` and `Rainbow` as well. Deviations from
    the paper: Adam instead of RMSProp, and the squared error of DQN is not halved.

    Args:
        model: The Q network; a target network is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99 (paper, appendix).
        lr: Learning rate of Adam, above 0, or a schedule of the updates taken; default 2.5e-4 / 4 (paper, appendix).
        act_dim: Number of actions; only checked against the model's output.
        double: Whether to use double Q-learning; default True.
        sync_every: As in `DQN` (paper 2,500).
        tau: As in `DQN`.
        huber: As in `DQN`.
        eps: Epsilon of Adam, above 0; default 1.5e-7 (paper, for RMSProp).
        max_grad_norm: Limit of the gradients' global norm, above 0; `math.inf` for none; default 40 (paper).
        optimizer: As in `DQN`.
        hyperparas: As in `DQN`.
        device, compile, compute_dtype: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range, unknown, or given twice.
        ModelContractError: The model implements neither `value` nor `forward`.
    """

    LEARNS_SEQUENCES: ClassVar[bool] = False
    ON_HOST: ClassVar = DQN.ON_HOST
    DEFAULTS: ClassVar[Mapping[str, Any]] = {**DQN.DEFAULTS, "lr": 6.25e-5}

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        lr: Scheduled | None = None,
        *,
        double: bool = True,
        huber: float | None = None,
        eps: float = 1.5e-7,
        max_grad_norm: float | None = 40.0,
        **settings: Unpack[DQNSettings],
    ) -> None:
        super().__init__(model, gamma, lr, double=double, huber=huber, eps=eps, max_grad_norm=max_grad_norm, **settings)


class OfflineQ(DQN):
    """Q-learning on logged data; with several heads, random ensemble mixtures (Agarwal et al. 2020, arXiv:1907.04543).

        Q_w(s, a)  = sum_k w_k * Q_k(s, a),  w drawn uniformly, at least 0, divided by their sum, anew for every update
        target     = reward + discount * (1 - terminal) * max_a Q_w'(next_obs, a)                    (equation 3)
        loss       = mean(weights * huber(target - Q_w(obs, action)))                                 (equation 4)

    With one head it is DQN with the Huber loss (Mnih et al. 2015) on the logged data. Deviation from the paper: only
    the default learning rate.

    The model's `value(obs)`, or `forward(obs)` where there is no `value`, returns Q values `[batch, act_dim]`, or those
    of several heads `[batch, heads, act_dim]`; heads may share all layers but the last. The agent acts by their mean.

    Args:
        model: The Q network; a target network is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99 (paper, table 2).
        lr: Learning rate of Adam, above 0, or a schedule of the updates taken; default 5e-5 (paper, table 2).
        heads: Number of heads of the model, at least 1; the paper's mixture has 200.
        act_dim: Number of actions; only checked against the model's output.
        double: True to select the next action by the trained network.
        sync_every: The updates between two copies of the weights into the target network; default 2000 (paper, table
            2).
        huber: Error from which the loss grows linearly, above 0.
        tau: The step size of each of these moves, in (0, 1]; default 1, a copy.
        eps: Epsilon of Adam, above 0; default 1e-8.
        max_grad_norm: Limit of the gradients' global norm; default: no limit.
        optimizer: As in `DQN`.
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range.
        ModelContractError: The model implements neither `value` nor `forward`.
    """

    LEARNS_SEQUENCES: ClassVar[bool] = False

    DEFAULTS: ClassVar[Mapping[str, Any]] = {**DQN.DEFAULTS, "lr": 5e-5}

    _mixture: Callable[..., Any]
    """Backend hook: shares of the heads `[heads, 1]` that sum to 1, of the dtype of a tensor."""

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        lr: Scheduled | None = None,
        *,
        heads: int = 1,
        act_dim: int | None = None,
        double: bool = False,
        sync_every: int = 2000,
        tau: float | None = None,
        huber: float = 1.0,
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
        optimizer: Any = None,
        hyperparas: Mapping[str, Any] | None = None,
        device: str = "auto",
        compile: bool = False,
    ) -> None:
        self.heads = check_int("heads", heads)
        if self.heads > 1:
            self._value_shape = "[batch, heads, act_dim]"
        super().__init__(
            model,
            gamma,
            lr,
            act_dim=act_dim,
            double=double,
            sync_every=sync_every,
            tau=tau,
            huber=check_positive("huber", huber),
            eps=eps,
            max_grad_norm=max_grad_norm,
            optimizer=optimizer,
            hyperparas=hyperparas,
            device=device,
            compile=compile,
        )

    def predict(self, obs: Any) -> Any:
        """Return Q values `[batch, act_dim]`, the mean over all heads."""
        return self._values(self.model, obs) if self.heads == 1 else self._distributions(obs).mean(1)

    def loss(self, batch: Transitions, share: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a batch, and `td_error`, as `DQN.loss`.

        Args:
            batch: Tensors.
            share: Weights of the heads `[heads, 1]`; None draws them.
        """
        raise NotImplementedError

    @learns_from(
        Transitions,
        settings=("learning_rate",),
        keywords=("weights", "discount"),
        extra=("next_action_mask",),
    )
    def learn(self, batch: Transitions, learning_rate: float | None = None) -> Any:
        """Take one step: see `DQN.learn`."""
        share = None if self.heads == 1 else self._mixture(batch.reward)
        rate = self._now("lr", self.lr, learning_rate, given_as="learning_rate")
        loss, figures = self._descend(self.optimizer, self.loss, batch, share, lr=rate)
        self._call_after_update(self._count_update)
        return loss if batch.weights is None else (loss, figures["td_error"])
