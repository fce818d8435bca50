"""`parl.core.fluid` and the modules below it, as programs of PARL 1.x import them, on the backend in use."""

from parl import _old_paths
from parl_core import backends

_old_paths.alias_core(__name__, backends.current())
