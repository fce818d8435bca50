"""A checkpoint of one backend acts on the other as it did where it was written, to 1e-5."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from click.testing import CliRunner

import parl as facade
from conformance.programs import environment
from conformance.resume import KINDS, train
from parl_core import backends
from parl_core.checkpoint import CheckpointStore
from parl_core.cli._commands import parl
from parl_core.training.callbacks import StepBudget
from parl_core.training.run import Run
from parl_core.training.trained import Trained

__all__ = ["CheckpointExchange", "answers"]

TOLERANCE = 1e-5
OTHER = {"torch": "paddle", "paddle": "torch"}

_ELSEWHERE = """
import sys
import numpy as np
from conformance.exchange import answers

backend, kind, checkpoint, obs, out = sys.argv[1:]
np.savez(out, **answers(backend, kind, checkpoint, np.load(obs)))
"""


def answers(backend: str, kind: str, agent_file: str | Path, obs: Any, *, kept: bool = False) -> dict[str, Any]:
    """Return the answers of a saved agent on a backend: actions, and the outputs of the network that they follow from.

    Args:
        backend: its name.
        kind: of `conformance.resume.KINDS`.
        agent_file: of a checkpoint of either backend.
        obs: `[n, *obs]`.
        kept: it is one of `tools/checkpoint_fixtures.py`.
    """
    algorithm, env, _ = KINDS[kind]
    backends.set_backend(backend)
    if kept and algorithm == "PPO":
        agent: Any = facade.Agent(facade.algorithms.PPO(_kept_actor_critic()), seed=99)
    else:
        agent = Trained(algorithm, env, backend, (16,), {}, seed=99).make_agent()  # other weights than the saved ones
    agent.restore(agent_file)
    return {"action": agent.predict(obs), "output": agent.run(agent.alg.predict, obs)}


def _kept_actor_critic() -> Any:
    """Return the network that `parl train ppo` had when the kept checkpoints were written."""

    class ActorCritic(facade.Model):
        def __init__(self) -> None:
            fc = facade.layers.fc
            self.policy_0, self.policy_out = fc(16, act="tanh"), fc(2)
            self.value_0, self.value_out = fc(16, act="tanh"), fc(1)

        def policy(self, obs: Any) -> Any:
            return self.policy_out(self.policy_0(obs))

        def value(self, obs: Any) -> Any:
            return self.value_out(self.value_0(obs))

    return ActorCritic()


_RESUMED_ELSEWHERE = """
import sys
import numpy as np
from click.testing import CliRunner
from parl_core.cli._commands import parl
from conformance.resume import train
from parl_core.training.run import Run

backend, program, commanded, out = sys.argv[1:]
with Run.resume(program) as run:
    np.savez(out, **train(backend, "DQN", run)[0])
done = CliRunner().invoke(parl, ["resume", commanded, "--backend", backend])
assert done.exit_code == 0, done.output
"""


class CheckpointExchange:
    """Checkpoints of both backends, also such as older versions wrote, are read by this one."""

    backend: ClassVar[str]
    folder: ClassVar[Path]
    """Checkpoints that `tools/checkpoint_fixtures.py` wrote."""

    @pytest.mark.parametrize("kind", ["PPO", "DQN", "SAC"])
    @pytest.mark.parametrize("writer", ["torch", "paddle"])
    def test_a_kept_checkpoint_of_either_backend_acts_as_it_did(self, kind: str, writer: str) -> None:
        found = [path for path in self.folder.iterdir() if path.name.endswith(f"-{writer}-{kind}")]
        assert found, f"no checkpoint of {writer} and {kind} in {self.folder}"
        for path in found:  # one a version of the format
            checkpoint = CheckpointStore(path).read_latest()
            assert checkpoint is not None
            assert checkpoint.backend == writer
            assert checkpoint.state["loop"]["step"] == checkpoint.step
            with np.load(path / "answers.npz") as expected:
                given = answers(self.backend, kind, checkpoint.agent, expected["obs"], kept=True)
                for name in ("action", "output"):
                    np.testing.assert_allclose(given[name], expected[name], rtol=TOLERANCE, atol=TOLERANCE)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["PPO", "SAC"])
    def test_a_checkpoint_written_now_acts_in_the_other_backends_process_as_here(
        self, kind: str, tmp_path: Path
    ) -> None:
        other = OTHER[self.backend]
        _python_with(other)
        with Run.at(tmp_path / "run") as run:
            train(self.backend, kind, run, StepBudget(90))
        checkpoint = CheckpointStore(tmp_path / "run" / "checkpoints").read_latest()
        assert checkpoint is not None
        obs = np.random.default_rng(0).normal(size=(64, 3 if kind == "SAC" else 4)).astype(np.float32)
        np.save(tmp_path / "obs.npy", obs)
        _run_with(other, _ELSEWHERE, other, kind, checkpoint.agent, tmp_path / "obs.npy", tmp_path / "given.npz")
        here = answers(self.backend, kind, checkpoint.agent, obs)
        with np.load(tmp_path / "given.npz") as there:
            for name in ("action", "output"):
                np.testing.assert_allclose(there[name], here[name], rtol=TOLERANCE, atol=TOLERANCE)

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_a_run_goes_on_with_the_other_backend(self, tmp_path: Path) -> None:
        other = OTHER[self.backend]
        _python_with(other)
        here, there, commanded = tmp_path / "here", tmp_path / "there", tmp_path / "commanded"
        with Run.at(here) as run:
            train(self.backend, "DQN", run, StepBudget(90))
        shutil.copytree(here, there)
        asked = ["train", "ppo", "CartPole-v1", "--backend", self.backend, "--run", str(commanded), "--steps", "600"]
        done = CliRunner().invoke(parl, [*asked, "--checkpoint-every", "300", "--stop-after", "300"])
        assert done.exit_code == 0, done.output
        said = _run_with(other, _RESUMED_ELSEWHERE, other, there, commanded, tmp_path / "learned.npz")
        # All that DQN draws it draws on the host, so both runs go on in the same way, but for rounding.
        with Run.resume(here) as run:
            expected, _ = train(self.backend, "DQN", run)
        with np.load(tmp_path / "learned.npz") as learned:
            assert set(learned) == set(expected)
            for name, array in expected.items():
                np.testing.assert_allclose(learned[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
        assert f"was written on {self.backend}: on {other}, other random numbers are drawn" in said
        newest = CheckpointStore(commanded / "checkpoints").read_latest()
        assert newest is not None
        assert (newest.backend, newest.step >= 600) == (other, True)

    def test_kept_checkpoints_say_their_version(self) -> None:
        for path in self.folder.glob("*/0*/manifest.json"):
            assert path.parts[-3].startswith(f"version-{json.loads(path.read_text())['version']}-")


def _python_with(backend: str) -> Path:
    """An interpreter that has this backend, and not the other one."""
    # Where both are installed beside each other, as hatch does, the environments have the backends' names.
    python = Path(sys.prefix).with_name(backend) / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment with {backend} beside {sys.prefix}; the kept checkpoints are read all the same")
    return python


def _run_with(backend: str, program: str, *arguments: object) -> str:
    """Run a program there and return what it said."""
    command = [str(_python_with(backend)), "-c", program, *map(str, arguments)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
