"""A user's program type-checks under mypy --strict and pyright with no backend installed."""

import json
import subprocess

from fresh_environment import FreshEnvironment

PROGRAM = """
from typing import Any

import parl
from parl import layers


@parl.remote_class
class Worker:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def times(self, value: float, *, twice: bool = False) -> float:
        return self.scale * value * (2 if twice else 1)


@parl.remote_class(wait=False)
class Background:
    def run(self, steps: int) -> int:
        return steps


class Policy(parl.Model):
    def __init__(self, act_dim: int) -> None:
        self.fc1 = layers.fc(size=10, act="tanh")
        self.fc2 = layers.fc(size=act_dim, act="softmax")

    def forward(self, obs: Any) -> Any:
        return self.fc2(self.fc1(obs))


def main() -> float:
    parl.connect()
    worker = Worker(2.0)
    product: float = worker.times(21.0, twice=True)
    agent = parl.Agent(parl.algorithms.PolicyGradient(Policy(act_dim=2), lr=1e-3))
    agent.save("./model.ckpt")
    parl.disconnect()
    return product
"""

WRONG = """
import parl


@parl.remote_class
class Worker:
    def times(self, value: float) -> float:
        return value


Worker().times("three")
"""


def test_a_program_passes_mypy_strict_without_a_backend(remote_only: FreshEnvironment) -> None:
    done = _check(remote_only, "mypy", PROGRAM)
    assert done.returncode == 0, done.stdout


def test_mypy_sees_the_signature_of_a_remote_method(remote_only: FreshEnvironment) -> None:
    done = _check(remote_only, "mypy", WRONG)
    assert 'Argument 1 to "times" of "Worker" has incompatible type "str"' in done.stdout


def test_a_program_passes_pyright_without_a_backend(remote_only: FreshEnvironment) -> None:
    done = _check(remote_only, "pyright", PROGRAM)
    assert json.loads(done.stdout)["summary"]["errorCount"] == 0, done.stdout


def test_pyright_sees_the_signature_of_a_remote_method(remote_only: FreshEnvironment) -> None:
    done = _check(remote_only, "pyright", WRONG)
    (error,) = json.loads(done.stdout)["generalDiagnostics"]
    assert error["rule"] == "reportArgumentType"


def _check(environment: FreshEnvironment, tool: str, source: str) -> subprocess.CompletedProcess[str]:
    path = environment.folder / "typed_program.py"
    path.write_text(source)
    if tool == "mypy":
        return environment.run("-m", "mypy", "--strict", str(path))
    python = str(environment.python)
    return environment.run("-m", "pyright", "--outputjson", "--pythonpath", python, str(path))
