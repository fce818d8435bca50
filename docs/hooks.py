"""Pages of the site that something else in the repository writes, and the folders of the navigation."""

import logging
import re
from pathlib import Path
from typing import Any

import reference_pages
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
_LEARNING = ROOT / "benchmarks" / "learning" / "results"
_ABOVE = """# How well the algorithms learn

Measured by `benchmarks/learning`; deviations from the published setups stand beside each row. The picture has the
runs of the rows, and as long as there are none those of the earlier results.

[![Learning curves of all tasks](learning-curves.png)](learning-curves.png)

"""
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")  # to results that the site does not have
_PYTHON_API = "reference/api/*"


def on_files(files: Files, config: Any) -> Files:
    """Add the tables, their pictures and the Python reference, and fill in the navigation."""
    table = _ABOVE + (_LEARNING / "TABLE.md").read_text()
    files.append(File.generated(config, "reference/learning.md", content=table))
    files.append(File.generated(config, "reference/learning-curves.png", abs_src_path=str(_LEARNING / "curves.png")))
    speed = _LINK.sub(r"\1", (ROOT / "benchmarks" / "SPEED.md").read_text())
    files.append(File.generated(config, "reference/speed.md", content=speed))
    curve = ROOT / "examples" / "quickstart" / "learning-curve.png"
    files.append(File.generated(config, "pictures/quickstart.png", abs_src_path=str(curve)))
    reference_pages.add(files, config)
    if config.nav:
        pages = sorted(page.src_uri for page in files.documentation_pages())
        config.nav = _filled(config.nav, pages, set(_named(config.nav)))
    return files


def on_post_build(config: Any) -> None:
    """Check that the reference has a place for every public name."""
    logging.getLogger("mkdocs.hooks").info(reference_pages.check(Path(config.site_dir)))


def _named(nav: Any) -> list[str]:
    """Return the pages that the navigation names."""
    match nav:
        case str():
            return [nav]
        case dict():
            return [page for entry in nav.values() for page in _named(entry)]
        case _:
            return [page for entry in nav for page in _named(entry)]


def _filled(nav: Any, pages: list[str], named: set[str]) -> Any:
    """Return the navigation with `folder/*` replaced by the folder's pages that have no entry of their own."""
    match nav:
        case str():
            return nav
        case dict():
            return {title: _filled(entry, pages, named) for title, entry in nav.items()}
    found: list[Any] = []
    for entry in nav:
        if entry == _PYTHON_API:
            found += reference_pages.navigation()
        elif isinstance(entry, str) and entry.endswith("/*"):
            folder = entry.removesuffix("*")
            found += [
                page
                for page in pages
                if page.startswith(folder) and "/" not in page.removeprefix(folder) and page not in named
            ]
        else:
            found.append(_filled(entry, pages, named))
    return found
