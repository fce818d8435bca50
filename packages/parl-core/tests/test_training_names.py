"""`parl_core.training` offers what its modules define, and imports none of them before they are used."""

import subprocess
import sys
from typing import Any

import pytest

from parl_core import training
from parl_core.training import events, fragment, on_policy, self_play


def test_every_public_name_is_there_and_no_other() -> None:
    assert dir(training) == training.__all__ == sorted(training.__all__)
    for name in training.__all__:
        assert getattr(training, name).__name__ == name
    assert not hasattr(training, "evaluation_of_nothing")


def test_a_star_import_from_the_facade_brings_all_of_them() -> None:
    names: dict[str, object] = {}
    exec("from parl.training import *", names)
    assert {name: names[name] for name in names if name != "__builtins__"} == {
        name: getattr(training, name) for name in training.__all__
    }


def test_importing_it_imports_neither_numpy_nor_gymnasium() -> None:
    program = "import sys; from parl_core import training; training.Run; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert not {"numpy", "gymnasium", "matplotlib", "tqdm", "tensorboardX"} & set(shown.split())


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (on_policy, "Rollout", "RolloutSteps"),
        (fragment, "Fragment", "FragmentSteps"),
        (events, "Figures", "MetricMeans"),
        (self_play, "Chooses", "PlayerPolicy"),
    ],
)
def test_former_names_of_classes_warn_and_work(module: Any, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"use `{new}` instead"):
        assert getattr(module, old) is getattr(module, new)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        module.Nothing  # noqa: B018 - its error is wanted
