"""Import of agents of other programs: checkpoints of PARL 2.x, and zip files of Stable-Baselines3.

    restore(agent, "model.ckpt")                                 PARL 2.x, into an agent with a model of the same layers
    import_run("model.zip", "CartPole-v1", folder)               Stable-Baselines3: what `parl import` does
    import_run("model.ckpt", "CartPole-v1", folder, algorithm="DQN")   PARL 2.x, for a model like that of its examples

`import_run` writes a folder like that of `parl train`: `parl evaluate`, `play` and `export` take it. The weights are
those of `parl.networks.for_spaces`: chains of layers are copied into the corresponding chains, in the order of the
file. A file with an unused array raises an error. Targets are copies of the trained networks, and optimizers start from
their initial state. Files are read as data (`parl_core._foreign_weights`); no code that they name is run.

Stable-Baselines3's Gaussian policies act in the units of the environment, ours in [-1, 1]: the last layer is divided by
the width of the action space, so that actions are the same.
"""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core import backends
from parl_core._foreign_weights import ForeignWeights, read_statistics, read_weights
from parl_core._pipeline import box
from parl_core.env.normalize import wrap_rms
from parl_core.errors import CheckpointError, HyperparameterError, WeightsMismatchError
from parl_core.space_networks import Kind
from parl_core.stats import RunningMeanStd
from parl_core.training.trained import Trained, folder_of_module, model_kind

__all__ = ["Imported", "import_run", "restore"]

_PARL_ALGORITHMS = ("PolicyGradient", "DQN", "DDQN", "PPO", "A2C", "DDPG", "TD3", "SAC", "OAC", "CQL")
_ACTIVATIONS = {
    "ReLU": "relu",
    "Tanh": "tanh",
    "ELU": "elu",
    "LeakyReLU": "leaky_relu",
    "SiLU": "silu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
}


class Imported(NamedTuple):
    """The result of an import.

    Attributes:
        folder: The folder with `agent.json` and `best.ckpt`.
        algorithm: Name of its class.
        parameters: Number of imported weights.
    """

    folder: Path
    algorithm: str
    parameters: int


class _Dense(NamedTuple):
    """A layer of a file: weight `[out, in]` (of images `[out, in, height, width]`) and bias `[out]`."""

    weight: NDArray[Any]
    bias: NDArray[Any]


class _Network(NamedTuple):
    """The layers of a file in the form of our networks.

    Attributes:
        algorithm: Name of our class.
        chains: Layers by the prefixes of their names in our model.
        activation: The activation after each hidden layer.
        log_std: The log standard deviations of a Gaussian policy.
        in_units: True if numbers of actions are in the environment's units instead of [-1, 1].
        one_logit_a_bit: True if each bit of a MultiBinary space has one logit instead of two.
        arguments: The arguments of the algorithm's constructor.
        options: The options of `for_spaces`.
    """

    algorithm: str
    chains: Mapping[tuple[str, ...], Sequence[_Dense]]
    activation: str
    log_std: NDArray[Any] | None = None
    in_units: bool = False
    one_logit_a_bit: bool = False
    arguments: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}

    @property
    def hidden(self) -> tuple[int, ...] | None:
        """The sizes of the hidden layers of each chain; None for observations with images."""
        if any(layer.weight.ndim == 4 for chain in self.chains.values() for layer in chain):
            return None
        if "shared" in self.options:
            return tuple(len(layer.bias) for layer in self.chains["trunk.",])
        sizes = {tuple(len(layer.bias) for layer in chain[:-1]) for chain in self.chains.values()}
        if len(sizes) > 1:
            raise CheckpointError(
                f"its networks have hidden layers of {' and '.join(map(str, sorted(sizes)))} units, but here all "
                "networks of an agent have the same sizes"
            )
        return sizes.pop()


