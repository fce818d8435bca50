"""Make the course's notebooks from its scripts; each `# %%` of a script is a cell.

    python tools/notebooks.py               compare the notebooks with the scripts; exit 1 on a difference
    python tools/notebooks.py --write NAME  make and run the notebooks whose names contain NAME, with their pictures
    python tools/notebooks.py --text NAME   copy changed text and types, and keep the results

`--write` needs nbclient, ipykernel and a backend: `hatch run torch:python tools/notebooks.py --write`. The others need
only Python.
"""

import ast
import base64
import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
COURSE = ROOT / "examples" / "course"
LARGEST = 250_000  # bytes, a size that browsers open quickly
LONGEST_S = 600.0  # limit of a cell, also on a busy machine


class Cell(NamedTuple):
    """A cell of a notebook: `kind` is `markdown` or `code`."""

    kind: str
    source: str


def cells_of(script: str) -> list[Cell]:
    """Return the cells of a script in the percent format.

    Raises:
        ValueError: There is text before the first `# %%`, or a line of markdown is not a comment.
    """
    cells: list[tuple[str, list[str]]] = []
    for number, line in enumerate(script.splitlines(), start=1):
        if line.startswith("# %%"):
            cells.append(("markdown" if "[markdown]" in line else "code", []))
        elif not cells and line.strip():
            raise ValueError(f"line {number} is before the first `# %%`: {line}")
        elif cells and cells[-1][0] == "markdown" and line and not line.startswith("#"):
            raise ValueError(f"line {number} is in a cell of markdown, and no comment: {line}")
        elif cells:
            cells[-1][1].append(line[2:] if cells[-1][0] == "markdown" else line)
    return [Cell(kind, "\n".join(lines).strip("\n")) for kind, lines in cells]


def cells_in(notebook: dict[str, Any]) -> list[Cell]:
    return [Cell(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def pictures_in(notebook: dict[str, Any]) -> dict[str, bytes]:
    """Return the PNG of each `show(figure, "name", ...)`, by name."""
    found: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            names = re.findall(r'\bshow\(figure, "([^"]+)"', "".join(cell["source"]))
            shown = [output["data"]["image/png"] for output in cell["outputs"] if "image/png" in output.get("data", {})]
            found |= {name: base64.b64decode("".join(png)) for name, png in zip(names, shown, strict=False)}
    return found


def picture_file(name: str) -> Path:
    """Return the path of a picture in the READMEs."""
    return COURSE / "pictures" / f"{name}.png"


def problems(script: Path) -> list[str]:
    """Return the errors in the notebook of a script, one line each."""
    path = script.with_suffix(".ipynb")
    write = f"python tools/notebooks.py --write {script.stem}"
    if not path.exists():
        return [f"{path.name} is missing: {write}"]
    notebook = json.loads(path.read_text(encoding="utf-8"))
    found = []
    if cells_in(notebook) != cells_of(script.read_text(encoding="utf-8")):
        found.append(f"{path.name} is not made from {script.name} as it is now: {write}")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]
    if any(cell["execution_count"] is None for cell in code):
        found.append(f"{path.name} was not run to its end: {write}")
    if any(output["output_type"] == "error" for output in outputs):
        found.append(f"{path.name} has an error among its outputs: correct the script, then {write}")
    pictures = pictures_in(notebook)
    if not pictures:
        found.append(f"{path.name} has no picture: use pictures.show")
    for name, png in pictures.items():
        if not picture_file(name).exists() or picture_file(name).read_bytes() != png:
            found.append(f"{picture_file(name).name} is not the picture in {path.name}: {write}")
    if path.stat().st_size > LARGEST:
        found.append(f"{path.name} has {path.stat().st_size:,} bytes, more than {LARGEST:,}: draw smaller pictures")
    return found


def write(script: Path) -> None:
    """Run the cells of a script, and write them with their output and pictures."""
    import nbformat
    from nbclient import NotebookClient

    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    cells = cells_of(script.read_text(encoding="utf-8"))
    notebook = nbformat.v4.new_notebook(
        cells=[make[cell.kind](cell.source, id=f"cell-{number}") for number, cell in enumerate(cells)],
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
    )
    NotebookClient(
        notebook, timeout=LONGEST_S, record_timing=False, resources={"metadata": {"path": str(script.parent)}}
    ).execute()
    notebook.metadata.language_info = {"name": "python"}  # the kernel adds the version of this Python
    path = script.with_suffix(".ipynb")
    unfinished = path.with_suffix(".ipynb.new")
    nbformat.write(notebook, unfinished)
    unfinished.replace(path)
    keep_pictures(path)


class _WithoutTypes(ast.NodeTransformer):
    """Removes annotations and their imports."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return ast.Assign([node.target], node.value) if node.value else None

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module in ("typing", "collections.abc") else node


def program_of(cell: Cell) -> str:
    """Return the code of a cell without comments, layout and types."""
    return ast.dump(_WithoutTypes().visit(ast.parse(cell.source)))


def take_text(script: Path) -> None:
    """Copy changed text and types into a notebook that has the same program as its script.

    Raises:
        ValueError: The programs differ, so that the results would not be those of the script.
    """
    path = script.with_suffix(".ipynb")
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = cells_of(script.read_text(encoding="utf-8"))
    ran = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    was = [cell for cell in cells_in(notebook) if cell.kind == "code"]
    if list(map(program_of, was)) != [program_of(cell) for cell in cells if cell.kind == "code"]:
        raise ValueError(f"the code of {path.name} differs: python tools/notebooks.py --write {script.stem}")
    results = iter(ran)
    notebook["cells"] = [
        {**next(results), "id": f"cell-{number}", "source": cell.source.splitlines(keepends=True)}
        if cell.kind == "code"
        else {
            "cell_type": "markdown",
            "id": f"cell-{number}",
            "metadata": {},
            "source": cell.source.splitlines(keepends=True),
        }
        for number, cell in enumerate(cells)
    ]
    unfinished = path.with_suffix(".ipynb.new")
    unfinished.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    unfinished.replace(path)


def keep_pictures(path: Path) -> None:
    """Copy the pictures of a notebook to the folder of the READMEs."""
    for name, png in pictures_in(json.loads(path.read_text(encoding="utf-8"))).items():
        picture_file(name).parent.mkdir(exist_ok=True)
        picture_file(name).write_bytes(png)


def main(arguments: list[str]) -> int:
    scripts = sorted(COURSE.glob("lesson_*.py"))
    if arguments[:1] in (["--write"], ["--text"]):
        chosen = [script for script in scripts if all(part in script.stem for part in arguments[1:])]
        if not chosen:
            print(f"there is no such lesson; there are {', '.join(script.stem for script in scripts)}")
            return 1
        for script in chosen:
            print(script.name, flush=True)
            (write if arguments[0] == "--write" else take_text)(script)
        scripts = chosen
    found = [problem for script in scripts for problem in problems(script)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
