"""A package refuses a parl-core of another API version at import, in one line."""

from pathlib import Path

import pytest

from parl_core import _compatibility
from parl_core.errors import IncompatiblePackages


def test_the_original_parl_over_parl_core_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compatibility, "__file__", str(tmp_path / "parl_core" / "_compatibility.py"))
    _compatibility.require_core(f"parl-torch {_compatibility.__version__}", ">=0.1,<2")
    (tmp_path / "parl" / "core").mkdir(parents=True)
    (tmp_path / "parl" / "core" / "__init__.py").touch()
    with pytest.raises(IncompatiblePackages, match=r"original PARL.*\n.*pip uninstall parl\n.*--force-reinstall"):
        _compatibility.require_core(f"parl-torch {_compatibility.__version__}", ">=0.1,<2")


@pytest.mark.parametrize("version", ["0.1.0", "0.1.9", "0.2.0rc1"])
def test_a_version_within_the_bounds_passes(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compatibility, "__version__", version)
    _compatibility.require_core("parl-remote 0.1.0", ">=0.1,<0.3")


def test_a_newer_parl_core_is_refused_with_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compatibility, "__version__", "0.2.0")
    with pytest.raises(IncompatiblePackages) as refused:
        _compatibility.require_core("parl-remote 0.1.0", ">=0.1,<0.2")
    assert str(refused.value) == (
        "parl-remote 0.1.0 needs parl-core>=0.1,<0.2, and parl-core 0.2.0 is installed:"
        " pip install 'parl-core>=0.1,<0.2' (or pip install --upgrade parl-remote)"
    )


def test_an_older_parl_core_is_refused_with_the_one_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compatibility, "__version__", "0.9.3")
    with pytest.raises(ImportError) as refused:
        _compatibility.require_core("parl-torch 1.2.0", ">=1.1,<2")
    assert str(refused.value).endswith("is installed: pip install 'parl-core>=1.1,<2'")