def restore(agent: Any, path: str | os.PathLike[str], model: Any = None) -> None:
    """Load the weights of a checkpoint of PARL 2.x, of either framework, into an agent's model, on either backend.

    The model must have layers of the same names and sizes as the saved one, as in a program of PARL 2.x with unchanged
    models. Targets become copies of the model.

    Args:
        agent: A `parl.Agent`.
        path: A file of PARL 2.x's `agent.save`.
        model: The part of the agent's model that was saved, such as `agent.alg.model.actor_model`, as given to PARL
            2.x's `agent.save(path, model)`; default the agent's model.

    Raises:
        CheckpointError: There is no such file, it is damaged or of another kind, or it does not fit; the agent is
            unchanged.
    """
    file = Path(path).expanduser()
    weights = read_weights(file)
    if weights.settings is not None:
        command = f"parl import {quote(str(file))} ENV"
        raise CheckpointError(f"{file} is a file of Stable-Baselines3: use import_run, or `{command}`")
    if model is None:
        model = agent.alg.model
    arrays, portable = weights.arrays, True
    if weights.framework == "paddle":
        portable = agent.BACKEND != "paddle"
        if portable:
            tables = {
                f"{name}.weight" for name, layer in model._all_layers().items() if "Embedding" in str(type(layer))
            }
            arrays = {
                name: array.T if array.ndim == 2 and name.endswith("weight") and name not in tables else array
                for name, array in arrays.items()
            }
    try:
        model.set_weights(arrays, portable=portable)
    except WeightsMismatchError as error:
        raise CheckpointError(f"{file} does not fit: {error}") from error
    _copy_into_target(agent.alg)


def import_run(
    file: str | os.PathLike[str],
    env: str,
    folder: str | os.PathLike[str],
    *,
    algorithm: str = "",
    activation: str = "",
    normalization: str | os.PathLike[str] | None = None,
    module: str = "",
    seed: int = 0,
) -> Imported:
    """Write a folder with the agent of a file, on the current backend; the file may be of the other one.

    Args:
        file: A zip file of Stable-Baselines3 (DQN, PPO, A2C, SAC, TD3, DDPG), or a checkpoint of PARL 2.x.
        env: Id of the environment that the agent acts in.
        folder: The folder of the run; a new one, or an empty one.
        algorithm: Name of the class; needed for PARL 2.x, whose files do not contain it.
        activation: The activation after each hidden layer of a model of PARL 2.x; default: tanh for PPO, A2C and
            PolicyGradient, relu for the others, as in its examples.
        normalization: A file of Stable-Baselines3's `VecNormalize.save`, by which observations were normalised.
        module: The module that registers the environment, imported first.
        seed: The seed of sampling.

    Raises:
        CheckpointError: A file is missing, damaged or of another kind, or holds a network that has no counterpart here.
        HyperparameterError: The algorithm is missing or another one, or the environment does not suit it.
        FileExistsError: The folder is not empty.
    """
    source, target = Path(file).expanduser(), Path(folder).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} exists already: give a new folder")
    weights = read_weights(source)
    try:
        found = _of_parl(weights, algorithm, activation) if weights.settings is None else _of_sb3(weights)
        if algorithm and algorithm != found.algorithm:
            raise HyperparameterError(f"it was trained by {found.algorithm}, not by {algorithm}")
        options = {"activation": found.activation, **found.options}
        trained = Trained(
            found.algorithm,
            env,
            backends.current().name,
            found.hidden,
            dict(found.arguments),
            seed,
            options,
            module,
            normalization is not None,
            module_folder=folder_of_module(env, module),
        )
        agent = trained.make_agent()
        _fill(agent, found, trained)
    except (CheckpointError, WeightsMismatchError) as error:
        raise CheckpointError(f"{source} cannot be imported for {env}: {error}") from error
    normalizing = None if normalization is None else _normalizing(trained, Path(normalization).expanduser())
    target.mkdir(parents=True, exist_ok=True)
    trained.write(target)
    for name in (trained.FILE, trained.LAST):
        agent.save(target / name, **({} if normalizing is None else {"normalization": normalizing}))
    return Imported(target, found.algorithm, sum(array.size for array in agent.alg.model.get_weights().values()))


def _copy_into_target(algorithm: Any) -> None:
    if hasattr(algorithm, "target_model"):
        algorithm.model.sync_weights_to(algorithm.target_model)


