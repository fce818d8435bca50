"""Look-up of the facade's names and module paths; errors name the package to install.

Paths of PARL 1.x and 2.x are other names of modules that this project has in another place:

    parl.utils.logger, parl.env.atari_wrappers, ...       modules of parl_core (type checkers read the `.pyi` files)
    parl.algorithms.torch.dqn                             parl_torch.algorithms.dqn; `paddle` likewise
    parl.algorithms.fluid.dqn                             that of the backend in use
    parl.core.torch.model, .algorithm, .agent             parl_torch.model, ...; `paddle` and `fluid` likewise
    parl.remote, .client, .exceptions, ...                parl_remote

Its classes and functions are the same objects under both names, and so is the module, unless PARL 2.x had names in it
that were removed; these raise an error that names the replacement. Nothing is loaded before one of these paths is
imported.
"""

import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

__all__ = [
    "BACKEND",
    "OLD_PACKAGES",
    "SUBMODULES",
    "answer_old_paths",
    "backends",
    "from_remote",
    "names_of",
    "of_old_package",
    "offer_to_joblib",
    "offered",
    "refuse_old_distribution",
    "unknown",
]

BACKEND = ("Agent", "Algorithm", "Model")
SUBMODULES = ("algorithms", "env", "layers", "networks", "optim", "training", "utils")

_PATHS: dict[str, tuple[str, ...]] = {
    "parl.core": (),
    "parl.env.atari_wrappers": ("parl_core.env.atari", "parl_core.env.wrappers"),
    "parl.env.compat_wrappers": ("parl_core.env.compat",),
    "parl.env.continuous_wrappers": ("parl_core.env.wrappers",),
    "parl.env.mujoco_wrappers": ("parl_core.env.normalize", "parl_core.env.wrappers", "parl_core.stats"),
    "parl.env.multiagent_env": ("parl_core.env.multi_agent",),
    "parl.env.vector_env": ("parl_core.env.wrappers",),
    "parl.remote": ("parl_remote",),
    "parl.remote.client": ("parl_remote",),
    "parl.remote.exceptions": ("parl_remote.errors",),
    "parl.remote.remote_decorator": ("parl_remote",),
    "parl.utils.csv_logger": ("parl_core._csv_log",),
    "parl.utils.deprecation": ("parl_core._deprecation",),
    "parl.utils.globvars": ("parl_core._global_config",),
    "parl.utils.logger": ("parl_core.logger",),
    "parl.utils.machine_info": ("parl_core._hosts",),
    "parl.utils.np_utils": ("parl_core._policy_outputs",),
    "parl.utils.replay_memory": ("parl_core.replay",),
    "parl.utils.rl_utils": ("parl_core.returns", "parl_core._policy_outputs"),
    "parl.utils.scheduler": ("parl_core.schedules",),
    "parl.utils.summary": ("parl_core.summary",),
    "parl.utils.tensorboard": ("parl_core.summary",),
    "parl.utils.time_stat": ("parl_core.stats",),
    "parl.utils.utils": ("parl_core.checks",),
    "parl.utils.visualdl": ("parl_core.summary",),
    "parl.utils.window_stat": ("parl_core.stats",),
}
"""The modules of each old path; a path with several modules has the public names of all of them."""

OLD_PACKAGES = ("parl.core", "parl.remote")

_OF_A_BACKEND = re.compile(r"parl\.(algorithms|core)\.(fluid|paddle|torch)")
_OF_CLASSES = {
    "a2c": "A2C",
    "a3c": "A3C",
    "coma": "COMA",
    "cql": "CQL",
    "ddpg": "DDPG",
    "ddqn": "DDQN",
    "dqn": "DQN",
    "dt": "DecisionTransformer",
    "impala": "IMPALA",
    "impala.impala": "IMPALA",
    "iql": "IQL",
    "maddpg": "MADDPG",
    "mappo": "MAPPO",
    "oac": "OAC",
    "policy_gradient": "PolicyGradient",
    "ppo": "PPO",
    "qmix": "QMIX",
    "sac": "SAC",
    "td3": "TD3",
}
"""Modules of algorithms in PARL 1.x and 2.x, with the class whose module replaces each."""
_CORE = {"agent": "agent", "algorithm": "algorithm", "model": "model", "policy_distribution": "distributions"}

_OLD_DISTRIBUTION = re.compile(r"parl-\d.*\.(dist-info|egg-info)", re.IGNORECASE)


