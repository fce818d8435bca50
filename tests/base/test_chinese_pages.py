"""Chinese pages say what the English ones say: equal parts in the same order, with the same code, links and figures.

A page `X.cn.md` translates `X.md`. Both are read as headings, paragraphs, items, rows of tables and blocks of code.
Words are not compared; in code, comments and docstrings are words. Code of Chinese pages does not run a second time.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MUST_EXIST = [
    DOCS / "README.cn.md",
    DOCS / "index.cn.md",
    ROOT / "packages" / "parl-evokit" / "README.cn.md",
    *(page.with_suffix(".cn.md") for page in (DOCS / "tutorials").glob("*.md") if not page.stem.endswith(".cn")),
]
_HTML_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_MARK = r"(?:#+|-|\d+\.) |\||</?div"
_PART = re.compile(
    r"^(?P<indent> *)```.*\n(?:.*\n)*?(?P=indent)```$"
    rf"|^.*\S.*(?:\n(?!{_MARK}| *```|\s*$).+)*",
    re.MULTILINE,
)
_KIND = re.compile(rf"{_MARK}| *```.*| {{4}}|")
_OTHER_LANGUAGE = re.compile(r"\[(English|中文)\]\((\S+)\)")
_INLINE_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"(?:\]\(|src=\")([^)\s#\"]+)(#[^)\s]*)?[)\"]")
_FIGURE = re.compile(r"\d(?:[\d.,]*\d)?")
_WORDS_IN_CODE = re.compile(r'#.*|"""[^"]*"""')


@dataclass(frozen=True)
class Part:
    """A heading, a paragraph, an item of a list, a row of a table, or a block of code.

    Attributes:
        line: Where it begins.
        kind: The mark that it begins with; of code its language.
        same: What a translation keeps: the code, or the inline code, the links and the figures.
        text: All of it.
    """

    line: int
    kind: str
    same: tuple[str, ...]
    text: str


def parts_of(page: Path, text: str) -> list[Part]:
    """Return the parts of a page but for the link to its other language."""
    parts, in_list = [], False
    text = _HTML_COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    for found in _PART.finditer(text):
        mark = _KIND.match(found[0])
        kind = mark[0] if mark else ""
        if kind != "    ":
            in_list = kind[:1] == "-" or kind[:1].isdigit()
        if not _OTHER_LANGUAGE.fullmatch(found[0]):
            code = "```" in kind or (kind == "    " and not in_list)
            same = (_WORDS_IN_CODE.sub(_figures, found[0]),) if code else _same(page, found[0])
            parts.append(Part(text.count("\n", 0, found.start()) + 1, kind, same, found[0]))
    return parts


def _figures(words: re.Match[str]) -> str:
    return " ".join(["#", *sorted(_FIGURE.findall(words[0]))])


def _same(page: Path, text: str) -> tuple[str, ...]:
    links = sorted(_target(page, *link) for link in _LINK.findall(text))
    prose = _LINK.sub("]", text)
    return (*sorted(_INLINE_CODE.findall(prose)), *links, *sorted(_FIGURE.findall(_INLINE_CODE.sub("", prose))))


def _target(page: Path, link: str, anchor: str) -> str:
    if "://" in link:
        return link + anchor
    target = str((page.parent / link).resolve())
    return target.replace(".cn.md", ".md") + "#" * bool(anchor)  # headings are translated


def english_of(page: Path) -> Path:
    """Return the page that a Chinese one translates."""
    return ROOT / "README.md" if page == DOCS / "README.cn.md" else page.with_name(page.name.replace(".cn.md", ".md"))


def chinese_pages() -> list[Path]:
    """Return all Chinese pages, and those that have to exist."""
    found = {page for folder in ("docs", "examples", "packages") for page in (ROOT / folder).rglob("*.cn.md")}
    return sorted(found.union(MUST_EXIST))


def differences(page: Path, chinese: str, english: str) -> list[str]:
    """Return where a Chinese page does not say what the English one says."""
    ours, theirs = parts_of(page, chinese), parts_of(english_of(page), english)
    found = [
        f"line {our.line} and line {their.line}:\n{our.text}\n{their.text}"
        for our, their in zip(ours, theirs, strict=False)
        if (our.kind, our.same) != (their.kind, their.same)
    ]
    return found if len(ours) == len(theirs) else [*found, f"{len(ours)} parts and {len(theirs)}"]


@pytest.mark.parametrize("page", chinese_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_chinese_page_says_what_the_english_one_says(page: Path) -> None:
    found = differences(page, page.read_text(encoding="utf-8"), english_of(page).read_text(encoding="utf-8"))
    assert not found, found[0]


@pytest.mark.parametrize("page", chinese_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_of_two_languages_lead_to_each_other_below_their_titles(page: Path) -> None:
    english = english_of(page)
    for source, target, name in ((page, english, "English"), (english, page, "中文")):
        if source == english and source.is_relative_to(ROOT / "packages"):  # a package index shows it alone
            assert str(page.relative_to(ROOT)) in english.read_text(encoding="utf-8")
            continue
        below = source.read_text(encoding="utf-8").splitlines()[2]
        link = _OTHER_LANGUAGE.fullmatch(below)
        assert link, f"{source}: {below}"
        assert (link[1], (source.parent / link[2]).resolve()) == (name, target)


@pytest.mark.parametrize("page", chinese_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_chinese_page_leads_to_chinese_pages_where_there_are_any(page: Path) -> None:
    for part in parts_of(page, page.read_text(encoding="utf-8")):
        for link, _ in _LINK.findall(part.text):
            chinese = (page.parent / link).with_suffix(".cn.md")
            assert not (link.endswith(".md") and chinese.exists()), f"line {part.line}: {link}"


_PAGE = """# Title

Takes `parl.connect` 30 seconds ([calls](calls.md)).

- one
- two

```python
print(1)  # one, not 2
```

    pip install parl-remote
"""


def test_words_and_comments_may_differ() -> None:
    chinese = _PAGE.replace("Takes", "需要").replace("- two", "- 二").replace("# one, not 2", "# 一，不是 2")
    assert not differences(DOCS / "index.cn.md", chinese.replace("[calls](calls.md)", "[调用](calls.cn.md)"), _PAGE)


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("30 seconds", "40 seconds"),
        ("`parl.connect`", "`parl.disconnect`"),
        ("(calls.md)", "(data.md)"),
        ("# Title", "## Title"),
        ("- two\n", ""),
        ("- two\n", "- two\n- three\n"),
        ("```python", "```"),
        ("print(1)", "print(2)"),
        ("  # one, not 2", ""),
        ("not 2", "not 3"),
        ("parl-remote\n", "parl-core\n"),
        ("Takes", "A paragraph.\n\nTakes"),
    ],
)
def test_anything_else_is_a_difference(said: str, instead: str) -> None:
    assert said in _PAGE
    assert differences(DOCS / "index.cn.md", _PAGE.replace(said, instead), _PAGE)