def _fill(agent: Any, found: _Network, trained: Trained) -> None:
    """Put the layers of a file into an agent's model.

    Raises:
        CheckpointError: The number of layers differs from the model's.
        WeightsMismatchError: Shapes differ.
    """
    model = agent.alg.model
    names = list(model._named_tensors())
    arrays: dict[str, NDArray[Any]] = {}
    for prefixes, chain in found.chains.items():
        wanted = [name for name in names if name.startswith(prefixes) and name.endswith(".weight")]
        if len(wanted) != len(chain):
            raise CheckpointError(
                f"it has {len(chain)} layers where {type(model).__name__} has {len(wanted)} ({', '.join(wanted)})"
            )
        for name, layer in zip(wanted, chain, strict=True):
            arrays[name], arrays[f"{name.removesuffix('weight')}bias"] = layer
    if found.log_std is not None:
        arrays["log_std"] = found.log_std.reshape(-1)
    if "policy_head.weight" in arrays:
        env = trained.make_env()
        space = env.action_space
        env.close()
        if found.in_units:
            _to_unit_box(arrays, space)
        elif found.one_logit_a_bit and isinstance(space, gymnasium.spaces.MultiBinary):
            _to_choices(arrays)
    model.set_weights(arrays, portable=True)
    _copy_into_target(agent.alg)


def _to_unit_box(arrays: dict[str, NDArray[Any]], space: Any) -> None:
    """Rescale a Gaussian in the units of a space to [-1, 1].

    Raises:
        CheckpointError: The number of dimensions differs.
    """
    if not isinstance(space, gymnasium.spaces.Box) or math.prod(space.shape) != len(arrays["log_std"]):
        raise CheckpointError(f"its actions are {len(arrays['log_std'])} numbers, those of the environment {space}")
    mapping = box(space, in_unit_box=True)
    scale, shift = (mapping[name].reshape(-1) for name in ("scale", "shift"))
    arrays["policy_head.weight"] = (arrays["policy_head.weight"] / scale[:, None]).astype(np.float32)
    arrays["policy_head.bias"] = ((arrays["policy_head.bias"] - shift) / scale).astype(np.float32)
    arrays["log_std"] = (arrays["log_std"] - np.log(scale)).astype(np.float32)


def _to_choices(arrays: dict[str, NDArray[Any]]) -> None:
    """Add the logit of the first choice to each bit of a MultiBinary space; Stable-Baselines3 has only the second."""
    for name in ("policy_head.weight", "policy_head.bias"):
        array = arrays[name]
        arrays[name] = np.stack([np.zeros_like(array), array], 1).reshape(2 * len(array), *array.shape[1:])


def _normalizing(trained: Trained, file: Path) -> Any:
    """Return an environment with the statistics of a VecNormalize.

    Raises:
        CheckpointError: It does not normalise observations, or in an unsupported way.
    """
    saved = read_statistics(file)
    rms = saved.get("obs_rms")
    if not saved.get("norm_obs", True) or not isinstance(rms, Mapping) or "mean" not in rms:
        raise CheckpointError(f"{file} does not normalise observations that are one array")
    if (saved["clip_obs"], saved["epsilon"]) != (10.0, 1e-8):
        raise CheckpointError(
            f"{file} clips observations at {saved['clip_obs']} and has an epsilon of {saved['epsilon']}; here both are "
            "10 and 1e-8"
        )
    env = wrap_rms(trained.make_env(), None, test=True)
    shape = env.observation_space.shape
    if np.shape(rms["mean"]) != shape:
        raise CheckpointError(f"{file} has statistics of shape {np.shape(rms['mean'])}, observations have {shape}")
    statistics = RunningMeanStd(shape)
    statistics.mean, statistics.var = (np.asarray(rms[name], np.float64) for name in ("mean", "var"))
    statistics.count = float(rms["count"])
    env.set_ob_rms(statistics)
    return env


# Stable-Baselines3


