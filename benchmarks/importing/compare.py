"""Import the files of `write.py`, and count the actions that equal Stable-Baselines3's.

    python benchmarks/importing/compare.py FOLDER --backend torch

An action of numbers counts as equal within 1e-5 of the width of its space. The exit status is 1 where one differs.
"""

import argparse
import json
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

from parl_core.backends import set_backend
from parl_core.export import export_run
from parl_core.importing import import_run
from parl_core.policy import load


def _box(shape, low=-1.0, high=1.0, dtype=np.float32):
    return spaces.Box(low, high, shape, dtype)


UNEVEN = spaces.Box(np.array([-2.0, 0.0, -1.0], np.float32), np.array([1.0, 10.0, 1.0], np.float32))
SPACES = {
    "dqn-one-hot": (spaces.Discrete(6), spaces.Discrete(4)),
    "dqn-image": (spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(5)),
    "ppo-uneven": (_box((5,)), UNEVEN),
    "ppo-several": (spaces.MultiDiscrete([3, 5]), spaces.MultiDiscrete([2, 4, 3])),
    "ppo-bits": (spaces.MultiBinary(6), spaces.MultiBinary(4)),
    "ppo-image": (spaces.Box(0, 255, (40, 44, 3), np.uint8), spaces.Discrete(3)),
    "a2c-uneven": (_box((2, 3)), UNEVEN),
    "sac-uneven": (_box((5,)), UNEVEN),
    "td3-uneven": (_box((5,)), UNEVEN),
}


class Shown(gymnasium.Env):
    """An environment like that of `write.py`."""

    def __init__(self, case: str) -> None:
        self.observation_space, self.action_space = SPACES[case]

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):  # noqa: ARG002
        return self.observation_space.sample(), 0.0, False, False, {}


def main() -> int:
    """Compare every case by an export that needs only numpy, which is also compared with the agent itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", choices=("torch", "paddle"), default="torch")
    options = parser.parse_args()
    set_backend(options.backend)
    for case in SPACES:
        gymnasium.register(f"{case}-v0", lambda **options: Shown(**options), kwargs={"case": case})
    failed = 0
    for file in sorted(options.folder.glob("*.zip")):
        case = file.stem
        told = json.loads(file.with_suffix(".json").read_text())
        with tempfile.TemporaryDirectory() as folder:
            statistics = file.with_suffix(".pkl") if file.with_suffix(".pkl").exists() else None
            found = import_run(file, told["env"] or f"{case}-v0", Path(folder) / "run", normalization=statistics)
            policy = load(export_run(found.folder, observations=100).path)
        with np.load(file.with_suffix(".npz")) as arrays:
            observations, theirs = arrays["observations"], arrays["actions"]
        ours = np.asarray(policy(observations)).reshape(theirs.shape)
        if theirs.dtype.kind == "f":
            gap = np.abs(ours - theirs).max(initial=0.0)
            equal = int((np.abs(ours - theirs) <= 1e-5 * np.abs(theirs).max()).reshape(len(ours), -1).all(1).sum())
        else:
            gap = 0.0
            equal = int((ours == theirs).reshape(len(ours), -1).all(1).sum())
        failed += equal < len(ours)
        right = found.algorithm == told["algorithm"]
        failed += not right
        print(f"{case:16} {found.algorithm:5} {equal} of {len(ours)} equal, largest gap {gap:.1e}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
