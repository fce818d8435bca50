"""Small networks: chains of linear layers, found in a model, checked for changes, and run in numpy for acting.

For a few rows, calls of a framework take longer than the computation. The layers of a model are found once, from the
graph of one pass (`Framework.read`, in the backends), so they do not depend on how the model is written. The framework
still computes models whose Python code does, or may do, anything except such a pass, models with hooks or on another
device, and larger batches and layers, for which numpy's BLAS would start its own threads. Numpy uses the memory of the
parameters, so that nothing has to be copied after an update. Noise comes from the framework's generator, so that
actions are those that the framework would draw.
"""

import dis
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from operator import attrgetter, is_
from types import FunctionType, MethodType, ModuleType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parl_core import policy
from parl_core.layers import NoisyFc

__all__ = [
    "EXPLORE",
    "PREDICT",
    "PREDICT_ALONE",
    "VALUE",
    "VALUE_ALONE",
    "Deviation",
    "Framework",
    "HostActing",
    "HostMethod",
    "Layer",
    "Output",
    "Parts",
    "Way",
    "common_layers",
    "flat",
    "has_hooks",
    "of_actor_critic",
    "of_method",
    "outputs_of",
]

_MOST = 2**17
"""Number of products per layer up to which numpy computes, because no BLAS uses a second thread for fewer."""

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


# Computations of models


class Layer(NamedTuple):
    """A linear layer with the model's tensors, and its activation: relu, tanh, elu (with `alpha`) or none."""

    weight: Any
    bias: Any
    activation: str | None
    alpha: float = 1.0


class Output(NamedTuple):
    """A sequence of layers; the output is `[n, out]`, or `[n]` if it is flat, from a last layer of one number."""

    layers: Sequence[Layer]
    is_flat: bool


class Deviation(NamedTuple):
    """An output that is the exponential of a parameter, such as the standard deviation of a normal distribution."""

    logarithm: Any


class Framework:
    """The interface to a framework: each backend has one instance, which finds, checks and runs small networks."""

    module: ClassVar[Any]
    tensor: ClassVar[Any]
    state: ClassVar[frozenset[str]]
    """The attributes that every module has."""
    children: ClassVar[str]
    """Name of the attribute of a module that lists its submodules."""
    hooks: ClassVar[Sequence[str]]
    """Names of the attributes of a module that list the hooks of its passes."""
    global_hooks: ClassVar[Sequence[Any]] = ()
    """The dictionaries of the hooks of all modules."""
    layers: ClassVar[frozenset[type]]
    """The framework's modules without state that changes the output."""
    passes: ClassVar[Sequence[Any]]
    """The framework's `forward` methods that only call submodules."""
    activations: ClassVar[Sequence[Any]]
    """The framework's functions that a model may call."""
    names: ClassVar[frozenset[str]] = frozenset(("nn", "functional", "relu", "relu_", "tanh", "tanh_", "squeeze"))
    """Names of the framework's modules and methods that a model may use."""
    package: ClassVar[str]
    """The import name of the framework."""
    backend: ClassVar[str]
    """The import name of the backend."""
    is_turned: ClassVar[bool]
    """True if weights of linear layers are `[out, in]`, False if they are `[in, out]`."""

    address: ClassVar[Any]
    """Function that returns the address of a tensor."""
    strides: ClassVar[Any]
    """Function that returns the strides of a tensor."""

    def modules(self, model: Any) -> Iterable[Any]:
        """Return a model and all of its submodules."""
        raise NotImplementedError

    def is_waiting(self, tensor: Any) -> bool:
        """Return whether a tensor has no memory yet."""
        raise NotImplementedError

    def rows(self, model: Any, width: int) -> Any:
        """Return zeros `[2, width]` of a model's dtype; None if the model is not on the CPU."""
        raise NotImplementedError

    def read(self, model: Any, method: str, like: Any) -> Sequence[Output | Deviation | None]:
        """Return the chains that a method of a model computes, an entry for each output, None for any other output.

        Args:
            model: The model.
            method: Name of the method.
            like: Observations `[n, in]`, or a tuple of observations and actions `[n, act_dim]`, which the first layer
                must take joined; only sizes and dtypes matter.
        """
        raise NotImplementedError

    def view(self, parameter: Any) -> NDArray[Any]:
        """Return the memory of a parameter as an array."""
        raise NotImplementedError

    def impossible(self, dtype: Any) -> float:
        """Return the logit of an action that a mask excludes."""
        raise NotImplementedError

    def choose(self, logits: NDArray[Any], log_probabilities: NDArray[Any]) -> NDArray[Any]:
        """Return a choice for each row, int64 `[n]`, the one that the framework's distribution would draw."""
        raise NotImplementedError

    def normal(self, like: NDArray[Any]) -> NDArray[Any]:
        """Return draws from N(0, 1) of the framework's generator, in the shape and dtype of an array."""
        raise NotImplementedError


