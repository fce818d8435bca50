"""Module paths of PARL 1.x and 2.x: other names of the modules that this project has in another place.

    parl.algorithms.torch.dqn                             parl_torch.algorithms.dqn; `paddle` likewise
    parl.algorithms.fluid.dqn                             that of the backend in use
    parl.core.torch.model, .algorithm, .agent             parl_torch.model, ...; `paddle` and `fluid` likewise

A module is the same object under both names, so its classes are the same, too. Nothing is made before one of these
paths is imported.
"""

import sys
from importlib import import_module
from pkgutil import iter_modules

from parl_core.backends import Backend

__all__ = ["alias_algorithms", "alias_core"]

_RENAMED = {"a3c": "a2c", "ddqn": "dqn", "dt": "decision_transformer", "impala.impala": "impala"}
_CORE = {"agent": "agent", "algorithm": "algorithm", "model": "model", "policy_distribution": "distributions"}


def alias_algorithms(path: str, backend: Backend) -> None:
    """Make the module `path` the backend's algorithms, and those below it the modules of each algorithm."""
    package = backend.algorithms
    names = {module.name: module.name for module in iter_modules(package.__path__)} | _RENAMED
    _alias(path, package.__name__, names)


def alias_core(path: str, backend: Backend) -> None:
    """Make the module `path` the backend's package, and those below it its modules of the base classes."""
    _alias(path, backend.Model.__module__.rpartition(".")[0], _CORE)
    sys.modules[f"{path}.layers"] = backend.layers


def _alias(path: str, package: str, names: dict[str, str]) -> None:
    for old, new in names.items():
        sys.modules[f"{path}.{old}"] = import_module(f"{package}.{new}")
    sys.modules[path] = import_module(package)
