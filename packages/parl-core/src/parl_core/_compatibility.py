"""Check that the versions of parl-core and of the packages built on it are compatible.

The API version of a package is the minor number of a version 0.x, such as 0.1, and the major number from 1.0 on. Each
package states the API versions of parl-core that it works with twice: to installers in its metadata, and to Python in
its `_version` module, for checkouts and for installations that left dependencies out.

The original PARL (1.x and 2.x) owns the import name `parl`, too. If it is installed after parl-core, it replaces the
facade, so the other packages detect it.
"""

import re
from pathlib import Path

from parl_core._version import __version__
from parl_core.errors import IncompatiblePackages

__all__ = ["require_core"]


def require_core(package: str, bounds: str) -> None:
    """Check that parl-core is complete, and within the bounds of the package that is being imported.

    Args:
        package: The distribution and its version, such as `parl-remote 0.1.0`.
        bounds: The versions of parl-core that it works with: `>=0.1,<0.2`.

    Raises:
        IncompatiblePackages: It is not; the message names the package to install.
    """
    facade = Path(__file__).parents[1] / "parl"
    if (facade / "core" / "__init__.py").exists():  # parl-core has no such module
        raise IncompatiblePackages(
            f"the original PARL was installed over parl-core and replaced {facade}; put it back:\n"
            "    pip uninstall parl\n"
            "    pip install --force-reinstall --no-deps parl-core    # and parl-remote, if you use it"
        )
    low, high = (_release(bound) for bound in bounds.split(","))
    if low <= _release(__version__) < high:
        return
    upgrade = f" (or pip install --upgrade {package.split()[0]})" if _release(__version__) >= high else ""
    raise IncompatiblePackages(
        f"{package} needs parl-core{bounds}, and parl-core {__version__} is installed:"
        f" pip install 'parl-core{bounds}'{upgrade}"
    )


def _release(version: str) -> tuple[int, ...]:
    """Return the first numbers of a version or bound; a suffix such as `rc1` does not count."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[a-z+]", version)[0]))
