"""osim-rl's nested description of a state as a vector.

    {"body_pos": {"head": [x, y, z], ...}, "muscles": {"abd_r": {"activation": a, ...}, ...}, ...}  ──>  float32 [size]

Positions are relative to the pelvis, whose own x and z are left out, because the position on the ground does not
matter. Numbers are scaled to about 1 by fixed factors. Markers are left out, because bodies contain the same
information.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ObservationVector", "pelvis_velocity"]

_PELVIS = "pelvis"
# Typical sizes: radians, metres and seconds; newtons of muscles and of contacts.
_GROUPS: Mapping[str, float] = {
    "joint_pos": 1.0,
    "joint_vel": 0.1,
    "joint_acc": 0.001,
    "body_pos": 1.0,
    "body_vel": 0.2,
    "body_acc": 0.002,
    "body_pos_rot": 1.0,
    "body_vel_rot": 0.1,
    "body_acc_rot": 0.001,
    "forces": 0.0002,
}
_MUSCLE: Mapping[str, float] = {"activation": 1.0, "fiber_length": 5.0, "fiber_velocity": 1.0, "fiber_force": 0.0005}
_MASS_CENTER: Mapping[str, float] = {"mass_center_pos": 1.0, "mass_center_vel": 0.2, "mass_center_acc": 0.002}
_LIMIT = 10.0
"""Limit of scaled numbers, because contacts and accelerations have peaks."""

# Coordinates of the joint between ground and pelvis: angles, then x, y, z; in the planar model an angle, then x, y.
_PLACE_OF_PELVIS = {6: (3, 5), 3: (1,)}


class ObservationVector:
    """Converts descriptions into vectors; the first description determines their entries.

    Args:
        description: A state as returned by `ProstheticsEnv.reset(project=False)`.

    Raises:
        KeyError: A group that all models have is missing.
    """

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.names: tuple[str, ...] = tuple(name for name, _ in _numbers(description))
        """Name of each entry, such as `body_pos/head/1`; the target follows them."""

    @property
    def size(self) -> int:
        """The length of the vector, including x and z of the target velocity and of the difference to it."""
        return len(self.names) + 4

    def __call__(self, description: Mapping[str, Any], target: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the vector `[size]`.

        Args:
            description: A state.
            target: Target velocity `[3]` in metres per second.

        Raises:
            ValueError: A number is missing, new or not finite.
        """
        found = dict(_numbers(description))
        if tuple(found) != self.names:
            changed = sorted(set(found) ^ set(self.names))
            raise ValueError(
                f"the simulator's observation has changed since the first one, {len(self.names)} numbers then and "
                f"{len(found)} now; different are {', '.join(changed[:5]) or 'their order'}: make a new environment"
            )
        values = np.fromiter(found.values(), np.float64, len(found))
        if not np.isfinite(values).all():
            spoiled = self.names[int(np.flatnonzero(~np.isfinite(values))[0])]
            raise ValueError(f"{spoiled} is not finite: the simulator's integration has failed; make a new environment")
        missing = target - pelvis_velocity(description)
        behind = np.concatenate([target[[0, 2]], missing[[0, 2]]])
        return np.concatenate([np.clip(values, -_LIMIT, _LIMIT), behind]).astype(np.float32)


def pelvis_velocity(description: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the velocity of the pelvis `[3]` in metres per second; x is ahead, y up."""
    return np.asarray(description["body_vel"][_PELVIS], np.float64)


def _numbers(description: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Return names and scaled numbers, in an order that does not depend on that of the dictionaries."""
    origin = np.asarray(description["body_pos"][_PELVIS], np.float64)
    for group, scale in _GROUPS.items():
        for name, parts in sorted(description[group].items()):
            values = np.asarray(parts, np.float64)
            skipped: tuple[int, ...] = ()
            if group == "body_pos" and name == _PELVIS:
                skipped = (0, 2)  # only the height remains
            elif group == "body_pos":
                values = values - origin
            elif group == "joint_pos" and name == "ground_pelvis":
                skipped = _PLACE_OF_PELVIS.get(len(values), ())
            for index, value in enumerate(values.tolist()):
                if index not in skipped:
                    yield f"{group}/{name}/{index}", scale * value
    for name, muscle in sorted(description["muscles"].items()):
        for part, scale in _MUSCLE.items():
            yield f"muscles/{name}/{part}", scale * muscle[part]
    for part, scale in _MASS_CENTER.items():
        values = np.asarray(description["misc"][part], np.float64)
        if part == "mass_center_pos":
            values = values - origin
        for index, value in enumerate(values.tolist()):
            yield f"misc/{part}/{index}", scale * value
