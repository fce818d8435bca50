"""The simulator of the NeurIPS 2018 challenge AI for Prosthetics (osim-rl) as a Gymnasium environment.

    reset(options={"speeds": (low, high)})    our targets, straight ahead, with the curriculum of training
    reset()                                   the simulator's own targets, which the challenge scores

osim-rl and OpenSim are not requirements of this project; the README describes their installation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from osim_observation import ObservationVector, pelvis_velocity
from targets import Speeds, TargetSpeed

from parl_core.checks import check_int, check_non_negative

__all__ = ["OsimProsthetics", "Shaping", "open_simulator"]

FALLEN_BELOW_M = 0.6
"""Height of the pelvis under which the challenge ends an episode."""
ROUND_ONE_TARGET = np.array([3.0, 0.0, 0.0])
"""Target of difficulty 0, which its observations do not contain."""
PER_STEP = 10.0
"""The challenge's reward for not falling, by which rewards are divided here."""


def open_simulator() -> Any:
    """Return osim-rl's environment of the second round, without its window.

    Raises:
        ImportError: osim-rl or OpenSim is not installed; the message describes the installation.
    """
    try:
        from osim.env import ProstheticsEnv
    except ImportError as error:
        raise ImportError(
            f"the prosthetics simulator needs osim-rl, and with it OpenSim, which conda has: {error}. Follow "
            "https://github.com/stanfordnmbl/osim-rl (conda's opensim, then pip install osim-rl) in the environment of "
            "this program, or train on the walker, which needs neither: --env walker"
        ) from error
    return ProstheticsEnv(visualize=False, difficulty=1)


@dataclass(frozen=True)
class Shaping:
    """Weights of penalties that the challenge's reward does not have; 0 disables a penalty.

    Attributes:
        lean: Penalty per metre by which the head is more than 0.3 m ahead of, behind or beside the pelvis.
        crossing: Penalty per metre by which the left foot is to the right of the right one.
    """

    lean: float = 0.5
    crossing: float = 1.0

    def __post_init__(self) -> None:
        check_non_negative("lean", self.lean)
        check_non_negative("crossing", self.crossing)

    def penalty(self, description: Mapping[str, Any]) -> float:
        """Return the penalty of a state, at least 0."""
        places = {name: np.asarray(place, np.float64) for name, place in description["body_pos"].items()}
        leaning = max(0.0, float(np.hypot(*(places["head"] - places["pelvis"])[[0, 2]])) - 0.3)
        right = next((places[name] for name in ("pros_foot_r", "toes_r") if name in places), None)
        crossed = 0.0 if right is None else max(0.0, float(places["toes_l"][2] - right[2]))  # z points to the right
        return self.lean * leaning + self.crossing * crossed


class OsimProsthetics(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """A muscle model with a prosthetic leg and a changing target velocity.

    The reward is the challenge's, averaged over the frames of a step and divided by 10 (so at most 1), less the
    penalties of `Shaping`. With the simulator's own targets it is the number that the simulator returns, with ours the
    same formula: 10 - (vx - target)**2 - vz**2 - 0.001 * sum(activation**2). `info["score"]` is the challenge's reward
    of the step's frames, neither divided nor shaped.

    An episode terminates when the pelvis is below 0.6 m, and is truncated when the simulator ends it otherwise (its
    time limit).

    Args:
        make: Function that opens the simulator.
        frame_skip: Number of frames (0.01 s each) with the same muscle excitations.
        mean_steps: Mean duration of our targets, in steps of this environment.
        shaping: Weights of the penalties.

    Raises:
        ImportError: The simulator is not installed.
    """

    def __init__(
        self,
        make: Callable[[], Any] = open_simulator,
        frame_skip: int = 4,
        mean_steps: float = 75.0,
        shaping: Shaping = Shaping(),
    ) -> None:
        self._frame_skip, self._mean_steps = check_int("frame_skip", frame_skip), mean_steps
        self._shaping = shaping
        self._simulator = make()
        self._description = self._simulator.reset(project=False)
        self._vector = ObservationVector(self._description)
        self.action_space = gymnasium.spaces.Box(0.0, 1.0, (int(self._simulator.get_action_space_size()),), np.float32)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self._vector.size,), np.float32)
        self._own: TargetSpeed | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; with `options={"speeds": (low, high)}` targets are ours, else the simulator's."""
        super().reset(seed=seed)
        asked = (options or {}).get("speeds")
        self._own = None if asked is None else TargetSpeed(Speeds(*asked), self._mean_steps, self.np_random)
        # The simulator interprets 0 as no seed.
        self._description = self._simulator.reset(project=False, seed=1 + int(self.np_random.integers(2**31 - 1)))
        return self._vector(self._description, self._target()), {}

    def step(self, action: NDArray[Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step; `info` has `speed`, `target_speed` (both straight ahead) and `score`."""
        target, rewards, penalties, speeds, score, done = self._target(), [], [], [], 0.0, False
        for _ in range(self._frame_skip):
            self._description, own_reward, done, _ = self._simulator.step(np.asarray(action, np.float64), project=False)
            score += float(own_reward)
            rewards.append(float(own_reward) if self._own is None else self._reward(target))
            penalties.append(self._shaping.penalty(self._description))
            speeds.append(float(pelvis_velocity(self._description)[0]))
            if done:
                break
        if self._own is not None:
            self._own.step()
        fallen = self._description["body_pos"]["pelvis"][1] < FALLEN_BELOW_M
        reward = float(np.mean(rewards)) / PER_STEP - float(np.mean(penalties))
        info = {"speed": float(np.mean(speeds)), "target_speed": float(target[0]), "score": score}
        return self._vector(self._description, self._target()), reward, bool(fallen), bool(done and not fallen), info

    def _target(self) -> NDArray[np.float64]:
        if self._own is not None:
            return np.array([self._own.value, 0.0, 0.0])
        return np.asarray(self._description.get("target_vel", ROUND_ONE_TARGET), np.float64)

    def _reward(self, target: NDArray[np.float64]) -> float:
        error = (pelvis_velocity(self._description) - target)[[0, 2]]
        activation = np.array([muscle["activation"] for muscle in self._description["muscles"].values()])
        return 10.0 - float(np.square(error).sum()) - 0.001 * float(np.square(activation).sum())
