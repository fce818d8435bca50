"""Changelog fragments, collected for the next release of each package.

    python tools/changelog.py              print the changelog of each package's next release
    python tools/changelog.py --check      print invalid fragments; exit 1 if there are any

A fragment is a file `packages/<package>/changes/<what>.<kind>.md`, whose text becomes one item of the list: `<what>` is
any name, `<kind>` one of added, changed, deprecated, removed and fixed. `tools/release.py` moves the fragments into
`CHANGELOG.md`. The work is done by towncrier, with `tools/towncrier.toml`.
"""

import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "tools" / "towncrier.toml"
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))


def kinds() -> list[str]:
    """Return the kinds of fragments, in the order of the changelog."""
    configured = tomllib.loads(CONFIG.read_text())["tool"]["towncrier"]["type"]
    return [kind["directory"] for kind in configured]


def problems(package: str, root: Path = ROOT) -> list[str]:
    """Return the errors in the fragments and the changelog of a package in a checkout, one line each."""
    folder = root / "packages" / package
    found = []
    for path in sorted((folder / "changes").glob("*")):
        name = path.relative_to(root)
        what, _, kind = path.stem.rpartition(".")
        if path.suffix != ".md" or not what or kind not in kinds():
            found.append(f"{name}: call it <what>.<kind>.md, kind being one of {', '.join(kinds())}")
        elif not path.read_text(encoding="utf-8").rstrip().endswith((".", "`", ")")):
            found.append(f"{name}: end its last sentence")
    changelog = folder / "CHANGELOG.md"
    if "## Unreleased" in changelog.read_text(encoding="utf-8"):
        found.append(
            f"{changelog.relative_to(root)}: changes go into files in {folder.name}/changes, not under 'Unreleased'"
        )
    return found


def build(package: str, version: str, *, draft: bool, root: Path = ROOT) -> str:
    """Collect the fragments of a package as the section of a version.

    Args:
        package: Its folder below `packages`.
        version: Title of the section.
        draft: True to return the section and change nothing; otherwise it is written to `CHANGELOG.md`, and the
            fragments are removed.
        root: The checkout.

    Raises:
        RuntimeError: towncrier fails; the message has its output.
    """
    config = root / CONFIG.relative_to(ROOT)
    command = [sys.executable, "-m", "towncrier", "build", "--config", str(config), "--name", package]
    command += ["--dir", str(root / "packages" / package), "--version", version]
    command += ["--date", datetime.now(UTC).date().isoformat(), "--draft" if draft else "--yes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    if done.returncode:
        raise RuntimeError(f"towncrier cannot write the changelog of {package}:\n{done.stderr}")
    return done.stdout


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        found = [problem for package in PACKAGES for problem in problems(package)]
        print("\n".join(found), end="\n" if found else "")
        return 1 if found else 0
    for package in PACKAGES:
        print(build(package, f"next release of {package}", draft=True))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