def backends() -> ModuleType:
    """Return `parl_core.backends`, which reads the installed entry points and so is not imported with the facade."""
    return import_module("parl_core.backends")


def offered(kind: str, name: str) -> Any:
    """Return the attribute `name` of the module `parl.<kind>`, found in that of the backend in use.

    Raises:
        AttributeError: The backend has none of that name; the message lists those that it has.
    """
    if name == "__all__":  # `from parl.algorithms import *`
        return list(getattr(backends().current(), kind).__all__)
    if name.startswith("__"):  # attributes of the import system, for which no backend is needed
        raise AttributeError(f"module 'parl.{kind}' has no attribute {name!r}")
    backend = backends().current()
    module = getattr(backend, kind)
    if name not in module.__all__:
        other = f"; layers work with the functions of {backend.name} itself, too" if kind == "layers" else ""
        raise AttributeError(
            f"the {backend.name} backend has no {kind.removesuffix('s')} {name!r}{other}; it has "
            + ", ".join(names_of(kind))
        )
    return getattr(module, name)


def names_of(kind: str) -> list[str]:
    """Return the names in `parl.<kind>`, sorted."""
    return sorted(getattr(backends().current(), kind).__all__)


def from_remote(name: str) -> Any:
    """Return the attribute `name` of parl-remote.

    Raises:
        ImportError: parl-remote is not installed; the message is the `pip install` line.
    """
    return getattr(_import_module("parl_remote", f"parl.{name}"), name)


def _import_module(module: str, wanted: str = "parl.remote") -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "parl_remote":
            raise
        raise ImportError(f"{wanted} needs parl-remote:\n    pip install parl-remote", name="parl_remote") from None


def unknown(name: str) -> AttributeError:
    """Return the error for a name that `parl` does not have, with the replacement of a name of PARL 2.x."""
    instead = import_module("parl_core._migration").replacement_of(f"parl.{name}")
    return AttributeError(f"module 'parl' has no attribute {name!r}" + (f": {instead}" if instead else ""))


def of_old_package(package: str, name: str) -> Any:
    """Return a module that PARL 2.x loads with its package, such as `parl.utils.rl_utils` after `import parl.utils`.

    Raises:
        AttributeError: The name is unknown; for a name of PARL 2.x, the message has the replacement, and `from package
            import name` raises it as `ImportError`.
    """
    path, missing = f"{package}.{name}", f"module {package!r} has no attribute {name!r}"
    if name.startswith("__"):
        raise AttributeError(missing)
    try:
        return import_module(path)
    except ImportError as error:
        if error.name != path:
            raise
        raise AttributeError(missing if str(error).startswith("No module named") else str(error)) from None


def _removed_name_error(name: str, path: str, instead: str) -> ImportError:
    return ImportError(f"no {name!r} in {path!r}, which PARL 2.x had: {instead}", name=path)


def refuse_old_distribution() -> None:
    """Raise an error if PARL 1.x or 2.x is also installed, because both own the import name `parl`.

    Raises:
        ImportError: It is; the message has the two commands that repair the installation.
    """
    for folder in sys.path:
        try:
            entries = os.listdir(folder or os.curdir)
        except OSError:
            continue
        for entry in entries:
            if _OLD_DISTRIBUTION.fullmatch(entry):
                raise ImportError(
                    f"the old distribution {entry.rsplit('.', 1)[0]!r} in {folder!r} owns the import name 'parl' too;"
                    " remove it and put this one's files back:\n"
                    "    pip uninstall parl\n"
                    "    pip install --force-reinstall --no-deps parl-core    # and parl-remote, if you use it"
                )


