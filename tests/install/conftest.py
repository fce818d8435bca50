"""Wheels of the five packages, built once, and fresh virtual environments that hold nothing but what a test installs."""

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("parl-core", "parl-torch", "parl-paddle", "parl-remote", "parl-evokit")


class FreshEnvironment:
    """A virtual environment of its own, without the test process's packages, path or environment variables of PARL."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        self.folder = folder
        self._wheels = wheels
        venv.create(folder, with_pip=True)
        self.python = folder / "bin" / "python"

    def install(self, *requirements: str) -> None:
        command = [self.python, "-m", "pip", "install", "--quiet", "--find-links", self._wheels, *requirements]
        subprocess.run([str(part) for part in command], check=True, env=self._env(), timeout=900)

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.python), *arguments],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=cwd or self.folder,
            env=self._env(),
        )

    def script(self, source: str, name: str = "program.py") -> subprocess.CompletedProcess[str]:
        path = self.folder / name
        path.write_text(source)
        return self.run(str(path))

    def site_packages(self) -> Path:
        return next((self.folder / "lib").glob("python3*")) / "site-packages"

    def _env(self) -> dict[str, str]:
        dropped = ("PYTHONPATH", "PARL_BACKEND", "PARL_DEVICE", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        kept["PIP_CONSTRAINT"] = str(ROOT / "tools" / "constraints.txt")
        kept["PATH"] = f"{self.folder / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}"
        return kept


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
