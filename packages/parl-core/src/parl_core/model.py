"""The contract of `parl.Model`, which both backends' model classes share.

Tensor code (the conversion of parameters to arrays, the blending of two sets of parameters) is in the backends, in the
methods below `Backend hooks`. Names, checks and messages are here, once for both.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from parl_core._deprecation import RENAMED_METHODS
from parl_core.checks import check_fraction
from parl_core.errors import ModelContractError, WeightsMismatchError
from parl_core.layers import LazyLayer

__all__ = ["Model", "Weights", "check_names", "check_weights"]

Weights = dict[str, NDArray[Any]]
"""Parameters and buffers by name, as numpy arrays."""


def _renamed(old: str) -> Callable[..., Any]:
    """Return a method of PARL 1.x that raises an error with its current name.

    A `__getattr__` would conflict with the framework's own, or slow down each look-up of a layer.
    """

    def method(self: Model, *_args: Any, **_options: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{old}, which PARL 1.x had, is now {RENAMED_METHODS[old]}")

    return method


class Model:
    """A network: a policy, a value function, or both, of observations.

    A model is the framework's own module class (`torch.nn.Module`, `paddle.nn.Layer`) with PARL's methods. A subclass
    creates its layers in `__init__` (calling `super().__init__()` is allowed and not needed). It defines `forward`, or
    the methods that its algorithm calls: `policy(obs)`, `value(obs)`.

    `copy.deepcopy(model)` duplicates a model, also before lazily shaped layers (`parl.layers.fc(size=...)`) have
    processed their first batch: the original and its duplicate start from equal weights in this case, too.

        class QNetwork(parl.Model):
            def __init__(self, act_dim):
                self.hidden = parl.layers.fc(size=64, act="relu")
                self.out = parl.layers.fc(size=act_dim)

            def value(self, obs):
                return self.out(self.hidden(obs))

        agent = parl.Agent(parl.algorithms.DQN(QNetwork(act_dim=2)))
        action = agent.predict(np.zeros(4, np.float32))
        weights = agent.alg.model.get_weights()  # name -> array

    Args:
        model_id: The name of this instance; default: a new name, unique per instance.
    """

    _model_id: str
    _blended: _BlendCache | None = None
    """Cache of the last target of `sync_weights_to` and its arrays."""

    _viewed: _ViewCache | None = None
    """Cache of the memory of the weights for `get_weights` and `set_weights`."""

    CONTAINERS: ClassVar[str] = ""
    """The framework's own list and dictionary of layers, for messages."""

    def __init__(self, model_id: str | None = None) -> None:
        self._model_id = model_id or self._fresh_id()

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Run `forward`."""
        return self.forward(*inputs, **options)

    forward: Callable[..., Any]
    """Computes the network's output; subclasses define it as a method."""

    def parameters(self) -> Any:
        """Return the framework's own iterator over, or list of, trainable tensors."""
        raise NotImplementedError("a backend's Model has the framework's parameters()")

    def train(self) -> Any:
        """Enter training mode, in which dropout and batch statistics are active."""
        raise NotImplementedError("a backend's Model has the framework's train()")

    def eval(self) -> Any:
        """Enter evaluation mode."""
        raise NotImplementedError("a backend's Model has the framework's eval()")

    @property
    def parameter_names(self) -> list[str]:
        """Names of the trainable parameters, such as `['fc1.weight', 'fc1.bias']`, in one order for all instances.

        Raises:
            ModelContractError: A lazily shaped layer has not processed a batch yet.
        """
        self._require_shapes()
        return list(self._named_parameters())

    @property
    def model_id(self) -> str:
        """The name of this instance."""
        return self._model_id

    @model_id.setter
    def model_id(self, model_id: str) -> None:
        self._model_id = model_id

    def get_model_id(self) -> str:
        """Return the name of this instance; a deepcopy gets its own."""
        return self._model_id

    def set_model_id(self, model_id: str) -> None:
        """Name this instance."""
        self._model_id = model_id

    def get_weights(self, *, portable: bool = False) -> Weights:
        """Return copies of all parameters and buffers.

        Args:
            portable: True for the names and layouts that both backends share (those of PyTorch: a linear layer's weight
                is `[out, in]`) instead of the framework's own.

        Returns:
            name -> array; a copy, which later updates do not change.

        Raises:
            ModelContractError: A lazily shaped layer has not processed a batch yet.
        """
        known = self._viewed
        if known is not None and not portable and known.are_same():
            return {name: np.array(view) for name, view in known.views.items()}
        self._require_shapes()
        tensors = self._named_tensors()
        weights = {name: self._array_of(tensor) for name, tensor in tensors.items()}
        if portable:
            return self._to_portable(weights)
        self._view(tensors)
        return weights

    def set_weights(self, weights: Mapping[str, Any] | Sequence[Any], *, portable: bool = False) -> None:
        """Copy weights into this model; lazily shaped layers take their shapes from them.

        Args:
            weights: The result of `get_weights`, or a list of arrays in that order.
            portable: Whether names and layouts are those of `get_weights(portable=True)`.

        Raises:
            WeightsMismatchError: A name is missing or unknown, or two shapes differ; nothing was changed.
        """
        if self._viewed is not None and not portable and self._viewed.take(weights):
            return
        named = self._named(weights)
        if portable:
            named = self._from_portable(named)
        check_names(type(self).__name__, self._named_tensors(), named)
        self._take_shapes({name: array.shape for name, array in named.items()})
        tensors = self._named_tensors()
        check_weights(type(self).__name__, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, named)
        self._assign(tensors, named)
        if self._viewed is None or not self._viewed.are_same():  # weights of another form do not use the cached memory
            self._view(tensors)

    def sync_weights_to(
        self,
        target_model: Model,
        decay: float = 0.0,
        share_vars_parallel_executor: object = None,  # noqa: ARG002 - the signature in the PARL 1.x manual
    ) -> None:
        """Blend this model's weights, buffers included, into `target_model`.

        `target = decay * target + (1 - decay) * self`; whole-numbered buffers (counters) are copied.

        Args:
            target_model: A model of the same architecture, another object.
            decay: The weight of the target's values, in [0, 1]; 0 copies the model.
            share_vars_parallel_executor: An argument of PARL 1.x, without effect.

        Raises:
            HyperparameterError: `decay` lies outside [0, 1].
            WeightsMismatchError: The target is this very model, or its names or shapes differ.
        """
        decay = check_fraction("decay", decay)
        known = self._blended
        if known is not None and known.target is target_model and known.are_same():
            self._blend(known.targets, known.sources, decay)
            return
        if not isinstance(target_model, self._plain_model()):
            raise WeightsMismatchError(f"sync_weights_to needs a parl.Model of the same backend, got {target_model!r}")
        if target_model is self:
            raise WeightsMismatchError("sync_weights_to needs another model; make one with copy.deepcopy(model)")
        source, target = self._named_tensors(), target_model._named_tensors()
        owner = type(target_model).__name__
        check_names(owner, target, source)
        waits = bool(self._waiting() or target_model._waiting())
        if waits:
            source, target = self._settle_shapes_with(target_model)
        if any(target[name].shape != tensor.shape for name, tensor in source.items()):
            check_weights(owner, {name: tuple(tensor.shape) for name, tensor in target.items()}, source)
        targets, sources = list(target.values()), [source[name] for name in target]
        are_same = None if waits else self._watch(target_model)
        self._blended = None if are_same is None else _BlendCache(target_model, targets, sources, are_same)
        self._blend(targets, sources, decay)

    def implements(self, method: str) -> bool:
        """Return whether the user's class defines `method`, or the model has a layer of that name."""
        if not callable(getattr(self, method, None)):
            return False
        own = getattr(type(self), method, None)
        return own is None or own is not getattr(self._plain_model(), method, None)

    def take_shapes_of(self, other: Model) -> None:
        """Give lazily shaped layers the shapes of the layers of the same names in another model."""
        self._take_shapes({name: tuple(tensor.shape) for name, tensor in other._shaped_tensors().items()})

    def require_found_layers(self) -> None:
        """Reject layers that the framework does not find and would neither train nor save.

        Raises:
            ModelContractError: An attribute is a plain list, tuple, set or dictionary that holds such layers.
        """
        layers = self._all_layers()
        found = {id(layer) for layer in layers.values()}
        kind = self._layer_class()
        for prefix, layer in layers.items():
            for attribute, value in vars(layer).items():
                items = value.values() if isinstance(value, Mapping) else value
                if not isinstance(value, (Mapping, list, tuple, set, frozenset)):
                    continue
                if any(isinstance(item, kind) and id(item) not in found for item in items):
                    name = f"{prefix}.{attribute}" if prefix else attribute
                    raise ModelContractError(
                        f"{type(self).__name__} keeps layers in the plain {type(value).__name__} `{name}`, where their "
                        f"parameters would be neither trained nor saved; put them into {self.CONTAINERS}, or make each "
                        "an attribute"
                    )

    def layers_by_mode(self) -> list[Any]:
        """Return the layers, possibly including this model, whose code depends on training mode."""
        plain = {*self._plain_model().__mro__, *self._layer_class().__mro__}
        asking: dict[type, bool] = {}
        for layer in self._all_layers().values():
            kind = type(layer)
            if kind not in asking:
                asking[kind] = any(_asks_for_mode(part) for part in kind.__mro__ if part not in plain)
        return [layer for layer in self._all_layers().values() if asking[type(layer)]]

    get_params = _renamed("get_params")
    set_params = _renamed("set_params")
    sync_params_to = _renamed("sync_params_to")

    # Backend hooks

    def _layer_class(self) -> type[Any]:
        """Return the framework's class of all layers."""
        raise NotImplementedError

    def _all_layers(self) -> dict[str, Any]:
        """Return this model (named "") and the layers that the framework finds in it, by name."""
        raise NotImplementedError

    def _plain_model(self) -> type[Model]:
        """Return the backend's own Model class, in which no user method is defined yet."""
        raise NotImplementedError

    def _named_parameters(self) -> dict[str, Any]:
        """Return the trainable tensors by name."""
        raise NotImplementedError

    def _named_tensors(self) -> dict[str, Any]:
        """Return parameters and persistent buffers by name, in the order of `get_weights`."""
        raise NotImplementedError

    def _array_of(self, tensor: Any) -> NDArray[Any]:
        """Return a numpy copy of a tensor."""
        raise NotImplementedError

    def _assign(self, tensors: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copy arrays into the tensors of the same names; shapes have been checked."""
        raise NotImplementedError

    def _blend(self, target: list[Any], source: list[Any], decay: float) -> None:
        """Blend in place: `target = decay * target + (1 - decay) * source`; integer tensors are copied."""
        raise NotImplementedError

    def _watch(self, other: Model) -> Callable[[], bool] | None:  # noqa: ARG002
        """Return a check that both models still have their present layers and tensors; None if impossible."""
        return None

    def _views_of(self, tensors: Mapping[str, Any]) -> Weights | None:  # noqa: ARG002
        """Return the memory of the tensors as arrays; None if one is in other memory, temporary, or not float32."""
        return None

    def _passing_buffers(self, layer: Any) -> dict[str, Any]:
        """Return the buffers of a layer that are not saved with weights, by name."""
        raise NotImplementedError

    def _begins_as(self, other: Model) -> bool:  # noqa: ARG002
        """Return whether lazily shaped layers of both models get equal initial weights."""
        return True

    def _waiting(self) -> list[str]:
        """Return the names of the parameters and buffers whose shapes are not known yet."""
        raise NotImplementedError

    def _to_portable(self, weights: Weights) -> Weights:
        """Return names and layouts that both backends share, for all or some of the weights."""
        return weights

    def _from_portable(self, weights: Weights) -> Weights:
        """Return the inverse of `_to_portable`."""
        return weights

    # Shared

    def _beside_weights(self, layer: Any) -> dict[str, Any]:
        """Return the attributes of a user's layer that are not saved with weights, by name.

        The framework's layers and those of `parl.layers` have none: their other attributes are settings or derived from
        weights.
        """
        kind: Any = self._layer_class()
        if isinstance(layer, LazyLayer) or _package_of(type(layer)) == _package_of(kind):
            return {}
        known = _names_in_every_layer(kind)
        own = {name: value for name, value in list(vars(layer).items()) if name not in known}
        return {**own, **self._passing_buffers(layer)}

    def _buffers_in_weights(self) -> list[tuple[Any, str, Any]]:
        """Return owner, name and tensor of all shaped, untrained tensors among the weights."""
        layers, trained = self._all_layers(), self._named_parameters()
        found = []
        for name, tensor in self._shaped_tensors().items():
            path, _, attribute = name.rpartition(".")
            if name not in trained and getattr(layers.get(path), attribute, None) is tensor:
                found.append((layers[path], attribute, tensor))
        return found

    def _view(self, tensors: Mapping[str, Any]) -> None:
        """Cache the memory of all weights, if it is on the CPU and changes of the layers can be detected."""
        views = self._views_of(tensors)
        are_same = None if views is None else self._watch(self)
        self._viewed = None if views is None or are_same is None else _ViewCache(views, are_same)

    def _lazy_layers(self) -> dict[str, LazyLayer]:
        return {name: layer for name, layer in self._all_layers().items() if isinstance(layer, LazyLayer)}

    def _take_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Give lazily shaped layers the shapes that their weights have in `shapes`; ignore unknown names."""
        taken: list[tuple[LazyLayer, dict[str, tuple[int, ...]]]] = []
        for prefix, layer in self._lazy_layers().items():
            own = {name: shapes[f"{prefix}.{name}"] for name in layer.waiting if f"{prefix}.{name}" in shapes}
            if not own:
                continue
            if len(own) < len(layer.waiting) or not layer.accepts(own):
                listed = ", ".join(f"{prefix}.{name} {shape}" for name, shape in own.items())
                raise WeightsMismatchError(
                    f"weights do not fit {type(self).__name__}: {prefix} is {layer}, got {listed}"
                )
            taken.append((layer, own))
        for layer, own in taken:
            layer.materialise(own)

    def _share_initial_weights(self, target_model: Model) -> None:
        """Give the target's lazily shaped layers the same initial weights as this model's."""
        layers = self._lazy_layers()
        for name, layer in target_model._lazy_layers().items():
            if name in layers:
                layer.seed = layers[name].seed

    def _fresh_id(self) -> str:
        return f"{type(self).__name__}-{uuid.uuid4().hex[:12]}"

    def _require_shapes(self) -> None:
        unknown = self._waiting()
        if unknown:
            raise ModelContractError(
                f"{type(self).__name__}: the shape of {unknown[0]} is not known before the first batch; "
                "pass one through the model, for instance with agent.predict(obs), or set weights"
            )

    def _settle_shapes_with(self, other: Model) -> tuple[dict[str, Any], dict[str, Any]]:
        """Give each model the shapes of the other one, and both the same initial weights where neither has shapes.

        Returns:
            The tensors of this model and of the other that have shapes now.
        """
        self.take_shapes_of(other)
        other.take_shapes_of(self)
        self._share_initial_weights(other)
        return self._shaped_tensors(), other._shaped_tensors()

    def _shaped_tensors(self) -> dict[str, Any]:
        waiting = set(self._waiting())
        return {name: tensor for name, tensor in self._named_tensors().items() if name not in waiting}

    def _named(self, weights: Mapping[str, Any] | Sequence[Any]) -> Weights:
        if isinstance(weights, Mapping):
            return {name: np.asarray(array) for name, array in weights.items()}
        names = list(self._named_tensors())
        if len(weights) != len(names):
            raise WeightsMismatchError(
                f"{type(self).__name__} has {len(names)} arrays ({_some(names)}), the list has {len(weights)}"
            )
        return {name: np.asarray(array) for name, array in zip(names, weights, strict=True)}


class _TensorCache:
    """Cached data of models, which is valid while `are_same` returns True; copied models have other tensors."""

    def __init__(self, are_same: Callable[[], bool]) -> None:
        self.are_same = are_same

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return nothing."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return type(None), ()


class _BlendCache(_TensorCache):
    """The matching tensors of two models."""

    def __init__(self, target: Model, targets: list[Any], sources: list[Any], are_same: Callable[[], bool]) -> None:
        super().__init__(are_same)
        self.target, self.targets, self.sources = target, targets, sources


class _ViewCache(_TensorCache):
    """The memory of the weights of a model as arrays, by name."""

    def __init__(self, views: Weights, are_same: Callable[[], bool]) -> None:
        super().__init__(are_same)
        self.views = views

    def take(self, weights: Any) -> bool:
        """Copy weights into the memory; return False without copying if arrays do not fit or tensors have changed."""
        views = self.views
        if type(weights) is not dict or weights.keys() != views.keys():
            return False
        pairs = [(view, weights[name]) for name, view in views.items()]
        for view, array in pairs:
            if type(array) is not np.ndarray or array.shape != view.shape or array.dtype != view.dtype:
                return False
        if not self.are_same():
            return False
        for view, array in pairs:
            np.copyto(view, array)
        return True


def _package_of(kind: type[Any]) -> str:
    return kind.__module__.partition(".")[0]


@functools.cache
def _names_in_every_layer(kind: type[Any]) -> frozenset[str]:
    """Return the names of the attributes that a layer of the framework has from the start, such as `training`."""
    return frozenset(vars(kind()))


def check_weights(owner: str, expected: Mapping[str, tuple[int, ...]], given: Mapping[str, Any]) -> None:
    """Reject weights that do not fit.

    Args:
        owner: The owner of the weights, for the message.
        expected: The shape of each required array.
        given: Arrays or tensors by name.

    Raises:
        WeightsMismatchError: They do not fit; the message names the keys, or the key and both shapes.
    """
    check_names(owner, expected, given)
    for name, shape in expected.items():
        got = tuple(given[name].shape)
        if got != tuple(shape):
            raise WeightsMismatchError(f"weights do not fit {owner}: {name} has shape {got}, expected {tuple(shape)}")


def check_names(owner: str, expected: Iterable[str], given: Iterable[str]) -> None:
    """Reject weights whose names are not those expected.

    Raises:
        WeightsMismatchError: Names differ; the message lists the missing and the unknown ones.
    """
    wanted, found = dict.fromkeys(expected), dict.fromkeys(given)
    missing = [name for name in wanted if name not in found]
    unknown = [name for name in found if name not in wanted]
    if missing or unknown:
        parts = [f"missing {_some(missing)}"] * bool(missing) + [f"unknown {_some(unknown)}"] * bool(unknown)
        raise WeightsMismatchError(f"weights do not fit {owner}: {'; '.join(parts)}")


def _asks_for_mode(kind: type) -> bool:
    functions = (getattr(value, "__wrapped__", value) for value in vars(kind).values())
    codes = (getattr(function, "__code__", None) for function in functions)
    return any("training" in code.co_names for code in codes if code is not None)


def _some(names: Iterable[str], limit: int = 5) -> str:
    listed = list(names)
    more = len(listed) - limit
    return ", ".join(listed[:limit]) + (f" and {more} more" if more > 0 else "")