def answer_old_paths() -> None:
    """Make `import` find the old paths after all other modules; repeated calls do nothing."""
    if not any(isinstance(finder, _OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(_OldPaths())


class _OldPaths(MetaPathFinder, Loader):
    """Import hook that finds the modules of old paths, and replaces them by their present modules."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - what the import system passes, here as below
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname not in _PATHS and not _OF_A_BACKEND.fullmatch(fullname):
            if fullname.startswith("parl."):
                _refuse_removed_path(fullname)
            return None
        is_package = fullname in OLD_PACKAGES or _OF_A_BACKEND.fullmatch(fullname) is not None
        return ModuleSpec(fullname, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        path = module.__name__
        modules = [_import_module(one) for one in _PATHS.get(path, ())]
        if found := _OF_A_BACKEND.fullmatch(path):
            _alias_backend(module, *found.groups())
            return
        if len(modules) == 1 and path not in OLD_PACKAGES:
            if import_module("parl_core._migration").has_removed_names(path):
                _fill(module, modules[0])
            else:
                sys.modules[path] = modules[0]
            return
        for one in modules:
            vars(module).update({name: getattr(one, name) for name in one.__all__})
        if path in OLD_PACKAGES:
            vars(module)["__getattr__"] = partial(of_old_package, path)
        else:
            vars(module)["__getattr__"] = partial(_found_or_replacement, path, None)


def _fill(module: ModuleType, found: ModuleType) -> None:
    """Give a module of PARL 2.x the names of a present one, and answers for those that are gone."""
    vars(module).update({name: value for name, value in vars(found).items() if not name.startswith("__")})
    vars(module).update(__all__=found.__all__, __getattr__=partial(_found_or_replacement, module.__name__, found))


def _below(path: str, found: ModuleType) -> ModuleType:
    """Return the module of a path below that of a backend: the present one, or one that answers for what is gone."""
    if not import_module("parl_core._migration").has_removed_names(path):
        return found
    module = module_from_spec(ModuleSpec(path, _OldPaths(), is_package=True))
    _fill(module, found)
    return module


def _found_or_replacement(path: str, found: ModuleType | None, name: str) -> Any:
    _refuse_removed_path(f"{path}.{name}")
    if found is None or not hasattr(found, name):
        raise AttributeError(f"module {path!r} has no attribute {name!r}")
    return getattr(found, name)


def _refuse_removed_path(path: str) -> None:
    """Raise `ImportError` for a module, or a name in a package, of PARL 2.x that this project lacks.

    It is not `ModuleNotFoundError`, because `from package import module` would replace its message.
    """
    migration = import_module("parl_core._migration")
    for removed, instead in migration.REMOVED_MODULES.items():
        if path == removed or path.startswith(f"{removed}."):
            raise ImportError(f"no module {path!r}, which PARL 2.x had: {instead}", name=path)
    if instead := migration.replacement_of(path):
        package, _, name = path.rpartition(".")
        raise _removed_name_error(name, package, instead)


def offer_to_joblib() -> None:
    """Register the backend "parl" with joblib, now or when it is imported; parl-remote is imported at its first use."""
    loaded = sys.modules.get("joblib.parallel")
    if loaded is not None:
        _offer_to(loaded)
    elif not any(isinstance(finder, _Joblib) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Joblib())


def _offer_to(joblib_parallel: ModuleType) -> None:
    backends = getattr(joblib_parallel, "BACKENDS", None)  # the only part that `Parallel(backend=...)` uses
    if isinstance(backends, dict):
        backends.setdefault("parl", lambda **options: import_module("parl_remote.joblib").ParlBackend(**options))


class _Joblib(MetaPathFinder):
    """Import hook that waits for joblib."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "joblib.parallel":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                loader: Any = spec.loader
                execute = loader.exec_module

                def exec_module(module: ModuleType, execute: Any = execute) -> None:
                    execute(module)
                    _offer_to(module)

                loader.exec_module = exec_module
                return spec
        return None


def _alias_backend(module: ModuleType, part: str, framework: str) -> None:
    """Alias an old path to a backend's algorithms or base classes, and the paths below it to its modules."""
    path = module.__name__
    backend = backends().current() if framework == "fluid" else backends().load(framework)
    if part == "algorithms":
        package = backend.algorithms
        names = {one.name: f"{package.__name__}.{one.name}" for one in iter_modules(package.__path__)}
        names |= {old: getattr(package, name).__module__ for old, name in _OF_CLASSES.items()}
        losses = f"{package.__name__.rpartition('.')[0]}.losses"
        below = {"impala.vtrace": import_module(f"{losses}.vtrace")}
        _fill(module, package)
    else:
        package_name = backend.Model.__module__.rpartition(".")[0]
        names = {old: f"{package_name}.{new}" for old, new in _CORE.items()}
        below = {"layers": backend.layers}
        vars(module).update({name: getattr(backend, name) for name in BACKEND})
    below |= {old: import_module(new) for old, new in names.items()}
    below = {old: _below(f"{path}.{old}", found) for old, found in below.items()}
    if part == "algorithms":
        vars(below["impala"])["vtrace"] = below["impala.vtrace"]  # both are copies that answer
    sys.modules.update({f"{path}.{old}": found for old, found in below.items()})
    vars(module).update({old: found for old, found in below.items() if "." not in old})
