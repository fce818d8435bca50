"""The page about the structure names modules that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Words of the page that are no modules: distributions and their entry points, commands, names of programs.
OTHERS = {
    *("evokit", "paddle", "remote", "torch", "xparl", "parl.actors", "parl.backends"),
    *("learn", "loss", "predict", "put"),
}
_WORD = re.compile(r"`([a-z][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)*)/?`")


def plain(path: str) -> str:
    """Return a dotted path as the page writes it: no name begins with an underscore."""
    return ".".join(name.lstrip("_") for name in path.split("."))


def modules() -> set[str]:
    """Return all modules and folders by their whole path, and by each shorter one, such as `actor.state`."""
    found = set()
    for source in ROOT.glob("packages/*/src"):
        for path in source.rglob("*"):
            if path.suffix == ".py" or path.is_dir():
                names = plain(".".join(path.relative_to(source).with_suffix("").parts)).split(".")
                found |= {".".join(names[begin:]) for begin in range(len(names))}
    return found


def test_the_architecture_page_names_modules_that_exist() -> None:
    named = {plain(word) for word in _WORD.findall((ROOT / "docs" / "architecture.md").read_text())}
    assert {"actor.state", "parl_core.env.steps", "facilities"} <= named
    public = (ROOT / "docs" / "reference" / "public_names.txt").read_text().split()
    assert named - modules() - {*public} == OTHERS
