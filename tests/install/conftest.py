"""Wheels of the five packages, built once, and fresh virtual environments to install them into."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fresh_environment import ROOT, FreshEnvironment

PACKAGES = ("parl-core", "parl-torch", "parl-paddle", "parl-remote", "parl-evokit")


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheels")
    for package in PACKAGES:
        source = str(ROOT / "packages" / package)
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), source]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    return out


@pytest.fixture(scope="session")
def make_fresh(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Callable[..., FreshEnvironment]:
    def make(*requirements: str) -> FreshEnvironment:
        environment = FreshEnvironment(tmp_path_factory.mktemp("fresh") / "env", wheels)
        environment.install(*requirements)
        return environment

    return make


@pytest.fixture(scope="session")
def remote_only(make_fresh: Callable[..., FreshEnvironment]) -> FreshEnvironment:
    return make_fresh("parl-remote", "mypy", "pyright[nodejs]")