def outputs_of(framework: Framework, model: Any, methods: Sequence[str], like: Any) -> list[Output | Deviation] | None:
    """Return the outputs that methods of a model compute from observations; nested tuples are flattened.

    Lazily shaped layers get their shapes.

    Args:
        framework: The interface to the model's framework.
        model: The model.
        methods: Names of methods that take the same observations.
        like: The inputs, as in `Framework.read`.

    Returns:
        The outputs; None if one is neither a chain nor a standard deviation.
    """
    found: list[Output | Deviation] = []
    for method in methods:
        if not _only_passes(framework, model, method):
            return None
        for output in framework.read(model, method, like):
            if output is None:
                return None
            found.append(output)
    return found


def flat(outputs: Any) -> list[Any]:
    """Return outputs as one list; nested tuples are flattened."""
    return [part for output in outputs for part in flat(output)] if isinstance(outputs, tuple) else [outputs]


def common_layers(chains: Sequence[Sequence[Layer]]) -> int:
    """Return the number of first layers that several chains share; each chain has at least one layer after them."""
    shared = 0
    while len(chains) > 1 and all(_shares(chains[0], each, shared) for each in chains):
        shared += 1
    return shared


def _shares(one: Sequence[Layer], other: Sequence[Layer], at: int) -> bool:
    if min(len(one), len(other)) <= at + 1:
        return False
    return all(part is same for part, same in zip(one[at][:3], other[at][:3], strict=True))


# Detection of changes in models

_SHAPE = attrgetter("shape")


class Parts:
    """The present layers and tensors of models, and some attributes of them or of others.

    Args:
        framework: The interface to the models' framework.
        models: The models.
        attributes: (object, name) pairs, such as methods of models, or the attributes of an algorithm that hold the
            models.

    Attributes:
        hooks: Dictionaries of the hooks that a pass of a layer would call; all are empty if there is none.
    """

    def __init__(self, framework: Framework, models: Sequence[Any], attributes: Sequence[tuple[Any, str]] = ()) -> None:
        layers = {id(layer): layer for model in models for layer in framework.modules(model)}.values()
        kinds = (framework.children, "_parameters", "_buffers")  # including empty ones, which may be filled later
        self._holders = [vars(layer)[kind] for kind in kinds for layer in layers]
        places = [(part, name) for part in self._holders for name in part]
        places += [(vars(layer), name) for layer in layers for name in _behaviour_attributes(framework, layer)]
        self._owners, self._names = [part for part, _ in places], [name for _, name in places]
        self._found = list(map(dict.get, self._owners, self._names))
        self._holders += map(vars, layers)  # their sizes reveal a method that was set on one layer
        self._sizes = list(map(len, self._holders))
        found = [value for value in self._found if isinstance(value, framework.tensor)]
        self._tensors = [tensor for tensor in found if not framework.is_waiting(tensor)]
        self._address, self._strides = framework.address, framework.strides
        self._memory = list(map(self._address, self._tensors))
        self._shapes = list(map(_SHAPE, self._tensors))
        self._matrices = [tensor for tensor in self._tensors if tensor.ndim > 1]
        self._steps = list(map(self._strides, self._matrices))
        self._objects, self._named = [one for one, _ in attributes], [name for _, name in attributes]
        self._attributes = list(map(getattr, self._objects, self._named))
        self.hooks = _hooks(framework, layers)

    def are_same(self) -> bool:
        """Return whether all layers, tensors, activations and attributes are the same, with the same memory."""
        return (
            all(map(is_, map(dict.get, self._owners, self._names), self._found))
            and list(map(len, self._holders)) == self._sizes
            and list(map(self._address, self._tensors)) == self._memory
            and list(map(_SHAPE, self._tensors)) == self._shapes
            and list(map(self._strides, self._matrices)) == self._steps
            and list(map(getattr, self._objects, self._named)) == self._attributes
        )


