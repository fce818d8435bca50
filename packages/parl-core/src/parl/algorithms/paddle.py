"""`parl.algorithms.paddle` and the modules below it, as programs of PARL 2.x import them: those of parl-paddle."""

from parl import _old_paths
from parl_core import backends

_old_paths.alias_algorithms(__name__, backends.load("paddle"))
