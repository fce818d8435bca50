"""`parl.algorithms.torch` and the modules below it, as programs of PARL 2.x import them: those of parl-torch."""

from parl import _old_paths
from parl_core import backends

_old_paths.alias_algorithms(__name__, backends.load("torch"))
