"""The examples on the algorithms' pages run."""

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "algorithms"


@pytest.mark.parametrize(
    "name", ["ppo", "a2c", "a3c", "impala", "policy-gradient", "cql", "iql", "decision-transformer", "offline-q"]
)
def test_the_example_of_a_page_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (PAGES / f"{name}.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, f"{name}.md", "exec"), {"__name__": "example"})
    assert "nan" not in capsys.readouterr().out
