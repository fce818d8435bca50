"""The repository's own tools find what they are there to find."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import tools by name, and forget them after the test."""
    monkeypatch.syspath_prepend(str(TOOLS))
    before = {*sys.modules}
    yield importlib.import_module
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(TOOLS)):
            del sys.modules[name]


def tree(root: Path, **modules: str) -> Path:
    """Write modules of a package `parl_core` into a checkout."""
    folder = root / "packages" / "parl-core" / "src" / "parl_core"
    folder.mkdir(parents=True)
    for name, text in {"__init__": "", **modules}.items():
        (folder / f"{name}.py").write_text(text)
    return root


@pytest.mark.parametrize(
    "back",
    [
        "from parl_core import a",
        "def f():\n    import parl_core.a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from parl_core.a import x",
    ],
    ids=["module", "function", "typing"],
)
def test_a_cycle_of_imports_of_every_kind_is_found(tool: Any, tmp_path: Path, back: str) -> None:
    structure = tool("structure").Structure(tree(tmp_path, a="from parl_core.b import y\nx = 1", b=f"{back}\ny = 2"))
    assert structure.cycles("parl_core") == [["parl_core.a", "parl_core.b"]]


def test_chains_and_modules_that_one_other_imports_are_counted(tool: Any, tmp_path: Path) -> None:
    found = tool("structure").Structure(
        tree(
            tmp_path,
            a="import parl_core.b\nimport parl_core.c",
            b='"""Nothing but\nthis."""\nimport parl_core.c  # the end\n\n',
            c="x = 1",
        )
    )
    assert found.cycles("parl_core") == []
    assert found.longest_chain("parl_core") == ["parl_core.a", "parl_core.b", "parl_core.c"]
    assert found.imported_by_one("parl_core") == [("parl_core.b", "parl_core.a")]
    assert found.modules["parl_core.b"].code_lines() == 1


def test_public_names_are_those_of_public_modules(tool: Any, tmp_path: Path) -> None:
    names = tool("public_names")
    assert names.is_public(("parl_remote", "pools", "__init__"))
    assert not names.is_public(("parl_remote", "_pools", "pool"))
    path = tmp_path / "module.py"
    path.write_text('__all__: list[str] = ["b", "a"]\n')
    assert names.names_in(path) == ["a", "b"]
    path.write_text('__all__ = [name for name in "ab"]\n')
    with pytest.raises(ValueError, match="must be a list"):
        names.names_in(path)


def test_a_changelog_fragment_with_another_kind_is_refused(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changelog = tool("changelog")
    folder = tmp_path / "packages" / "parl-core"
    (folder / "changes").mkdir(parents=True)
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n<!-- releases -->\n")
    (folder / "changes" / "faster.changed.md").write_text("A step is faster.\n")
    (folder / "changes" / "odd.improved.md").write_text("A step is better.\n")
    (folder / "changes" / "cut.fixed.md").write_text("A step\n")
    monkeypatch.setattr(changelog, "ROOT", tmp_path)
    assert [line.partition(":")[0] for line in changelog.problems("parl-core")] == [
        "packages/parl-core/changes/cut.fixed.md",
        "packages/parl-core/changes/odd.improved.md",
    ]


def test_types_alone_do_not_change_the_program_of_a_cell(tool: Any) -> None:
    notebooks = tool("notebooks")
    typed = "from typing import Any\ndef f(x: Any, n: int = 2) -> list[int]:\n    y: list[int] = [x] * n\n    return y"
    plain = "def f(x, n=2):\n    y = [x] * n\n    return y"
    assert notebooks.program_of(notebooks.Cell("code", typed)) == notebooks.program_of(notebooks.Cell("code", plain))
    other = plain.replace("2", "3")
    assert notebooks.program_of(notebooks.Cell("code", typed)) != notebooks.program_of(notebooks.Cell("code", other))
