"""The environment checker finds what would break training, says where, and what to do."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from parl.env import JointEnv, check_env
from parl_core.env._contract import as_flag, as_observation, as_reward
from parl_core.env.compat import CompatWrapper
from parl_core.errors import EnvironmentContractError

BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)


class Good(gymnasium.Env[Any, Any]):
    """Does everything right; tests change one thing at a time."""

    observation_space: Any = BOX
    action_space: Any = gymnasium.spaces.Discrete(2)

    def observe(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), float(self.np_random.normal()), self.t == 10, False, {}


def refused(cls: type[Any]) -> str:
    with pytest.raises(EnvironmentContractError) as caught:
        check_env(cls())
    return str(caught.value)


def test_a_sound_environment_needs_no_advice() -> None:
    assert check_env(Good()) == []
    assert check_env(Good) == []


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "FrozenLake-v1"])
def test_gymnasiums_own_environments_pass(name: str) -> None:
    check_env(name)


def test_missing_spaces_and_methods_are_listed_together() -> None:
    class Empty:
        step = None

    message = refused(Empty)
    assert "Empty would break training" in message
    assert "1. observation_space is None" in message
    assert "2. action_space is None" in message
    assert "no method reset()" in message


def test_a_reset_of_gyms_old_kind_is_refused() -> None:
    class Old(Good):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=seed)[0]

    assert "reset() returned an array of shape [2]: return the pair (observation, info)" in refused(Old)


def test_a_reset_without_a_seed_is_refused() -> None:
    class Seedless(Good):
        def reset(self) -> Any:  # type: ignore[override]  # that is the mistake
            return super().reset()

    assert "reset() takes no seed" in refused(Seedless)


def test_an_environment_is_judged_in_the_same_way_as_a_class_and_by_its_own_name() -> None:
    class Old(Good):
        def reset(self) -> Any:  # type: ignore[override]  # that is the mistake
            return super().reset()[0]

        def step(self, action: Any) -> Any:
            obs, reward, done, _, info = super().step(action)
            return obs, reward, done, info

    with pytest.raises(EnvironmentContractError) as caught:
        check_env(Old)
    assert str(caught.value) == refused(Old)
    assert str(caught.value).startswith("Old would break training")


def test_a_base_class_is_advice() -> None:
    class Duck:
        observation_space, action_space = Good.observation_space, Good.action_space

        def __init__(self) -> None:
            env = Good()
            self.reset, self.step = env.reset, env.step

    assert [advice.split(":")[0] for advice in check_env(Duck)] == ["Duck is not a gymnasium.Env"]


def test_an_environment_that_says_it_has_gyms_api_is_checked_as_the_loops_see_it() -> None:
    assert check_env(lambda: CompatWrapper(Good())) == []
    assert check_env(CompatWrapper(Good())) == []


def test_an_info_of_reset_that_is_no_dictionary_is_named() -> None:
    class NoneInfo(Good):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=seed)[0], None

    assert "the info of reset() is None of type NoneType: return a dict" in refused(NoneInfo)


def test_a_reset_without_options_is_refused() -> None:
    class OnlySeed(Good):
        def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]  # that is the mistake
            return super().reset(seed=seed)

    assert "reset() takes no options" in refused(OnlySeed)


def test_a_step_of_gyms_old_kind_is_refused() -> None:
    class Old(Good):
        def step(self, action: Any) -> Any:
            obs, reward, done, _, info = super().step(action)
            return obs, reward, done, info

    message = refused(Old)
    assert "step() returned a tuple of 4" in message
    assert "`done` is two" in message


def test_random_numbers_from_elsewhere_are_found() -> None:
    rng = np.random.default_rng(0)  # goes on from episode to episode, as one that reset() does not seed

    class Elsewhere(Good):
        def observe(self) -> Any:
            return rng.uniform(-1.0, 1.0, 2).astype(np.float32)

    class Generous(Good):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, rng.random(), *rest

    class Fickle(Good):
        episodes = 0

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            self.episodes += 1
            return super().reset(seed=seed, options=options)

        def step(self, action: Any) -> Any:
            observation, reward, *_ = super().step(action)
            return observation, reward, self.t == self.episodes, False, {}

    assert "two episodes with seed 0 and the same actions differ" in refused(Elsewhere)
    assert "differ in observations, rewards or ends" in refused(Generous)
    assert "differ in observations, rewards or ends" in refused(Fickle)


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ([0.0, 0.0], "is [0.0, 0.0] of type list: return a numpy array"),
        (np.zeros(3, np.float32), "has shape [3], the space [2]"),
        (np.zeros(2), "has dtype float64, the space float32"),
        (np.array([0.0, np.nan], np.float32), "the observation[1] is nan"),
        (np.array([0.0, -3.0], np.float32), "the observation[1] is -3.0, outside of its bounds [-1, 1]"),
        (np.array([0, 2**40]), "the observation[1] is 1099511627776, outside of its bounds [-1, 1]"),
        (np.array(["a", "b"]), "has dtype <U1, the space float32"),
    ],
)
def test_observations_that_do_not_fit_are_named_with_place_and_value(observation: Any, message: str) -> None:
    class Wrong(Good):
        def observe(self) -> Any:
            return observation

    assert message in refused(Wrong)


def test_parts_of_a_dictionary_are_named_by_their_keys() -> None:
    class Parts(Good):
        observation_space = gymnasium.spaces.Dict({"eye": BOX, "mode": gymnasium.spaces.Discrete(3)})

        def observe(self) -> Any:
            return {"eye": np.full(2, 2.0, np.float32), "mode": 3}

    message = refused(Parts)
    assert "the observation['eye'][0] is 2.0" in message
    assert "the observation['mode'] is 3 of type int, which is not in Discrete(3)" in message


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({1: np.inf}, "the reward is inf"),
        ({1: np.zeros(1)}, "the reward is an array of shape [1]"),
        ({1: None}, "the reward is None"),
        ({2: 1}, "terminated is 1 of type int: return a bool"),
        ({3: "no"}, "truncated is 'no'"),
        ({4: None}, "info is None"),
    ],
)
def test_rewards_flags_and_infos_of_another_kind_are_refused(changed: dict[int, Any], message: str) -> None:
    class Wrong(Good):
        def step(self, action: Any) -> Any:
            answer = list(super().step(action))
            for index, value in changed.items():
                answer[index] = value
            return tuple(answer)

    assert message in refused(Wrong)


def test_unbounded_actions_are_refused() -> None:
    class Unbounded(Good):
        action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    assert "is not bounded" in refused(Unbounded)


def test_what_could_go_better_is_advice() -> None:
    class Poor(Good):
        observation_space = gymnasium.spaces.Box(-1e4, 1e4, (2,), np.float64)
        action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)
        seen = np.zeros(2)

        def observe(self) -> Any:
            self.seen[:] = self.np_random.uniform(-1e4, 1e4, 2)
            return self.seen

        def step(self, action: Any) -> Any:
            return self.observe()[:], 1.0, False, False, {}

    advice = "\n".join(check_env(Poor()))
    for part in (
        "float64",
        "[-2, 2]",
        "ActionMappingWrapper",
        "observations reach",
        "no time limit",
        "gave the reward 1",
        "changes the array",
    ):
        assert part in advice


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_numbers_of_numpy_are_observations_of_a_box_without_dimensions(dtype: Any) -> None:
    class Scalar(Good):
        observation_space = gymnasium.spaces.Box(-5, 5, (), dtype)
        outside = 0

        def observe(self) -> Any:
            return dtype(self.np_random.integers(-5, 6) + self.outside)

    assert check_env(Scalar()) == []

    class Outside(Scalar):
        outside = 20

    assert "outside of its bounds [-5, 5]" in refused(Outside)


def test_actions_of_a_team_are_mapped_by_its_loops() -> None:
    class Driving:
        possible_agents = ("a", "b")

        def observation_space(self, agent: str) -> Any:
            return BOX

        def action_space(self, agent: str) -> Any:
            return gymnasium.spaces.Box(0.0, 10.0, (1 if agent == "a" else 2,), np.float32)

        def reset(self, seed: Any = None, options: Any = None) -> Any:
            self.agents, self.rng = ["a", "b"], np.random.default_rng(seed)
            return self.seen(), {}

        def step(self, actions: Any) -> Any:
            seen, ends = self.seen(), dict.fromkeys(self.agents, self.rng.random() < 0.2)
            self.agents = [name for name in self.agents if not ends[name]]
            return seen, dict.fromkeys(ends, float(self.rng.normal())), ends, dict.fromkeys(ends, False), {}

        def seen(self) -> Any:
            return {name: self.rng.uniform(-1.0, 1.0, 2).astype(np.float32) for name in self.agents}

        def close(self) -> None: ...

    assert check_env(JointEnv(Driving())) == []


def test_an_exception_of_the_environment_comes_as_it_is() -> None:
    class Broken(Good):
        def step(self, action: Any) -> Any:
            raise ZeroDivisionError("physics")

    with pytest.raises(ZeroDivisionError, match="physics") as caught:
        check_env(Broken())
    assert "while Broken was checked" in caught.value.__notes__


class Masked(Good):
    """Allows one action, another one in each step, and takes no other."""

    action_space: Any = gymnasium.spaces.Discrete(3, start=4)

    def __init__(self, parts: Any = 3) -> None:
        self.width = parts
        self.observation_space = gymnasium.spaces.Dict({"x": BOX, "action_mask": gymnasium.spaces.MultiBinary(parts)})

    def mask(self) -> Any:
        return np.eye(3, dtype=np.int8)[self.t % 3]

    def observe(self) -> Any:
        return {"x": super().observe(), "action_mask": self.mask()}

    def step(self, action: Any) -> Any:
        assert action == self.t % 3 + 4
        return super().step(action)


class MaskedParts(Masked):
    """The same with two parts, of 3 and of 2 choices, whose masks lie side by side or, of two agents, in rows."""

    action_space: Any = gymnasium.spaces.MultiDiscrete([3, 2])

    def mask(self) -> Any:
        sides = np.array([*super().mask(), 1, 0], np.int8)
        return sides if self.width == 5 else np.stack([sides[:3], [1, 0, 1]])

    def step(self, action: Any) -> Any:
        assert action.tolist() == [self.t % 3, 0]
        return Good.step(self, action)


@pytest.mark.parametrize("made", [Masked, lambda: MaskedParts(5), lambda: MaskedParts([2, 3])])
def test_only_actions_that_the_mask_allows_are_taken(made: Any) -> None:
    assert check_env(made) == []


@pytest.mark.parametrize(
    ("mask", "told"), [(np.zeros(3, np.int8), "leaves no action"), (np.ones(4, np.int8), r"has shape \[4\]")]
)
def test_a_mask_that_allows_nothing_or_has_another_size_is_a_problem(mask: Any, told: str) -> None:
    class Wrong(Masked):
        def __init__(self) -> None:
            super().__init__(len(mask))

        def mask(self) -> Any:
            return mask

        def step(self, action: Any) -> Any:
            return Good.step(self, action)

    with pytest.raises(EnvironmentContractError, match=f"the action_mask {told}"):
        check_env(Wrong)


class OnGpu:
    """A tensor that numpy cannot read, such as one in the memory of a GPU."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


def test_tensors_that_numpy_cannot_read_are_told_with_what_to_return() -> None:
    with pytest.raises(EnvironmentContractError, match="return a bool"):
        as_flag(Good(), "terminated", OnGpu())
    with pytest.raises(EnvironmentContractError, match=r"return float\(reward\)"):
        as_reward(Good(), OnGpu())
    with pytest.raises(EnvironmentContractError, match=r"return one of shape \[2\] and dtype float32"):
        as_observation(Good(), BOX, OnGpu())
