"""The facade's six rules, where no backend is installed and where several are."""

import logging
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import parl
from parl_core import backends
from parl_core.errors import BackendNotInstalled, UnknownBackend
from parl_core.training import recipes, results, trained


class FakePoint:
    """An entry point whose backend has one model class and one algorithm."""

    def __init__(self, name: str) -> None:
        self.name = name

    def load(self) -> Any:
        algorithms = ModuleType(f"fake_{self.name}.algorithms")
        algorithms.__all__ = ["PPO"]  # type: ignore[attr-defined]
        algorithms.PPO = type("PPO", (), {"backend": self.name})  # type: ignore[attr-defined]
        model = type("Model", (), {"backend": self.name})
        return lambda: SimpleNamespace(name=self.name, Model=model, algorithms=algorithms)


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make exactly the given backends installed, with nothing chosen yet."""
    monkeypatch.delenv("PARL_BACKEND", raising=False)
    monkeypatch.setattr(backends, "_choice", backends._Choice())

    def install(*names: str) -> None:
        def entry_points(group: str, name: str | None = None) -> list[FakePoint]:
            assert group == "parl.backends"
            return [FakePoint(other) for other in names if name in (None, other)]

        monkeypatch.setattr(backends.metadata, "entry_points", entry_points)

    return install


def installed(part: Any) -> str:
    """The fake backend that a name of the facade came from."""
    name: str = part.backend
    return name


def test_the_only_backend_installed_is_used(choose: Any) -> None:
    choose("torch")
    assert installed(parl.Model) == "torch"
    assert installed(parl.algorithms.PPO) == "torch"


def test_paddle_comes_before_torch_with_one_log_line(choose: Any, caplog: pytest.LogCaptureFixture) -> None:
    choose("torch", "paddle")
    with caplog.at_level(logging.WARNING, logger="parl"):
        assert installed(parl.Model) == "paddle"
        assert installed(parl.Model) == "paddle"
    (record,) = caplog.records
    assert "PARL_BACKEND=torch" in record.getMessage()


def test_what_is_installed_is_read_once(choose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    choose("torch")
    assert installed(parl.Model) == "torch"
    monkeypatch.setattr(backends, "installed", lambda: pytest.fail("read again"))
    assert installed(parl.Model) == "torch"


def test_set_backend_decides_between_several(choose: Any) -> None:
    choose("torch", "paddle")
    parl.set_backend("torch")
    assert installed(parl.Model) == "torch"


def test_the_environment_variable_wins_and_says_so(
    choose: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    choose("torch", "paddle")
    monkeypatch.setenv("PARL_BACKEND", "torch")
    with caplog.at_level(logging.WARNING, logger="parl"):
        parl.set_backend("paddle")
    assert installed(parl.Model) == "torch"
    assert "takes precedence" in caplog.text


def test_a_backend_that_is_not_installed_is_answered_with_its_install_line(choose: Any) -> None:
    choose("torch")
    with pytest.raises(BackendNotInstalled, match="pip install parl-paddle"):
        parl.set_backend("paddle")


def test_an_unknown_backend_is_named_beside_the_installed_ones(choose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    choose("torch")
    monkeypatch.setenv("PARL_BACKEND", "jax")
    with pytest.raises(UnknownBackend, match=r"'jax'.*installed: torch"):
        _ = parl.Model


def test_no_backend_at_all_is_answered_with_both_install_lines(choose: Any) -> None:
    choose()
    with pytest.raises(ImportError, match=r"pip install parl-torch\n.*pip install parl-paddle"):
        from parl.algorithms import PPO  # noqa: F401


def test_the_transformer_of_a_backend_comes_from_its_own_package(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"algorithms": "DecisionTransformer", "agent": "Agent", "transformer": "TrajectoryTransformer"}
    for part, name in parts.items():
        made = type(name, (), {"TEAM": False, "__init__": lambda self, *args, **_: setattr(self, "args", args)})
        module = ModuleType(f"elsewhere.{part}")
        vars(module).update({name: made, "__all__": [name]})
        monkeypatch.setitem(sys.modules, module.__name__, module)
    third = type("ThirdBackend", (backends.Backend,), {"name": "third", "__module__": "elsewhere.backend"})()
    monkeypatch.setattr(backends, "current", lambda: third)
    for agent in (
        trained.Trained("DecisionTransformer", "CartPole-v1", "third").make_agent(),
        results._agent("DecisionTransformer", "CartPole-v1", recipes.Recipe(loop=None), seed=0),
    ):
        (algorithm,) = agent.args
        (network,) = algorithm.args
        assert type(network).__name__ == "TrajectoryTransformer"
        assert network.args == (4, 2)


def test_an_unknown_algorithm_is_answered_with_the_known_ones(choose: Any) -> None:
    choose("torch")
    with pytest.raises(AttributeError, match="no algorithm 'PPo'; it has PPO"):
        _ = parl.algorithms.PPo


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = parl.nothing  # type: ignore[attr-defined]


def test_every_public_name_is_listed() -> None:
    assert sorted(parl.__all__) == dir(parl)


def test_importing_the_facade_loads_nothing_heavy() -> None:
    heavy = ["zmq", "cloudpickle", "psutil", "click", "gymnasium", "tensorboardX", "matplotlib", "parl_remote"]
    source = f"import sys, parl, parl.utils, parl.env; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "[]", done.stderr


def test_remote_names_come_from_parl_remote() -> None:
    import parl_remote

    assert parl.remote_class is parl_remote.remote_class
    assert parl.connect is parl_remote.connect
    assert parl.disconnect is parl_remote.disconnect


def test_all_public_names_of_parl_remote_are_here() -> None:
    import parl_remote

    missing = set(parl_remote.__all__) - set(parl.__all__)
    assert not missing
    assert parl.ActorLost is parl_remote.ActorLost
