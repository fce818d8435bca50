"""Pages of the site that something else in the repository writes, and the folders of the navigation.

The tables of `benchmarks`, the pictures of the examples, the course's notebooks, and the Python reference.
"""

import logging
import re
from pathlib import Path
from typing import Any

import reference_pages
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[1]
_EXAMPLES = ROOT / "examples"
_LEARNING = ROOT / "benchmarks" / "learning" / "results"
_ABOVE = """# How well the algorithms learn

The results are measured by `benchmarks/learning`; each row lists its deviations from the published setups. The picture
shows the runs of the rows, or those of the earlier results as long as there are none.

[![Learning curves of all tasks](learning-curves.png)](learning-curves.png)

"""
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")  # to results that the site does not have
_OF_THE_REPOSITORY = re.compile(r"\[([^\]]+)\]\(\.\./[^)]+\)")  # links of notebooks to examples
_PYTHON_API = "reference/api/*"
HOMES = {
    "benchmarks/SPEED.md": "reference/speed.md",
    "benchmarks/learning/results/TABLE.md": "reference/learning.md",
    "examples/course/README.cn.md": "course/lesson_1_q_learning.md",
    "examples/course/README.md": "course/lesson_1_q_learning.md",
    "examples/quickstart/learning-curve.png": "pictures/quickstart.png",
}
"""Files of the repository that pages link to, so that their links work there as well, and where the site has them."""


def on_files(files: Files, config: Any) -> Files:
    """Add the tables, their pictures and the Python reference, and fill in the navigation."""
    table = _ABOVE + (_LEARNING / "TABLE.md").read_text()
    files.append(File.generated(config, "reference/learning.md", content=table))
    files.append(File.generated(config, "reference/learning-curves.png", abs_src_path=str(_LEARNING / "curves.png")))
    speed = _LINK.sub(r"\1", (ROOT / "benchmarks" / "SPEED.md").read_text())
    files.append(File.generated(config, "reference/speed.md", content=speed))
    curve = _EXAMPLES / "quickstart" / "learning-curve.png"
    files.append(File.generated(config, "pictures/quickstart.png", abs_src_path=str(curve)))
    _add_gallery(files, config)
    _add_course(files, config)
    reference_pages.add(files, config)
    if config.nav:
        pages = sorted(page.src_uri for page in files.documentation_pages())
        config.nav = _filled(config.nav, pages, set(_named(config.nav)))
    return files


def _add_gallery(files: Files, config: Any) -> None:
    """Add to the gallery's videos the pictures of the examples, in which their programs wrote how they learned."""
    own = files.get_file_from_path("gallery.md")
    assert own is not None
    lines = [own.content_string, "## Pictures of the examples", "", "Each was made by the example below it.", ""]
    for picture in sorted(_EXAMPLES.glob("*/*.png")):
        folder = picture.parent.name
        title = (picture.parent / "README.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        files.append(File.generated(config, f"gallery/{folder}-{picture.name}", abs_src_path=str(picture)))
        lines += [f"### {title}", "", f"![{title}](gallery/{folder}-{picture.name})", "", f"`examples/{folder}`", ""]
    files.remove(own)
    files.append(File.generated(config, "gallery.md", content="\n".join(lines)))


def _add_course(files: Files, config: Any) -> None:
    """Add the course's notebooks, with the outputs that they hold."""
    exporter = MarkdownExporter()
    for notebook in sorted((_EXAMPLES / "course").glob("*.ipynb")):
        content, resources = exporter.from_filename(str(notebook))
        for name, data in resources["outputs"].items():
            content = content.replace(f"]({name})", f"]({notebook.stem}-{name})")
            files.append(File.generated(config, f"course/{notebook.stem}-{name}", content=data))
        content = _OF_THE_REPOSITORY.sub(r"\1", content.replace("](../../docs/", "](<../>/"))
        files.append(File.generated(config, f"course/{notebook.stem}.md", content=content.replace("](<../>/", "](../")))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let a page's links to files of the repository lead to what the site has of them."""
    up = "../" * page.file.src_uri.count("/")
    for path, home in HOMES.items():
        markdown = markdown.replace(f"](../{up}{path})", f"]({up}{home})")
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Keep the sources in the Python reference out of the search, which would double in size and find them first."""
    return html.replace(
        '<details class="mkdocstrings-source"', '<details class="mkdocstrings-source" data-search-exclude'
    )


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Name the language of Chinese pages, for fonts and screen readers; the theme has one for the whole site."""
    chinese = page.file.src_uri.endswith(".cn.md")
    return output.replace('<html lang="en"', '<html lang="zh-CN"', 1) if chinese else output


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
