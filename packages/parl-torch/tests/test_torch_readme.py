"""The program in this package's README runs."""

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[1] / "README.md"


def test_the_program_in_the_readme_learns() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(program, str(README), "exec"), names)
    assert names["loss"] > 0
    assert names["action"].shape == (32,)
