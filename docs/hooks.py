"""Pages of the site that are written by something else in the repository."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_LEARNING = Path(__file__).parents[1] / "benchmarks" / "learning" / "results"
_ABOVE = """# How well the algorithms learn

Measured by `benchmarks/learning`; deviations from the published setups stand beside each row. The picture has the
runs of the rows, and as long as there are none those of the earlier results.

[![Learning curves of all tasks](learning-curves.png)](learning-curves.png)

"""


def on_files(files: Files, config: Any) -> Files:
    """Add the learning table and its curves."""
    table = _ABOVE + (_LEARNING / "TABLE.md").read_text()
    files.append(File.generated(config, "reference/learning.md", content=table))
    files.append(File.generated(config, "reference/learning-curves.png", abs_src_path=str(_LEARNING / "curves.png")))
    return files