def has_hooks(framework: Framework, model: Any) -> bool:
    """Return whether a forward pass would call hooks, which must only receive the caller's rows."""
    return any(_hooks(framework, framework.modules(model)))


def _hooks(framework: Framework, layers: Iterable[Any]) -> list[Any]:
    return [getattr(layer, name) for layer in layers for name in framework.hooks] + [*framework.global_hooks]


def _behaviour_attributes(framework: Framework, layer: Any) -> list[str]:
    """Return the names of a layer's attributes that may change its output: functions, and None in their place."""
    given = [(name, value) for name, value in vars(layer).items() if name not in framework.state]
    kinds = (float, int) if type(layer) in framework.layers else ()  # such as the slope of an activation
    return [name for name, value in given if value is None or callable(value) or isinstance(value, kinds)]


# Checks of a model's code

_PASSES = (
    "BUILD_LIST",
    "BUILD_TUPLE",
    "CACHE",
    "CALL",
    "COPY",
    "END_FOR",
    "FOR_ITER",
    "GET_ITER",
    "JUMP_BACKWARD",
    "KW_NAMES",
    "LOAD",
    "NOP",
    "NOT_TAKEN",
    "POP_ITER",
    "POP_TOP",
    "PRECALL",
    "PUSH_NULL",
    "RESUME",
    "RETURN",
    "STORE_FAST",
    "SWAP",
)


def _only_passes(framework: Framework, model: Any, method: str) -> bool:
    """Return whether the code of a model's method, and that of its layers, only calls layers and activations.

    Each call then uses the same layers, without side effects.
    """
    layers = [layer for layer in framework.modules(model) if not _is_known_layer(framework, layer)]
    if any(isinstance(layer, NoisyFc) or layer._buffers for layer in layers):
        return False  # each pass draws random numbers or changes a state, such as batch statistics
    return all(_is_plain(framework, getattr(layer, method if layer is model else "forward"), layer) for layer in layers)


def _is_known_layer(framework: Framework, layer: Any) -> bool:
    return type(layer) in framework.layers and "forward" not in vars(layer)


def _is_plain(framework: Framework, method: Any, layer: Any) -> bool:
    """Return whether the code of a layer's method only calls layers and activations, each time the same ones."""
    if not isinstance(method, MethodType) or method.__self__ is not layer:
        return False
    if type(layer).__call__ is not framework.module.__call__:
        return False
    return _is_pass(framework, method.__func__, layer)


def _is_pass(framework: Framework, function: Any, layer: Any) -> bool:
    if not isinstance(function, FunctionType):
        return False
    code = function.__code__
    ours = ("parl_core.networks", f"{framework.backend}.networks", f"{framework.backend}.layers")
    if function.__module__ in ours:
        return all(_is_pass(framework, own, layer) for own in _overridden(framework, code.co_names, layer))
    if function in framework.passes:
        return True
    if code.co_freevars or not all(step.opname.startswith(_PASSES) for step in dis.get_instructions(code)):
        return False
    return all(_is_known(framework, name, function, layer) for name in code.co_names)