def _of_sb3(weights: ForeignWeights) -> _Network:
    """Return the layers of a file of Stable-Baselines3.

    Raises:
        CheckpointError: Its policy has no counterpart here.
    """
    settings, left = dict(weights.settings or {}), _UnplacedArrays(weights.arrays)
    arguments = {"gamma": float(settings["gamma"])} if isinstance(settings.get("gamma"), (int, float)) else {}
    left.drop("q_net_target.", "actor_target.", "critic_target.")
    if settings.get("use_sde"):  # its actor of SAC has the names of TD3's
        raise CheckpointError("its noise depends on the state (use_sde=True), which is not supported")
    options = settings.get("policy_kwargs")
    if isinstance(options, Mapping) and options.get("normalize_images") is False and left.has_images():
        raise CheckpointError(
            "it does not scale images (normalize_images=False), but networks here divide them by their bound"
        )
    if "q_net.q_net.0.weight" in weights.arrays:
        chain = [*left.images("q_net.features_extractor."), *left.chain("q_net.q_net.")]
        found = _Network("DQN", {("trunk.", "head."): chain}, _activation(settings, "relu"), arguments=arguments)
    elif "action_net.weight" in weights.arrays:
        found = _actor_critic_of_sb3(settings, left)  # here the discount is a setting of the rollout
    elif "actor.mu.weight" in weights.arrays:
        mean, log_std = left.layer("actor.mu"), left.layer("actor.log_std")
        both = _Dense(np.concatenate([mean.weight, log_std.weight]), np.concatenate([mean.bias, log_std.bias]))
        found = _Network(
            "SAC",
            {("actor_model.",): [*left.chain("actor.latent_pi."), both], **left.critics(2, "SAC")},
            _activation(settings, "relu"),
            arguments=arguments,
        )
    elif "actor.mu.0.weight" in weights.arrays:
        twin = "critic.qf1.0.weight" in weights.arrays
        name = "TD3" if twin else "DDPG"
        found = _Network(
            name,
            {("actor_model.",): left.chain("actor.mu."), **left.critics(2 if twin else 1, name)},
            _activation(settings, "relu"),
            arguments=arguments,
        )
    else:
        raise CheckpointError(
            f"it has a policy of {', '.join(list(weights.arrays)[:3])}, …; those of DQN, PPO, A2C, SAC, TD3 and DDPG "
            "can be imported"
        )
    left.require_nothing("Stable-Baselines3's " + found.algorithm)
    return found


def _actor_critic_of_sb3(settings: Mapping[str, Any], left: "_UnplacedArrays") -> _Network:
    algorithm = "PPO" if "clip_range" in settings else "A2C"
    policy, value = left.layer("action_net"), left.layer("value_net")
    if not (left.drop_copies("features_extractor.", "pi_") and left.drop_copies("features_extractor.", "vf_")):
        raise CheckpointError("policy and value have separate layers for images (share_features_extractor=False)")
    images = left.images("features_extractor.")
    if images:
        chains: Any = {("trunk.",): images, ("policy_head.",): [policy], ("value_head.",): [value]}
    else:
        chains = {
            ("policy_trunk.", "policy_head."): [*left.chain("mlp_extractor.policy_net."), policy],
            ("value_trunk.", "value_head."): [*left.chain("mlp_extractor.value_net."), value],
        }
    log_std = left.take("log_std")
    return _Network(
        algorithm, chains, _activation(settings, "tanh"), log_std, in_units=log_std is not None, one_logit_a_bit=True
    )


