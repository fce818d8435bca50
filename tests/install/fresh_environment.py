"""A virtual environment that holds nothing but what a test installs."""

import os
import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