def _overridden(framework: Framework, names: Sequence[str], layer: Any) -> list[Any]:
    """Return the functions of a user's class, or of a single layer, that override those of our code."""
    ours = ("builtins", "parl_core", framework.package, framework.backend)
    homes = [(name, next((kind for kind in type(layer).__mro__ if name in vars(kind)), None)) for name in names]
    theirs = [(name, kind) for name, kind in homes if kind is not None]
    alone = [vars(layer)[name] for name, kind in theirs if callable(vars(kind)[name]) and name in vars(layer)]
    return alone + [vars(kind)[name] for name, kind in theirs if kind.__module__.partition(".")[0] not in ours]


def _is_known(framework: Framework, name: str, function: FunctionType, layer: Any) -> bool:
    given = function.__globals__.get(name)
    if given is not None:
        is_framework = isinstance(given, ModuleType) and given.__name__.partition(".")[0] == framework.package
        return is_framework or _is_activation(framework, given)
    if name in framework.names or any(name in vars(part)[framework.children] for part in framework.modules(layer)):
        return True
    if name in vars(layer):
        return _is_activation(framework, vars(layer)[name])
    own = getattr(type(layer), name, None)
    return own is not function and _is_pass(framework, own, layer)


def _is_activation(framework: Framework, value: Any) -> bool:
    return any(value is function for function in framework.activations)


# Acting of algorithms


class HostMethod(NamedTuple):
    """The description of a method of an algorithm in numpy.

    Attributes:
        methods: Names of the model's methods whose outputs it needs.
        finish: Function that takes the framework, these outputs, and a mask of actions or None; it returns the result
            of the method as arrays, or None if the framework has to compute it.
        takes_mask: True if the method has an argument `action_mask`.
    """

    methods: Sequence[str]
    finish: Callable[[Framework, Sequence[NDArray[Any]], NDArray[Any] | None], Any]
    takes_mask: bool = False


Way = Callable[[Any], HostMethod | None]
"""Function from an algorithm to the description of a method, or to None if its settings are not supported."""


def of_method(name: Callable[[Any], str]) -> Way:
    """Return the description of a method that returns the output of the model's method of this name unchanged."""
    return lambda algorithm: HostMethod((name(algorithm),), _only_output)


def _only_output(framework: Framework, outputs: Sequence[NDArray[Any]], mask: NDArray[Any] | None) -> Any:  # noqa: ARG001 - a `finish`
    return outputs[0] if len(outputs) == 1 else None


def of_actor_critic(
    finish: Callable[[Any, Any], Any],
    needs: Literal["policy", "value", "both"] = "both",
    *,
    takes_mask: bool = False,
    in_one_pass: Callable[[Any], bool] = attrgetter("_one_pass"),
) -> Way:
    """Return the description of a method of an actor-critic, which is None for unsupported kinds of actions.

    Args:
        finish: Function that takes the distribution of actions (with `sample`, `mode`, `logp` and `entropy` as in the
            backends' `distributions`, and `numbers` for actors to send) and the values `[n]`, and returns the result of
            the method.
        needs: The arguments that `finish` needs; the other may be None.
        takes_mask: True if the method has an argument `action_mask`.
        in_one_pass: Function that returns whether the method of an algorithm calls `policy_and_value` of the model.
    """

    def way(algorithm: Any) -> HostMethod | None:
        kind = algorithm.actions
        if algorithm.remembers or kind.used is not None or (kind.continuous and kind.nvec is not None):
            return None
        joint = in_one_pass(algorithm)
        parts = ("policy", "value") if joint or needs == "both" else (needs,)
        of_policy = (2 if kind.continuous else 1) if "policy" in parts else 0

        def finished(framework: Framework, outputs: Sequence[NDArray[Any]], mask: NDArray[Any] | None) -> Any:
            if len(outputs) != of_policy + ("value" in parts):
                return None
            drawn: Any = None
            if needs != "value" and kind.continuous:
                drawn = _numbers(framework, *outputs[:2])
            elif needs != "value":
                drawn = _choices(framework, outputs[0], kind.nvec, mask)
            if needs != "value" and drawn is None:
                return None
            return finish(drawn, None if needs == "policy" else outputs[-1].reshape(-1))

        return HostMethod(("policy_and_value",) if joint else parts, finished, takes_mask)

    return way