def _activation(settings: Mapping[str, Any], default: str) -> str:
    """Return our name of an activation, such as `<class 'torch.nn.modules.activation.ReLU'>` in `policy_kwargs`.

    Raises:
        CheckpointError: It is unknown.
    """
    options = settings.get("policy_kwargs")
    given = options.get("activation_fn") if isinstance(options, Mapping) else None
    if given is None:
        return default
    name = re.sub(r"^<class '.*\.(\w+)'>$", r"\1", str(given))
    if name not in _ACTIVATIONS:
        raise CheckpointError(f"its activation is {given}; known are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


class _UnplacedArrays:
    """The arrays of a file that have not been assigned yet.

    Args:
        arrays: The arrays of the file.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = dict(arrays)

    def take(self, name: str) -> NDArray[Any] | None:
        return self._arrays.pop(name, None)

    def drop(self, *prefixes: str) -> None:
        self._arrays = {name: array for name, array in self._arrays.items() if not name.startswith(prefixes)}

    def drop_copies(self, prefix: str, before: str) -> bool:
        """Drop the arrays whose names begin with `before` and a prefix; return whether they equal the prefix's."""
        found = {name: array for name, array in self._arrays.items() if name.startswith(f"{before}{prefix}")}
        self.drop(f"{before}{prefix}")
        others = ((array, self._arrays.get(name.removeprefix(before))) for name, array in found.items())
        return all(other is not None and np.array_equal(array, other) for array, other in others)

    def has_images(self) -> bool:
        """Return whether there are layers for images."""
        return any(array.ndim == 4 for array in self._arrays.values())

    def layer(self, name: str) -> _Dense:
        """Return the layer with a name.

        Raises:
            CheckpointError: Its weight or its bias is missing.
        """
        found = self.take(f"{name}.weight"), self.take(f"{name}.bias")
        if found[0] is None or found[1] is None:
            raise CheckpointError(f"{name} has no {'weight' if found[0] is None else 'bias'}")
        return _Dense(found[0], found[1])

    def chain(self, prefix: str) -> list[_Dense]:
        """Return the numbered layers after a prefix, in the order of their numbers."""
        numbers = [
            int(number)
            for name in self._arrays
            if name.startswith(prefix)
            for number in [name.removeprefix(prefix).removesuffix(".weight")]
            if number.isdigit()
        ]
        return [self.layer(f"{prefix}{number}") for number in sorted(numbers)]

    def images(self, prefix: str) -> list[_Dense]:
        """Return the layers of Stable-Baselines3's NatureCNN; none if there is none."""
        return [*self.chain(f"{prefix}cnn."), *self.chain(f"{prefix}linear.")]

    def critics(self, count: int, algorithm: str) -> dict[tuple[str, ...], list[_Dense]]:
        """Return the layers of each critic.

        Raises:
            CheckpointError: There are fewer.
        """
        chains: dict[tuple[str, ...], list[_Dense]]
        chains = {(f"critic_model.{i}.",): self.chain(f"critic.qf{i}.") for i in range(count)}
        found = sum(bool(chain) for chain in chains.values())
        if found < count:
            raise CheckpointError(f"it has {found} critic{'s' * (found != 1)} (n_critics), and {algorithm} has {count}")
        return chains

    def require_nothing(self, of: str) -> None:
        """Reject a file with unassigned arrays.

        Raises:
            CheckpointError: There are some; the message names them.
        """
        if self._arrays:
            raise CheckpointError(f"it has {', '.join(list(self._arrays)[:4])}, which {of} cannot take")


# PARL 2.x


def _of_parl(weights: ForeignWeights, algorithm: str, activation: str) -> _Network:
    """Return the layers of a checkpoint of PARL 2.x, of a model like those of its examples.

    Raises:
        HyperparameterError: The algorithm is missing, or its models have no known form.
        CheckpointError: The layers are those of another model.
    """
    if algorithm not in _PARL_ALGORITHMS:
        raise HyperparameterError(
            f"a checkpoint of PARL 2.x does not name its algorithm: give --algorithm, one of "
            f"{', '.join(_PARL_ALGORITHMS)}, got {algorithm or 'none'}"
        )
    layers, others = _layers_of(weights)
    stds = {name: array for name, array in others.items() if "std" in name}
    if len(stds) < len(others):
        raise CheckpointError(f"it has {', '.join(set(others) - set(stds))} {_OWN_MODEL}")
    log_std = next(iter(stds.values()), None)
    kind = model_kind(algorithm)
    default = "tanh" if kind in ("actor-critic", "policy") else "relu"
    chains, options = _chains_of(kind, layers)
    return _Network(algorithm, chains, activation or default, log_std, options=options)


_OWN_MODEL = (
    "and is not a chain of layers as in PARL's examples: write its model, and fill it by "
    "parl_core.importing.restore(agent, path)"
)
_VALUE = re.compile(r"(value|critic|(^|[._])vf?\d*([._]|$)|_v\d)")
_POLICY = re.compile(r"(policy|actor|pi|mean|logits)")


def _layers_of(weights: ForeignWeights) -> tuple[dict[str, _Dense], dict[str, NDArray[Any]]]:
    """Return layers by name, in the file's order, and the other arrays.

    Raises:
        CheckpointError: A layer is not fully connected.
    """
    layers, others = {}, dict(weights.arrays)
    for name, array in weights.arrays.items():
        for weight, bias in ((".weight", ".bias"), (".w_0", ".b_0")):  # the second name is PARL 1.x's
            stem = name.removesuffix(weight)
            if stem == name or f"{stem}{bias}" not in others:
                continue
            if array.ndim != 2:
                raise CheckpointError(f"{name} has the shape {list(array.shape)} {_OWN_MODEL}")
            del others[name]
            layers[stem] = _Dense(array.T if weights.framework == "paddle" else array, others.pop(f"{stem}{bias}"))
    if not layers:
        raise CheckpointError("it has no layers")
    return layers, others


def _chains_of(
    kind: Kind | None, layers: Mapping[str, _Dense]
) -> tuple[dict[tuple[str, ...], Sequence[_Dense]], dict[str, Any]]:
    """Return chains in the form of `_Network`, and options of `for_spaces`."""
    every = list(layers.values())
    if kind in ("q", "policy"):
        return {("trunk.", "head."): _chained(every)}, {}
    if kind == "actor-critic":
        value = [layer for name, layer in layers.items() if _VALUE.search(name)]
        policy = [layer for name, layer in layers.items() if not _VALUE.search(name) and _POLICY.search(name)]
        trunk = [layer for name, layer in layers.items() if not _VALUE.search(name) and not _POLICY.search(name)]
        if not value or not policy:
            raise CheckpointError(f"it is not clear which of {', '.join(layers)} are policy and value {_OWN_MODEL}")
        if trunk:
            _chained([*trunk, *value])
            _chained([*trunk, *policy])
            return {("trunk.",): trunk, ("policy_head.",): policy, ("value_head.",): value}, {"shared": True}
        separate = {("policy_trunk.", "policy_head."): policy, ("value_trunk.", "value_head."): value}
        return {prefixes: _chained(chain) for prefixes, chain in separate.items()}, {}
    actor = [layer for name, layer in layers.items() if name.startswith("actor")]
    critic = [layer for name, layer in layers.items() if name.startswith("critic")]
    if not actor or not critic or len(actor) + len(critic) < len(layers):
        raise CheckpointError(f"it is not clear which of {', '.join(layers)} are actor and critic {_OWN_MODEL}")
    if kind == "squashed":
        *actor, mean, log_std = actor
        if mean.weight.shape != log_std.weight.shape:
            raise CheckpointError(
                f"the last two layers of its actor are not the mean and the logarithm of a deviation {_OWN_MODEL}"
            )
        actor.append(_Dense(np.concatenate([mean.weight, log_std.weight]), np.concatenate([mean.bias, log_std.bias])))
    count = 1 if kind == "deterministic" else 2
    each = len(critic) // count
    chains: dict[tuple[str, ...], Sequence[_Dense]] = {("actor_model.",): _chained(actor)}
    for i in range(count):
        chains[(f"critic_model.{i}.",)] = _chained(critic[i * each : (i + 1) * each])
    return chains, {}


def _chained(layers: Iterable[_Dense]) -> list[_Dense]:
    """Return layers after checking that each takes the output of the previous one.

    Raises:
        CheckpointError: Sizes do not match.
    """
    found = list(layers)
    for before, after in pairwise(found):
        if after.weight.shape[1] != before.weight.shape[0]:
            raise CheckpointError(
                f"a layer of {before.weight.shape[0]} units is followed by one of {after.weight.shape[1]} inputs "
                f"{_OWN_MODEL}"
            )
    return found
