"""The examples on the algorithms' pages run, and their signatures are those of the constructors."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import parl

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "algorithms"
NAMES = sorted(page.stem for page in PAGES.glob("*.md") if page.stem != "index")
QUICK = {"dqn", "ppo", "sac"}  # one of each kind; `hatch run test:all` runs all examples


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]
)
def test_the_example_of_a_page_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (PAGES / f"{name}.md").read_text(encoding="utf-8"), re.DOTALL)
    shorter = example.replace("total_steps=600", "total_steps=250")  # the same loop, with fewer updates
    exec(compile(shorter, f"{name}.md", "exec"), {"__name__": "example"})
    assert "nan" not in capsys.readouterr().out


OF_PARL_1X = {"PPO": {"act_dim", "policy_lr", "value_lr", "epsilon"}}  # a form of its own, described in words


def constructors(page: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the classes in the first block of text of the page, with the arguments and defaults that it names."""
    block = re.search(r"```text\n(.*?)```", (PAGES / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    if block is None:  # it refers to the page of another one
        return []
    found = re.findall(r"^([A-Z]\w+)\(((?!\.\.\.)[^()]*)\)", block[1], re.MULTILINE)
    made = []
    for name, arguments in found:
        call = ast.parse(f"f({re.sub(r'[*],|[.]{3}', '', arguments.replace(chr(10), ' '))})", mode="eval").body
        assert isinstance(call, ast.Call)
        given: dict[str, Any] = {ast.unparse(one): inspect.Parameter.empty for one in call.args}
        given |= {str(one.arg): eval(ast.unparse(one.value)) for one in call.keywords}
        made.append((name, given))
    return [(name, given) for name, given in made if hasattr(parl.algorithms, name)]


@pytest.mark.parametrize("page", NAMES)
def test_the_signature_on_a_page_is_the_constructors(page: str) -> None:
    for name, given in constructors(page):
        cls = getattr(parl.algorithms, name)
        parameters = inspect.signature(cls).parameters
        assert set(given) == set(parameters) - OF_PARL_1X.get(name, set()), name
        for argument, default in given.items():
            own = parameters[argument].default
            own = getattr(cls, "DEFAULTS", {}).get(argument) if own is None else own
            assert own is None or own == default, f"{name}({argument}=)"
