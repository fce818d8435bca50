"""The examples on the algorithms' pages run."""

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "algorithms"
NAMES = sorted(page.stem for page in PAGES.glob("*.md") if page.stem != "index")


LARGE = {"c51", "maddpg", "qr-dqn", "rainbow", "tqc"}  # whose networks give distributions, or are many


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in NAMES]
)
def test_the_example_of_a_page_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (PAGES / f"{name}.md").read_text(encoding="utf-8"), re.DOTALL)
    shorter = example.replace("total_steps=600", "total_steps=250")  # the same loop, with fewer updates
    exec(compile(shorter, f"{name}.md", "exec"), {"__name__": "example"})
    assert "nan" not in capsys.readouterr().out