def _explored(policy: Any, value: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    action = policy.sample()
    return value, action, policy.logp(action)


def _mode(policy: Any, value: Any) -> Any:  # noqa: ARG001 - a `finish`
    return policy.mode()


def _value(policy: Any, value: Any) -> Any:  # noqa: ARG001
    return value


def _never(algorithm: Any) -> bool:  # noqa: ARG001
    return False


EXPLORE = of_actor_critic(_explored, takes_mask=True)
PREDICT = of_actor_critic(_mode, "policy", takes_mask=True)
PREDICT_ALONE = of_actor_critic(_mode, "policy", takes_mask=True, in_one_pass=_never)
VALUE = of_actor_critic(_value, "value")
VALUE_ALONE = of_actor_critic(_value, "value", in_one_pass=_never)


class HostActing:
    """One method of an algorithm in numpy, which is valid while the model is the same chain.

    Args:
        framework: The interface to the model's framework.
        model: The network.
        way: The description of the method.
        obs: The first observations, for their size.
    """

    def __init__(self, framework: Framework, model: Any, way: HostMethod, obs: NDArray[Any]) -> None:
        self._framework, self._model, self._way, self.is_chain = framework, model, way, False
        rows = framework.rows(model, obs.shape[1])
        if rows is None:
            return
        found = outputs_of(framework, model, way.methods, rows)
        self._parts = Parts(framework, [model], [(model, method) for method in way.methods])
        chains = [part.layers for part in found or () if isinstance(part, Output)]
        self.is_chain = bool(chains)
        if found is not None and chains:
            shared = common_layers(chains)
            self._width, self._dtype = obs.shape[1], framework.view(chains[0][0].weight).dtype
            self._widest = max(math.prod(layer.weight.shape) for chain in chains for layer in chain)
            self._trunk = self._steps(chains[0][:shared])
            self._outputs = [
                (self._steps(part.layers[shared:]), part.is_flat)
                if isinstance(part, Output)
                else framework.view(part.logarithm)
                for part in found
            ]

    def is_of(self, model: Any) -> bool:
        """Return whether `model` is the model of this object, unchanged."""
        return model is self._model and (not self.is_chain or self._parts.are_same())

    def __call__(self, obs: NDArray[Any], mask: NDArray[Any] | None = None) -> Any:
        """Return the result of the method for observations `[n, in]`; None if the framework has to compute it."""
        if not self.is_chain or obs.shape[1] != self._width or len(obs) * self._widest > _MOST:
            return None
        if any(self._parts.hooks) or not (mask is None or self._way.takes_mask):
            return None
        with np.errstate(all="ignore"):  # infinite numbers are allowed, as in the frameworks
            if obs.dtype != self._dtype:
                obs = obs.astype(self._dtype)
            common = _run(self._trunk, False, obs)
            outputs = [np.exp(part) if isinstance(part, np.ndarray) else _run(*part, common) for part in self._outputs]
            for output in outputs:
                if not math.isfinite(np.add.reduce(output, None)):
                    return None  # frameworks treat NaN differently in activations and choices, and raise errors
            return self._way.finish(self._framework, outputs, mask)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a copied algorithm has other memory."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return type(None), ()

    def _steps(self, layers: Sequence[Layer]) -> "list[_Step]":
        view, is_turned = self._framework.view, self._framework.is_turned
        weights = [view(layer.weight) for layer in layers]
        return [
            (weight.T if is_turned else weight, view(layer.bias), _activation(layer))
            for layer, weight in zip(layers, weights, strict=True)
        ]


_Activation = Callable[[NDArray[Any]], NDArray[Any]] | None
_Step = tuple[NDArray[Any], NDArray[Any], _Activation]


def _activation(layer: Layer) -> _Activation:
    return (
        partial(policy._elu, alpha=layer.alpha) if layer.activation == "elu" else policy._activation(layer.activation)
    )


def _run(steps: Sequence[_Step], is_flat: bool, values: NDArray[Any]) -> NDArray[Any]:
    for weight, bias, activation in steps:
        values = np.dot(values, weight)
        values += bias
        if activation is not None:
            values = activation(values)
    return values[:, 0] if is_flat else values


# Distributions of actions


def _choices(framework: Framework, logits: NDArray[Any], sizes: Sequence[int] | None, mask: NDArray[Any] | None) -> Any:
    """Return the distribution of choices; None if the logits do not fit, for which the framework raises an error."""
    if logits.ndim != 2:
        return None
    if mask is not None:
        if mask.shape != logits.shape:
            return None
        logits = np.where(mask, logits, logits.dtype.type(framework.impossible(logits.dtype)))
    if sizes is None:
        return _Categorical(framework, logits)
    if sum(sizes) != logits.shape[1]:
        return None
    edges = itertools.pairwise(itertools.accumulate(sizes, initial=0))
    return _MultiCategorical([_Categorical(framework, logits[:, low:high]) for low, high in edges])


def _numbers(framework: Framework, mean: NDArray[Any], std: NDArray[Any]) -> Any:
    """Return the distribution of numbers; None if the deviations do not fit: the framework raises an error."""
    fits = mean.ndim == 2 and (not std.ndim or std.shape[-1] in (1, mean.shape[1]))
    return _Gaussian(framework, mean, std) if fits else None


class _Categorical:
    """A categorical distribution, with the results of `CategoricalDistribution`."""

    def __init__(self, framework: Framework, logits: NDArray[Any]) -> None:
        self._framework, self.numbers = framework, logits

    @cached_property
    def _log_probabilities(self) -> NDArray[Any]:
        shifted = self.numbers - np.maximum.reduce(self.numbers, 1, keepdims=True)
        shifted -= np.log(np.add.reduce(np.exp(shifted), 1, keepdims=True))
        return shifted

    def sample(self) -> NDArray[Any]:
        return self._framework.choose(self.numbers, self._log_probabilities)

    def mode(self) -> NDArray[Any]:
        return np.asarray(self.numbers.argmax(1))

    def entropy(self) -> NDArray[Any]:
        return np.asarray(-np.add.reduce(np.exp(self._log_probabilities) * self._log_probabilities, 1))

    def logp(self, actions: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self._log_probabilities[np.arange(len(actions)), actions])


class _MultiCategorical:
    """Several independent choices, with the results of `MultiCategoricalDistribution`."""

    def __init__(self, parts: Sequence[_Categorical]) -> None:
        self._parts = parts

    def sample(self) -> NDArray[Any]:
        return np.stack([part.sample() for part in self._parts], 1)

    def mode(self) -> NDArray[Any]:
        return np.stack([part.mode() for part in self._parts], 1)

    def entropy(self) -> NDArray[Any]:
        return np.asarray(sum(part.entropy() for part in self._parts))

    def logp(self, actions: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(sum(part.logp(choice) for part, choice in zip(self._parts, actions.T, strict=True)))


class _Gaussian:
    """Independent Gaussians, with the results of `DiagGaussianDistribution`."""

    def __init__(self, framework: Framework, mean: NDArray[Any], std: NDArray[Any]) -> None:
        self._framework, self._mean, self._std, self._log_std = framework, mean, std, np.log(std)

    @property
    def numbers(self) -> NDArray[Any]:
        return np.concatenate([self._mean, np.broadcast_to(self._log_std, self._mean.shape)], 1)

    def sample(self) -> NDArray[Any]:
        return np.asarray(self._mean + self._std * self._framework.normal(self._mean))

    def mode(self) -> NDArray[Any]:
        return self._mean

    def entropy(self) -> NDArray[Any]:
        each = np.broadcast_to(self._log_std + (0.5 + _HALF_LOG_2PI), self._mean.shape)
        return np.asarray(np.add.reduce(each, 1))

    def logp(self, actions: NDArray[Any]) -> NDArray[Any]:
        scaled = (actions - self._mean) / self._std
        return np.asarray(-np.add.reduce(0.5 * scaled * scaled + self._log_std + _HALF_LOG_2PI, 1))
