"""Write the checkpoints that the tests of the other backend read.

    PYTHONPATH=tests python tools/checkpoint_fixtures.py torch

Each is a checkpoint of a short run by `parl_core.checkpoint`, with the actions of its agent for some observations. They
are made once per version of the format, and are kept when a newer version is added.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from conformance.resume import KINDS, train
from parl_core.checkpoint import VERSION
from parl_core.training.callbacks import StepBudget
from parl_core.training.run import Run
from parl_core.training.trained import Trained

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "checkpoints"


def main(backend: str) -> None:
    """Write the checkpoints of one backend."""
    for kind in ("PPO", "DQN", "SAC"):
        algorithm, env, _ = KINDS[kind]
        name = f"version-{VERSION}-{backend}-{kind}"
        with tempfile.TemporaryDirectory() as scratch:
            with Run.at(Path(scratch) / "run") as run:
                train(backend, kind, run, StepBudget(90))
            newest = max(path for path in (Path(scratch) / "run" / "checkpoints").iterdir() if path.name.isdigit())
            target = FOLDER / name
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(newest, target / newest.name)
        agent: Any = Trained(algorithm, env, backend, (16,), {}, seed=99).make_agent()
        agent.restore(target / newest.name / "agent.safetensors")
        obs = np.random.default_rng(0).normal(size=(32, 3 if algorithm == "SAC" else 4)).astype(np.float32)
        answers = {"action": agent.predict(obs), "output": agent.run(agent.alg.predict, obs)}
        np.savez(target / "answers.npz", obs=obs, **answers)
        print(target)


if __name__ == "__main__":
    main(sys.argv[1])
