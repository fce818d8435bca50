"""The backend in use, imported once before tests in which a warning is an error, and its settings on a GPU."""

import warnings
from importlib import import_module

import pytest

import parl
from parl_core import backends

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # paddle warns when it is imported without ccache
    _ = parl.Model

if backends.current().name == "torch":
    import_module("torch").backends.cudnn.allow_tf32 = False  # results are compared with those of a CPU


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let algorithms compute on the CPU where the test makes its own tensors there."""
    monkeypatch.setenv("PARL_DEVICE", "cpu")
