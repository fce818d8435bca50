"""Links and file names in the pages lead somewhere; the site's links stay within it, as its strict build wants."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OUTSIDE_THE_SITE = {DOCS / "README.cn.md"}  # the repository's second README
# See docs/hooks.py and docs/reference_pages.py; the strict build of the documentation follows these links.
MADE_BY_THE_BUILD = DOCS / "reference" / "api"
# Files outside the site's folder of which the build makes pages or pictures, where it leads links to them.
WITH_A_HOME_IN_THE_SITE = {
    ROOT / path
    for node in ast.parse((DOCS / "hooks.py").read_text()).body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HOMES"
    for path in ast.literal_eval(node.value)
}
OF_OTHER_LIBRARIES = {DOCS / "explanation" / "ten-tasks.md"}  # whose files it names
_FILE = re.compile(r"`((?:benchmarks|docs|examples|packages|tests|tools)/[^`\s<…{]+)`")
_LINK = re.compile(r"(?:\]\(|src=\")([^)\s#\"]+)(?:#[^)\s]*)?[)\"]")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    found = [ROOT / "README.md", *ROOT.glob("packages/*/*.md")]
    for folder in ("docs", "examples", "benchmarks", ".github"):
        found += (ROOT / folder).rglob("*.md")
    return sorted(found)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    in_site = page.is_relative_to(DOCS) and page not in OUTSIDE_THE_SITE
    for link in _LINK.findall(_CODE.sub("", page.read_text())):
        if "://" in link or link.startswith("mailto:"):
            continue
        target = (page.parent / link).resolve()
        assert target.exists() or target.is_relative_to(MADE_BY_THE_BUILD), link
        in_place = target.is_relative_to(DOCS) or target in WITH_A_HOME_IN_THE_SITE
        assert in_place or not in_site, f"{link} leaves the site; name the path without a link"


@pytest.mark.parametrize("page", sorted(ROOT.glob("packages/*/README.md")), ids=lambda page: page.parent.name)
def test_links_of_a_package_lead_somewhere_from_the_package_index_too(page: Path) -> None:
    links = _LINK.findall(_CODE.sub("", page.read_text()))
    assert all("://" in link for link in links), "name the path in the repository without a link"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_the_repository_that_a_page_names_exist(page: Path) -> None:
    if page in OF_OTHER_LIBRARIES:
        return
    for name in _FILE.findall(page.read_text()):
        assert any(ROOT.glob(name.partition("::")[0].rstrip("/"))), name
