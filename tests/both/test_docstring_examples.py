"""The examples in the docstrings of what programs begin with run as they are written."""

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parl
from parl import training
from parl_core.agent import Agent
from parl_core.algorithm import Algorithm
from parl_core.model import Model
from parl_core.offline import OfflineDataset
from parl_core.schedules import linear

pytestmark = pytest.mark.usefixtures("on_the_cpu")

_BLOCK = re.compile(r"\n\n((?:(?: {4}.*)?\n)+)(?=Args:|Attributes:)")


@pytest.mark.parametrize(
    "documented",
    [
        Agent,
        Algorithm,
        Model,
        OfflineDataset,
        training.standard_callbacks,
        training.train_on_policy,
        training.train_off_policy,
        training.train_actor_learner,
        linear,
    ],
    ids=lambda documented: documented.__name__,
)
def test_an_example_of_a_docstring_runs(documented: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _BLOCK.search(inspect.getdoc(documented) or "")
    assert found, f"{documented.__name__} has no example in front of its arguments"
    monkeypatch.chdir(tmp_path)
    exec(textwrap.dedent(found[1]), {"np": np, "parl": parl, "training": training, "OfflineDataset": OfflineDataset})
