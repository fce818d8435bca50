"""Module paths of PARL 1.x and 2.x lead to the classes that `parl` offers."""

import importlib.util
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import parl
from parl_core import backends
from parl_core._migration import REMOVED_MODULES

BACKEND = backends.current().name
ALGORITHMS = [
    (BACKEND, "DQN"),
    (f"{BACKEND}.dqn", "DQN"),
    (f"{BACKEND}.ddqn", "DDQN"),
    (f"{BACKEND}.dt", "DecisionTransformer"),
    (f"{BACKEND}.sac", "SAC"),
    (f"{BACKEND}.oac", "OAC"),
    (f"{BACKEND}.cql", "CQL"),
    (f"{BACKEND}.iql", "IQL"),
    ("fluid.a3c", "A3C"),
    ("fluid.impala.impala", "IMPALA"),
    ("fluid.policy_gradient", "PolicyGradient"),
]


@pytest.mark.parametrize(("path", "name"), ALGORITHMS)
def test_an_algorithm_is_the_same_class_by_its_old_path(path: str, name: str) -> None:
    assert getattr(import_module(f"parl.algorithms.{path}"), name) is getattr(parl.algorithms, name)


@pytest.mark.parametrize("framework", [BACKEND, "fluid"])
@pytest.mark.parametrize("name", ["Model", "Algorithm", "Agent"])
def test_a_base_class_is_the_same_class_by_its_old_path(framework: str, name: str) -> None:
    assert getattr(import_module(f"parl.core.{framework}.{name.lower()}"), name) is getattr(parl, name)
    assert getattr(import_module(f"parl.core.{framework}"), name) is getattr(parl, name)


def test_the_check_of_a_model_is_where_algorithms_of_parl_2_import_it_from() -> None:
    from parl.utils.utils import check_model_method

    class Silent(parl.Model):
        pass

    with pytest.raises(TypeError, match="needs to implement `value` method"):
        check_model_method(Silent(), "value", "MyDQN")


def test_a_star_import_brings_all_algorithms_and_layers() -> None:
    names: dict[str, object] = {}
    exec("from parl.algorithms import *; from parl.layers import *", names)
    assert names["DQN"] is parl.algorithms.DQN
    assert names["fc"] is parl.layers.fc


def test_importing_the_facade_loads_none_of_the_old_paths() -> None:
    program = "import sys, parl.algorithms, parl.core; print([n for n in sys.modules if 'algorithms.' in n])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout.strip() == "[]"


def test_v_trace_is_the_module_that_it_was() -> None:
    module = import_module(f"parl.algorithms.{BACKEND}.impala.vtrace")
    assert import_module(f"parl.algorithms.{BACKEND}.impala").vtrace is module
    assert (
        import_module("parl.algorithms.fluid.impala.vtrace").from_importance_weights is module.from_importance_weights
    )


def test_a_module_below_a_framework_that_is_gone_tells_what_took_its_place() -> None:
    told = re.escape(REMOVED_MODULES["parl.core.fluid.plutils"])
    with pytest.raises(ImportError, match=told):
        import_module("parl.core.fluid.plutils.compiler")
    with pytest.raises(ImportError, match=told):
        from parl.core.fluid import plutils  # type: ignore[import-not-found]  # noqa: F401


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "parl-2-names.md"
ROWS = re.findall(r"^\| `([\w.]+)` \| (\w*) \| (\w*) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
LISTED = [
    (name, kind, note) for name, torch, paddle, note in ROWS if (kind := {"torch": torch, "paddle": paddle}[BACKEND])
]


def named(path: str) -> Any:
    """Return what an import of a name's module and its attributes give."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if not str(error).startswith("No module named"):
                raise
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AssertionError(path)


@pytest.mark.parametrize(
    ("path", "name", "instead"),
    [
        (f"parl.algorithms.{BACKEND}", "VTraceLoss", "use from_importance_weights"),
        (f"parl.algorithms.{BACKEND}.mappo", "PopArt", r"parl_core.contracts.mappo.PopArt"),
        ("parl.algorithms.fluid.maddpg", "SoftPDistribution", "use SoftCategoricalDistribution"),
        ("parl.core.fluid.layers", "layer_wrappers", "use parl.layers"),
        ("parl.core.fluid.layers", "attr_holder", "parl.layers needs none"),
    ],
)
def test_a_name_of_a_frameworks_modules_that_is_gone_tells_what_took_its_place(
    path: str, name: str, instead: str
) -> None:
    with pytest.raises(ImportError, match=instead):
        exec(f"from {path} import {name}", {})
    with pytest.raises(ImportError, match=instead):
        exec(f"import {path} as module; module.{name}", {})
    package, _, last = path.rpartition(".")
    with pytest.raises(ImportError, match=instead):
        exec(f"from {package} import {last}; {last}.{name}", {})
    assert importlib.util.find_spec(path) is not None


def test_each_name_of_parl_2_is_what_its_page_says() -> None:
    assert len(LISTED) > 300
    wrong = []
    for name, kind, note in LISTED:
        try:
            named(name)
        except (ImportError, AttributeError) as error:
            told = kind == "message" and note and note.split("; ")[0].replace("\\|", "|") in str(error)
            if not told and not (kind == "changed" and str(error).startswith("type object")):  # a method
                wrong.append(f"{name} is listed as {kind} ({note}): {error}")
        else:
            if kind == "message":
                wrong.append(f"{name} is listed as gone, and there")
    assert wrong == []
