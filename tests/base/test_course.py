"""The course's notebooks are its scripts, and the lessons that need no framework run as both."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
COURSE = ROOT / "examples" / "course"
LESSONS = sorted(path.stem for path in COURSE.glob("lesson_*.py"))
SECONDS_TO_RUN = 250  # far more than any takes; a busy machine is slow
pytestmark = pytest.mark.timeout(300)
TABULAR = ["lesson_1_q_learning", "lesson_2_sarsa"]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The tool, and a copy of the course's scripts and notebooks that it compares."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import notebooks

    for lesson in LESSONS:
        for name in (f"{lesson}.py", f"{lesson}.ipynb"):
            (tmp_path / name).write_bytes((COURSE / name).read_bytes())
    shutil.copytree(COURSE / "pictures", tmp_path / "pictures")
    monkeypatch.setattr(notebooks, "COURSE", tmp_path)
    return notebooks


def test_there_are_five_lessons() -> None:
    assert [name.split("_")[1] for name in LESSONS] == ["1", "2", "3", "4", "5"]


def test_every_notebook_is_its_script_run_to_the_end(compared: Any) -> None:
    assert compared.main([]) == 0


def test_a_changed_script_is_reported_with_the_command_that_helps(
    compared: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script = compared.COURSE / f"{LESSONS[1]}.py"
    script.write_text(script.read_text(encoding="utf-8").replace("ALPHA", "BETA"), encoding="utf-8")
    assert compared.main([]) == 1
    assert f"python tools/notebooks.py --write {LESSONS[1]}" in capsys.readouterr().out


def test_changed_text_is_taken_over_and_results_stay(compared: Any) -> None:
    script = compared.COURSE / f"{LESSONS[0]}.py"
    script.write_text(script.read_text(encoding="utf-8").replace("# An **agent**", "# The **agent**"), encoding="utf-8")
    assert compared.main([]) == 1
    assert compared.main(["--text", LESSONS[0]]) == 0
    text = (compared.COURSE / f"{LESSONS[0]}.ipynb").read_text(encoding="utf-8")
    assert "The **agent**" in text
    assert nbformat.validator.isvalid(nbformat.reads(text, as_version=4))


def test_changed_code_is_no_text(compared: Any) -> None:
    script = compared.COURSE / f"{LESSONS[0]}.py"
    script.write_text(script.read_text(encoding="utf-8").replace("GAMMA = 0.99", "GAMMA = 0.9"), encoding="utf-8")
    with pytest.raises(ValueError, match=f"--write {LESSONS[0]}"):
        compared.main(["--text", LESSONS[0]])


@pytest.mark.parametrize("fault", ["unfinished", "error", "without a picture", "another picture", "missing"])
def test_a_notebook_that_shows_no_results_is_reported(
    fault: str, compared: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = compared.COURSE / f"{LESSONS[0]}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if fault == "unfinished":
        code[-1]["execution_count"] = None
    elif fault == "error":
        code[0]["outputs"].append({"output_type": "error", "ename": "E", "evalue": "", "traceback": []})
    elif fault == "without a picture":
        for cell in code:
            cell["outputs"] = [output for output in cell["outputs"] if "data" not in output]
    elif fault == "another picture":
        (compared.COURSE / "pictures" / "1-values.png").write_bytes(b"another")
    path.unlink()
    if fault != "missing":
        path.write_text(json.dumps(notebook), encoding="utf-8")
    assert compared.main([]) == 1
    assert path.name in capsys.readouterr().out


def test_cells_begin_where_the_script_says(compared: Any) -> None:
    script = "# %% [markdown]\n# # Title\n#\n#     x ← y\n\n# %%\nx = 1\n\n\n# %%\nx\n"
    assert compared.cells_of(script) == [("markdown", "# Title\n\n    x ← y"), ("code", "x = 1"), ("code", "x")]


@pytest.mark.parametrize("script", ["x = 1\n# %%\n", "# %% [markdown]\n# text\nx = 1\n"])
def test_a_line_that_belongs_to_no_cell_is_refused(compared: Any, script: str) -> None:
    with pytest.raises(ValueError, match=r"line . is"):
        compared.cells_of(script)


@pytest.mark.parametrize("lesson", [TABULAR[0], *(pytest.param(each, marks=pytest.mark.slow) for each in TABULAR[1:])])
def test_a_lesson_runs_as_a_script_without_a_framework(lesson: str, tmp_path: Path) -> None:
    command = [sys.executable, str(COURSE / f"{lesson}.py"), "--smoke", "--pictures", "pictures"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS_TO_RUN)
    assert done.returncode == 0, done.stderr
    pictures = sorted((tmp_path / "pictures").iterdir())
    assert len(pictures) == 2
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert list(tmp_path.iterdir()) == [tmp_path / "pictures"]


@pytest.mark.slow
@pytest.mark.parametrize("lesson", TABULAR)
def test_a_lesson_runs_as_a_notebook(lesson: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_ARGUMENTS", "--smoke")
    notebook = nbformat.read(COURSE / f"{lesson}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    NotebookClient(notebook, timeout=SECONDS_TO_RUN, resources={"metadata": {"path": str(COURSE)}}).execute(
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    )
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 2
