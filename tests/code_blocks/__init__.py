"""Python code in the documentation, as programs that tests run.

The blocks of a page are one program from top to bottom, because later ones go on from earlier ones. Comments of the
page, which a reader does not see, say how they run:

    <!-- program: base -->                              begins a program; without this comment a page is one program, of
                                                        the backends if it uses one, else of `base`
    <!-- program: torch, paddle; total_steps=1_000 -->  the suites that run it, and smaller numbers than the page shows
    <!-- program: base                                  lines before the end of the comment run before the blocks
    paths = ["one", "two"]
    -->
    <!-- not run: it needs a second machine -->         the next block does not run, for this reason

A block with a title (```python title="conftest.py") is a file of this name beside the program.

Chinese pages are left out: tests/base/test_chinese_pages.py holds their code equal to that of the English pages.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 240  # a busy machine is slow
SUITES = {"base", "torch", "paddle"}
# Pages with tests that look at what the programs print and write, and those that are many and quick.
RUN_BY = {
    "README.md": "tests/base/test_readme_remote.py",
    "docs/how-to/callbacks.md": "tests/both/test_training_guides.py",
    "docs/how-to/data.md": "packages/parl-remote/tests/test_put.py",
    "docs/how-to/environments.md": "tests/both/test_training_guides.py",
    "docs/how-to/handles.md": "packages/parl-remote/tests/test_handles.py",
    "docs/how-to/paddle-static-graphs.md": "tests/on_paddle/test_static_graphs_guide.py",
    "docs/how-to/resume.md": "tests/both/test_training_guides.py",
    "docs/how-to/test-your-program.md": "packages/parl-remote/tests/test_faults_plugin.py",
    "docs/reference/algorithms": "tests/both/test_algorithm_pages.py",
    "packages/parl-evokit/README.md": "packages/parl-evokit/tests/test_evokit_readme.py",
    "packages/parl-paddle/README.md": "packages/parl-paddle/tests/test_paddle_readme.py",
    "packages/parl-torch/README.md": "packages/parl-torch/tests/test_torch_readme.py",
}
_OF_A_BACKEND = re.compile(r"parl\.(algorithms|networks|layers|optim|Model|Agent|Algorithm)\b")
_PART = re.compile(
    r"^<!-- program: (?P<program>.*?)-->$"
    r"|^<!-- not run: (?P<reason>.*?) -->$"
    r"|^(?P<indent> *)```python(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Program:
    """The blocks that run together.

    Attributes:
        page: The page, relative to the repository.
        line: Of the first block.
        suites: Those that the page names for it; none where it names none.
        smaller: Numbers in place of the page's, by the name of the argument.
        blocks: The code, with what runs before it.
        files: Code of titled blocks, by file name.
    """

    page: str
    line: int = 0
    suites: frozenset[str] = frozenset()
    smaller: dict[str, str] = field(default_factory=dict)
    blocks: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def is_of(self, suite: str) -> bool:
        """Return whether a suite runs it."""
        if self.suites:
            return suite in self.suites
        return (suite != "base") == any(_OF_A_BACKEND.search(block) for block in self.blocks)

    def source(self) -> str:
        """Return the program with the smaller numbers."""
        source = "\n".join(self.blocks)
        for name, number in self.smaller.items():
            source, found = re.subn(rf"\b({name} ?= ?)[\d_]+", rf"\g<1>{number}", source)
            assert found, f"{self} has no {name}= any more"
        return source

    def run(self, folder: Path, backend: str | None = None) -> str:
        """Run it in a process of its own, in this folder, and return what it prints."""
        for name, code in self.files.items():
            (folder / name).write_text(code, encoding="utf-8")
        (folder / "program.py").write_text(self.source(), encoding="utf-8")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **({"PARL_BACKEND": backend} if backend else {})}
        command = [sys.executable, "program.py"]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, f"{self}\n{done.stdout[-1000:]}{done.stderr[-3000:]}"
        return done.stdout


@dataclass(frozen=True)
class Left:
    """A block that does not run, and why."""

    page: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return the pages with code for readers, relative to the repository."""
    found = [ROOT / "README.md", *ROOT.glob("packages/*/README.md")]
    found += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    return sorted(str(page.relative_to(ROOT)) for page in found if not page.name.endswith(".cn.md"))


def blocks_of(page: str) -> Iterator[Program | Left]:
    """Yield the programs of a page, and the blocks that do not run."""
    text = (ROOT / page).read_text(encoding="utf-8")
    program, reason = Program(page), None
    for part in _PART.finditer(text):
        line = text.count("\n", 0, part.start()) + 1
        if part["program"] is not None:
            if program.line:
                yield program
            program = _begun(page, part["program"])
        elif part["reason"] is not None:
            reason = part["reason"]
        elif reason is not None:
            yield Left(page, line, reason)
            reason = None
        elif elsewhere := next((test for run, test in RUN_BY.items() if page.startswith(run)), None):
            yield Left(page, line, f"run by {elsewhere}")
        else:
            indent = part["indent"]
            code = "".join(row.removeprefix(indent) for row in part["code"].splitlines(keepends=True))
            program.line = program.line or line
            if part["title"]:
                program.files[part["title"]] = code
            else:
                program.blocks.append(code)
    if program.line:
        yield program


def _begun(page: str, said: str) -> Program:
    first, _, before = said.partition("\n")
    suites, *smaller = [word.strip() for word in first.split(";")]
    named = frozenset(suite.strip() for suite in suites.split(","))
    assert named <= SUITES, f"{page}: there are the suites {', '.join(sorted(SUITES))}, not {suites}"
    numbers = dict(setting.split("=") for setting in smaller)
    return Program(page, suites=named, smaller=numbers, blocks=[before] if before else [])


def programs(suite: str) -> list[Program]:
    """Return what a suite runs."""
    found = [part for page in pages() for part in blocks_of(page)]
    return [part for part in found if isinstance(part, Program) and part.is_of(suite)]


def left_out() -> list[Left]:
    """Return the blocks that no suite runs here."""
    return [part for page in pages() for part in blocks_of(page) if isinstance(part, Left)]
