"""The adapter of the prosthetics example, against a fake simulator with the observations that osim-rl publishes."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

EXAMPLE = Path(__file__).parents[2] / "examples" / "prosthetics"

JOINTS = {"ground_pelvis": 6, "hip_r": 3, "knee_r": 1, "ankle_r": 1, "hip_l": 3, "knee_l": 1, "ankle_l": 1}
JOINTS |= {"subtalar_l": 0, "mtp_l": 0, "back": 1, "back_0": 0}
BODIES: tuple[str, ...] = (
    "pelvis",
    "femur_r",
    "pros_tibia_r",
    "pros_foot_r",
    "femur_l",
    "tibia_l",
    "talus_l",
    "calcn_l",
    "toes_l",
)
BODIES += ("torso", "head")
BOTH = ("abd", "add", "hamstrings", "bifemsh", "glut_max", "iliopsoas", "rect_fem", "vasti")
MUSCLES = [f"{name}_{side}" for name in BOTH for side in "rl"] + ["gastroc_l", "soleus_l", "tib_ant_l"]
FORCES = {"ankleSpring": 4, "pros_foot_r_0": 24, "foot_l": 24, "HipLimit_r": 2, "KneeLimit_l": 2}
PARTS = ("activation", "fiber_length", "fiber_velocity", "fiber_force")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's modules, by name; they are forgotten afterwards, because other examples have some of that name."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    before = set(sys.modules)
    import osim_env
    import osim_observation
    import targets

    yield type("Modules", (), {"env": osim_env, "observation": osim_observation, "targets": targets})
    for name in set(sys.modules) - before:
        if str(EXAMPLE) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


class FakeProsthetics:
    """Moves ahead with 1.5 m/s; a first excitation above 0.9 lets it fall, and 30 frames are its time limit."""

    def __init__(self, difficulty: int = 1) -> None:
        self.difficulty = difficulty
        self.frame = 0
        self.seeds: list[int | None] = []
        self.actions: list[Any] = []
        self.fallen = False
        self.changed: dict[str, Any] = {}

    def get_action_space_size(self) -> int:
        return len(MUSCLES)

    def reset(self, project: bool = True, seed: int | None = None) -> dict[str, Any]:
        assert not project, "the adapter reads dictionaries"
        self.seeds.append(seed)
        self.frame, self.fallen = 0, False
        return self.description()

    def step(self, action: Any, project: bool = True) -> list[Any]:
        assert not project
        self.actions.append(np.array(action))
        self.frame += 1
        self.fallen = bool(action[0] > 0.9)
        return [self.description(), 9.0 + 0.01 * self.frame, self.fallen or self.frame >= 30, {}]

    def description(self) -> dict[str, Any]:
        x = 0.015 * self.frame
        height = 0.5 if self.fallen else 0.94
        offsets = {"head": 0.6, "torso": 0.1, "pelvis": 0.0, "toes_l": -0.9, "pros_foot_r": -0.9}
        sides = {"toes_l": -0.1, "pros_foot_r": 0.1}
        place = {name: [x, height + offsets.get(name, -0.5), sides.get(name, 0.0)] for name in BODIES}
        vectors = ("body_vel", "body_acc", "body_pos_rot", "body_vel_rot", "body_acc_rot")
        found: dict[str, Any] = {group: {name: [1.5, 0.0, 0.2] for name in BODIES} for group in vectors}
        found["body_pos"] = place
        for group in ("joint_pos", "joint_vel", "joint_acc"):
            found[group] = {name: [0.1 * i for i in range(count)] for name, count in JOINTS.items()}
        found["joint_pos"]["ground_pelvis"] = [0.0, 0.0, 0.0, x, height, 0.0]
        found["forces"] = {name: [100.0] * count for name, count in FORCES.items()}
        found["muscles"] = {name: dict.fromkeys(PARTS, 0.2) for name in MUSCLES}
        found["markers"] = {"sternum": {"pos": [x, 1.4, 0.0], "vel": [0.0] * 3, "acc": [0.0] * 3}}
        centre = {"mass_center_pos": [x, height, 0.0], "mass_center_vel": [1.5, 0.0, 0.0]}
        found["misc"] = {**centre, "mass_center_acc": [0.0] * 3}
        if self.difficulty > 0:
            found["target_vel"] = [1.25 + (0.25 if self.frame >= 8 else 0.0), 0.0, -0.1]
        return found | self.changed


def named(env: Any, obs: Any) -> dict[str, float]:
    return dict(zip([*env._vector.names, "target_x", "target_z", "missing_x", "missing_z"], obs.tolist(), strict=True))


@pytest.mark.filterwarnings("ignore:.*infinity:UserWarning")  # velocities have no bounds
def test_it_is_a_gymnasium_environment(example: Any) -> None:
    check_env(example.env.OsimProsthetics(FakeProsthetics), skip_render_check=True)


def test_the_vector_has_every_published_group_and_no_place_on_the_ground(example: Any) -> None:
    env = example.env.OsimProsthetics(FakeProsthetics)
    obs, _ = env.reset(seed=1)
    numbers = named(env, obs)
    expected = 3 * sum(JOINTS.values()) - 2 + 6 * 3 * len(BODIES) - 2 + sum(FORCES.values()) + 4 * len(MUSCLES) + 9 + 4
    assert obs.shape == (expected,) == env.observation_space.shape
    assert obs.dtype == np.float32
    assert numbers["body_pos/pelvis/1"] == pytest.approx(0.94)
    assert numbers["body_pos/head/1"] == pytest.approx(0.6)
    assert numbers["misc/mass_center_pos/0"] == 0.0
    assert not {"body_pos/pelvis/0", "body_pos/pelvis/2", "joint_pos/ground_pelvis/3"} & set(numbers)
    assert not [name for name in numbers if name.startswith("markers")]
    # Nothing but the target tells a state from the same one further on.
    further, *_ = env.step(np.zeros(19, np.float32))
    moved = {name for name, value in named(env, further).items() if value != pytest.approx(numbers[name])}
    assert moved == set()


def test_the_order_of_dictionaries_does_not_matter(example: Any) -> None:
    description = FakeProsthetics().description()
    backwards = {
        group: dict(reversed(parts.items())) if isinstance(parts, dict) else parts
        for group, parts in reversed(description.items())
    }
    vector, target = example.observation.ObservationVector(description), np.array([1.0, 0.0, 0.0])
    np.testing.assert_array_equal(vector(description, target), vector(backwards, target))


def test_a_target_of_the_simulators_changes_in_the_episode_and_its_reward_counts(example: Any) -> None:
    env = example.env.OsimProsthetics(FakeProsthetics, frame_skip=4)
    obs, _ = env.reset(seed=1)
    seen = [named(env, obs)]
    for _ in range(3):
        obs, reward, terminated, truncated, info = env.step(np.zeros(19, np.float32))
        seen.append(named(env, obs))
        assert (terminated, truncated) == (False, False)
    assert [numbers["target_x"] for numbers in seen] == pytest.approx([1.25, 1.25, 1.5, 1.5])
    assert seen[0]["missing_x"] == pytest.approx(1.25 - 1.5)
    assert seen[0]["missing_z"] == pytest.approx(-0.1 - 0.2)
    assert info["target_speed"] == 1.5  # what was asked for when the step was chosen
    assert info["speed"] == 1.5
    frames = [9.0 + 0.01 * frame for frame in (9, 10, 11, 12)]
    assert info["score"] == pytest.approx(sum(frames))
    assert reward == pytest.approx(np.mean(frames) / 10.0)


def test_the_first_round_has_no_target_in_its_observations_and_asks_for_three_metres_a_second(example: Any) -> None:
    env = example.env.OsimProsthetics(lambda: FakeProsthetics(difficulty=0))
    obs, _ = env.reset(seed=1)
    assert named(env, obs)["target_x"] == 3.0


def test_a_target_of_ours_is_paid_by_the_challenges_formula(example: Any) -> None:
    env = example.env.OsimProsthetics(FakeProsthetics)
    obs, _ = env.reset(seed=1, options={"speeds": (1.0, 1.0)})
    assert named(env, obs)["target_x"] == 1.0
    _, reward, _, _, info = env.step(np.zeros(19, np.float32))
    # 10 - (1.5 - 1)^2 - 0.2^2 - 0.001 * 19 * 0.2^2
    assert reward == pytest.approx((10.0 - 0.25 - 0.04 - 0.00076) / 10.0)
    assert info["target_speed"] == 1.0
    assert info["score"] == pytest.approx(4 * 9.0 + 0.1)


def test_targets_of_ours_change_and_repeat_with_their_seed(example: Any) -> None:
    env = example.env.OsimProsthetics(FakeProsthetics, mean_steps=2.0)

    def asked() -> list[float]:
        env.reset(seed=5, options={"speeds": (0.5, 2.0)})
        return [env.step(np.zeros(19, np.float32))[4]["target_speed"] for _ in range(7)]

    first = asked()
    assert len(set(first)) > 1
    assert first == asked()
    assert 0.5 <= min(first) <= max(first) <= 2.0


def test_an_action_is_held_for_the_frames_that_are_skipped(example: Any) -> None:
    fake = FakeProsthetics()
    env = example.env.OsimProsthetics(lambda: fake, frame_skip=3)
    env.reset(seed=1)
    action = np.linspace(0.0, 0.5, 19, dtype=np.float32)
    env.step(action)
    assert len(fake.actions) == 3
    np.testing.assert_allclose(fake.actions[-1], action)


def test_a_fall_terminates_and_the_simulators_time_limit_truncates(example: Any) -> None:
    fake = FakeProsthetics()
    env = example.env.OsimProsthetics(lambda: fake, frame_skip=4)
    env.reset(seed=1)
    *_, terminated, truncated, _ = env.step(np.ones(19, np.float32))
    assert (terminated, truncated, len(fake.actions)) == (True, False, 1)  # no frame after the fall
    env.reset(seed=1)
    ends = [env.step(np.zeros(19, np.float32))[2:4] for _ in range(8)]
    assert ends == [(False, False)] * 7 + [(False, True)]


def test_seeds_reach_the_simulator_and_none_is_zero(example: Any) -> None:
    fake = FakeProsthetics()
    env = example.env.OsimProsthetics(lambda: fake)
    for seed in (1, 1, 2):
        env.reset(seed=seed)
    first, again, other = fake.seeds[-3:]
    assert first == again != other
    assert all(fake.seeds[1:])


def test_leaning_and_crossed_legs_cost_what_their_weights_say(example: Any) -> None:
    shaping = example.env.Shaping(lean=2.0, crossing=3.0)
    description = FakeProsthetics().description()
    assert shaping.penalty(description) == 0.0
    places = description["body_pos"]
    places["head"] = [places["pelvis"][0] + 0.3, 1.5, 0.4]
    assert shaping.penalty(description) == pytest.approx(2.0 * (0.5 - 0.3))
    places["head"] = places["pelvis"]
    places["toes_l"], places["pros_foot_r"] = [0.0, 0.0, 0.15], [0.0, 0.0, 0.05]
    assert shaping.penalty(description) == pytest.approx(3.0 * 0.1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"joint_pos": {"ground_pelvis": [0.0] * 6}}, "observation has changed since the first one"),
        ({"misc": {f"mass_center_{part}": [math.nan] * 3 for part in ("pos", "vel", "acc")}}, "is not finite"),
    ],
)
def test_a_state_that_no_agent_can_use_is_an_error(example: Any, changed: dict[str, Any], message: str) -> None:
    fake = FakeProsthetics()
    env = example.env.OsimProsthetics(lambda: fake)
    env.reset(seed=1)
    fake.changed = changed
    with pytest.raises(ValueError, match=message):
        env.step(np.zeros(19, np.float32))


def test_without_osim_the_error_says_what_to_do(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "osim", None)
    with pytest.raises(ImportError, match=r"needs osim-rl, .*conda.* or train on the walker.*--env walker"):
        example.env.OsimProsthetics()


def test_osims_own_environment_is_opened_for_the_second_round(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def opened(**arguments: Any) -> FakeProsthetics:
        asked.update(arguments)
        return FakeProsthetics()

    osim, module = ModuleType("osim"), ModuleType("osim.env")
    module.ProstheticsEnv = opened  # type: ignore[attr-defined]  # as osim-rl has it
    monkeypatch.setitem(sys.modules, "osim", osim)
    monkeypatch.setitem(sys.modules, "osim.env", module)
    example.env.OsimProsthetics()
    assert asked == {"visualize": False, "difficulty": 1}


@pytest.mark.parametrize("speeds", [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_speeds_that_cannot_be_asked_for_are_refused(example: Any, speeds: tuple[float, float]) -> None:
    env = example.env.OsimProsthetics(FakeProsthetics)
    with pytest.raises(ValueError, match="target speed"):
        env.reset(seed=1, options={"speeds": speeds})


def test_the_curriculum_goes_from_the_fastest_to_all_speeds(example: Any) -> None:
    Speeds, Curriculum = example.targets.Speeds, example.targets.Curriculum
    curriculum = Curriculum(Speeds(0.5, 2.0), fast=0.2, widen=0.4)
    asked = [curriculum.at(progress) for progress in (0.0, 0.2, 0.4, 0.6, 1.0)]
    assert [speeds.high for speeds in asked] == [2.0] * 5
    assert [speeds.low for speeds in asked] == pytest.approx([2.0, 2.0, 1.25, 0.5, 0.5])
    with pytest.raises(ValueError, match="more than the whole training"):
        Curriculum(fast=0.7, widen=0.5)


def test_the_walker_is_paid_for_its_target_speed(example: Any) -> None:
    pytest.importorskip("mujoco", reason="Walker2d needs mujoco")
    from walker import TargetSpeedWalker

    env: Any = TargetSpeedWalker(frame_skip=3, mean_steps=4.0)
    obs, _ = env.reset(seed=2, options={"speeds": (1.0, 2.0)})
    targets = []
    for _ in range(6):
        target = obs[-2]
        action = 0.1 * env.action_space.sample()
        obs, reward, *_, info = env.step(action)
        assert info["target_speed"] == pytest.approx(target)
        closeness = max(0.0, 1.0 - abs(info["speed"] - target) / target)
        assert reward == pytest.approx(closeness - 0.001 * float(np.square(action).sum()), abs=1e-6)
        assert obs[-1] == pytest.approx(obs[-2] - info["speed"], abs=1e-6)
        targets.append(float(target))
    assert len(set(targets)) > 1
    assert env.unwrapped.data.time == pytest.approx(6 * 3 * 0.008)
    env.close()
