"""The backends (torch, paddle) that the facade's names come from, found by entry point and loaded at first use.

The order of choice: the environment variable `PARL_BACKEND`, else `set_backend(name)`, else the only one installed,
else paddle before torch with one log line. A distribution offers a backend as an entry point of the group
`parl.backends`.
"""

import logging
from importlib import import_module, metadata
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, cast

from parl_core import _config, seeding
from parl_core.errors import BackendNotInstalled, UnknownBackend

__all__ = ["Backend", "Learners", "current", "installed", "join_learners", "load", "set_backend"]


_GROUP = "parl.backends"
_KNOWN = ("paddle", "torch")  # in the order of preference when several are installed
_log = logging.getLogger("parl")


class Backend:
    """Base class of backends: a package with these modules, each imported at first use.

    <package>.backend          the subclass with the backend's `name`, which must not import the framework
    <package>.model            Model
    <package>.algorithm        Algorithm
    <package>.agent            Agent
    <package>.layers, .optim, .networks, .transformer, .algorithms, .export, .data_parallel, .random_state
    """

    name: ClassVar[str]
    """The name users choose it by, such as `torch`."""

    @property
    def Model(self) -> type[Any]:
        """The framework's module class with PARL's methods."""
        return cast(type[Any], self._module("model").Model)

    @property
    def Algorithm(self) -> type[Any]:
        """Base of all algorithms of this backend."""
        return cast(type[Any], self._module("algorithm").Algorithm)

    @property
    def Agent(self) -> type[Any]:
        """Numpy in, numpy out, around one algorithm."""
        return cast(type[Any], self._module("agent").Agent)

    @property
    def layers(self) -> ModuleType:
        """Lazily shaped layers, `parl.layers`."""
        return self._module("layers")

    @property
    def optim(self) -> ModuleType:
        """Optimizers whose state is saved with an agent, `parl.optim`."""
        return self._module("optim")

    @property
    def networks(self) -> ModuleType:
        """Ready-made models for the standard algorithms."""
        return self._module("networks")

    @property
    def transformer(self) -> ModuleType:
        """The module of `TrajectoryTransformer`, the network of `DecisionTransformer`."""
        return self._module("transformer")

    @property
    def algorithms(self) -> ModuleType:
        """The module whose `__all__` lists the algorithms."""
        return self._module("algorithms")

    @property
    def export(self) -> ModuleType:
        """The module whose `formats()` returns the formats in which this backend exports agents."""
        return self._module("export")

    @property
    def data_parallel(self) -> ModuleType:
        """The module whose `join()` makes this process one of several that learn together."""
        return self._module("data_parallel")

    @property
    def random_state(self) -> ModuleType:
        """The module that saves and restores the framework's generators: `get_random_state()`, `set_random_state()`."""
        return self._module("random_state")

    def _module(self, name: str) -> ModuleType:
        return import_module(f"{type(self).__module__.rpartition('.')[0]}.{name}")


class _Choice:
    """The choice of `set_backend`, the preference without it, and the loaded backends."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.preferred: str | None = None
        self.loaded: dict[str, Backend] = {}


_choice = _Choice()


def installed() -> tuple[str, ...]:
    """Return the names of the backends whose distributions are installed, the preferred one first."""
    names = {point.name for point in metadata.entry_points(group=_GROUP)}
    return tuple(name for name in _KNOWN if name in names) + tuple(sorted(names.difference(_KNOWN)))


def set_backend(name: str) -> None:
    """Choose the backend that `parl.Model`, `parl.algorithms` and the like come from.

    Classes that a program has already taken from another backend do not change. `PARL_BACKEND` takes precedence; a log
    line reports it.

    Args:
        name: `torch` or `paddle`, or the name of any installed entry point of the group `parl.backends`.

    Raises:
        UnknownBackend: No known distribution provides it.
        BackendNotInstalled: It is known, but its distribution is not installed.
    """
    _require(name)
    forced = _config.backend_choice()
    if forced is not None and forced != name:
        _log.warning("parl: PARL_BACKEND=%s takes precedence over set_backend(%r)", forced, name)
    _choice.name = name


def current() -> Backend:
    """Return the backend in use, loaded at the first call.

    Raises:
        UnknownBackend: `PARL_BACKEND` names an unknown backend.
        BackendNotInstalled: The chosen backend, or every backend, is missing; the message is the `pip install` line.
    """
    name = _config.backend_choice() or _choice.name or _choice.preferred
    if name is None:
        # Cached: a look-up of installed packages takes a millisecond, and each use of `parl.layers` needs it.
        name = _choice.preferred = _preferred()
    return load(name)


def load(name: str) -> Backend:
    """Return the backend called `name`, loaded once.

    Raises:
        UnknownBackend: No known distribution provides it.
        BackendNotInstalled: Its distribution is not installed.
    """
    if name not in _choice.loaded:
        _require(name)
        (point, *_) = metadata.entry_points(group=_GROUP, name=name)
        backend = _choice.loaded[name] = point.load()()
        seeding.seed_on_load(name, lambda: backend.Model)  # the first use of `Model` imports the framework
    return _choice.loaded[name]


def _preferred() -> str:
    names = installed()
    if not names:
        raise BackendNotInstalled(
            "no backend is installed; choose one:\n    pip install parl-torch\n    pip install parl-paddle"
        )
    if len(names) > 1:
        _log.warning(
            "parl: %s are installed, using %s; choose with PARL_BACKEND=%s or parl.set_backend(%r)",
            " and ".join(names),
            names[0],
            names[1],
            names[1],
        )
    return names[0]


def _require(name: str) -> None:
    names = installed()
    if name in names:
        return
    if name in _KNOWN:
        raise BackendNotInstalled(f"the {name} backend is not installed:\n    pip install parl-{name}")
    raise UnknownBackend(f"unknown backend {name!r}; installed: {', '.join(names) or 'none'}; known: torch, paddle")


class Learners(NamedTuple):
    """The position of this process among those that learn together."""

    rank: int
    """Number of this process, counted from 0."""
    size: int
    """Number of processes."""

    @property
    def first(self) -> bool:
        """Return whether this is the process that evaluates, saves and prints."""
        return self.rank == 0


def join_learners() -> Learners:
    """Become one of the processes that a launcher started, so that their updates are those of one large batch.

    The launchers are the frameworks' own: `torchrun --nproc-per-node=2 train.py`, or
    `python -m paddle.distributed.launch --nproc_per_node=2 train.py`. Started without one, the program learns alone and
    unchanged. The backend is that of the facade `parl`.

        learners = training.join_learners()
        training.seed_everything(seed)                   # equal weights everywhere
        agent = make_agent()
        training.seed_everything(seed + learners.rank)   # other actions
        train_on_policy(agent, envs, settings, seed=seed + learners.rank)

    Each process must use batches of the same size and make the same updates; if one ends early, the others wait, so let
    the budget end the loop, or stop all of them at the same update. Evaluate, print and save where `learners.first`.
    """
    joined: Learners = current().data_parallel.join()
    return joined
