"""Environments of gym's API and of Gymnasium's, and the wrappers of this project around both."""

import copy
import pickle
import sys
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest

from parl.env import (
    ActionMappingWrapper,
    CompatWrapper,
    VectorEnv,
    api_of,
    as_gymnasium,
    is_gym_version_ge,
    make_vector_env,
    wrap_deepmind,
    wrap_rms,
)
from parl.env.atari_wrappers import ClipRewardEnv, MonitorEnv
from parl.env.mujoco_wrappers import get_ob_rms

OLD_STEP = 4
NEW_STEP = 5


class Counter(gymnasium.Env[Any, Any]):
    """Gymnasium's API; observation and reward count the steps of the episode, which a limit or the task ends."""

    def __init__(self, length: int = 3, truncates: bool = False) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.length, self.truncates = length, truncates
        self.t = 0
        self.seeds: list[int | None] = []
        self.actions: list[Any] = []
        self.hint = "of the innermost environment"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self.t += 1
        over = self.t >= self.length
        return np.array([float(self.t)]), float(self.t), over and not self.truncates, over and self.truncates, {}


class Old:
    """Gym's API before 0.26, in a class that derives from none."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, length: int = 3, limit: int | None = None) -> None:
        self.length, self.limit = length, limit
        self.t = 0
        self.seeds: list[int | None] = []
        self.closed = False

    def seed(self, seed: int | None = None) -> list[int | None]:
        self.seeds.append(seed)
        return [seed]

    def reset(self) -> Any:
        self.t = 0
        return np.zeros(1)

    def step(self, action: Any) -> Any:
        self.t += 1
        limited = self.t == self.limit
        done = limited or self.t >= self.length
        return np.array([float(self.t)]), float(self.t), done, {"TimeLimit.truncated": True} if limited else {}

    def close(self) -> None:
        self.closed = True


def test_the_compat_wrapper_gives_gyms_old_api() -> None:
    inner = Counter(length=2)
    env = CompatWrapper(inner)
    assert (env.api, api_of(env), api_of(inner)) == ("gym", "gym", "gymnasium")
    assert env.seed(5) == [5]
    assert env.reset().tolist() == [0.0]
    assert env.step(0)[1:] == (1.0, False, {})
    assert env.step(0)[1:] == (2.0, True, {"TimeLimit.truncated": False})
    env.reset()
    assert inner.seeds == [5, None]  # a seed is used once
    assert env.hint == "of the innermost environment"
    with pytest.raises(AttributeError, match="nothing"):
        _ = env.nothing


@pytest.mark.parametrize("made", [CompatWrapper, ActionMappingWrapper, lambda env: wrap_rms(env, gamma=0.9)])
def test_a_seed_set_beforehand_is_that_of_the_next_episode_in_either_api(made: Any) -> None:
    inner = Counter()
    env = made(inner)
    env.seed(7)
    env.reset()
    env.reset()
    env.seed(8)
    env.reset(seed=9)  # takes the place of the other one
    env.reset()
    assert inner.seeds == [7, None, 9, None]


def test_the_compat_wrapper_counts_choices_with_a_python_integer_as_gym_did() -> None:
    inner: Any = gymnasium.make("CartPole-v1")
    env: Any = CompatWrapper(inner)
    assert type(env.action_space.n) is int
    assert env.action_space == inner.action_space
    env.action_space.seed(1)
    assert {int(env.action_space.sample()) for _ in range(20)} == {0, 1}
    assert type(inner.action_space.n) is not int  # the environment keeps its own space


def test_a_time_limit_is_told_apart_from_the_end_of_the_task() -> None:
    env = CompatWrapper(gymnasium.wrappers.TimeLimit(Counter(length=9), 2))
    env.reset()
    env.step(0)
    assert env.step(0)[2:] == (True, {"TimeLimit.truncated": True})
    assert env._max_episode_steps == 2
    assert not hasattr(CompatWrapper(Counter()), "_max_episode_steps")  # as programs ask whether there is a limit


@pytest.mark.parametrize("make", [lambda: CompatWrapper(Counter()), Old], ids=["compat", "old class"])
def test_wrappers_speak_the_api_of_what_they_wrap(make: Any) -> None:
    for env in (ActionMappingWrapper(make()), wrap_rms(make(), gamma=0.9), ClipRewardEnv(make())):
        assert env.api == "gym"
        env.seed(1)
        assert isinstance(env.reset(), np.ndarray)
        for _ in range(2):
            assert len(env.step(np.zeros(1, np.float32))) == OLD_STEP
        *_, done, info = env.step(np.zeros(1, np.float32))
        assert done
        assert info["TimeLimit.truncated"] is False


def test_wrappers_of_gymnasium_environments_speak_gymnasiums_api() -> None:
    for env in (ActionMappingWrapper(Counter()), wrap_rms(Counter(), gamma=0.9), ClipRewardEnv(Counter())):
        assert env.api == "gymnasium"
        obs, _ = env.reset(seed=3)
        assert isinstance(obs, np.ndarray)
        assert len(env.step(np.zeros(1, np.float32))) == NEW_STEP
        with pytest.raises(AttributeError, match="hint"):
            _ = env.hint  # as with every wrapper of Gymnasium


class Drawn(Counter):
    """Gymnasium's API, with one mode of rendering."""

    render_mode = "ansi"

    def render(self) -> str:
        return "drawn"


class OldDrawn(Old):
    def render(self, mode: str = "human") -> str:
        return mode


@pytest.mark.parametrize("made", [CompatWrapper, ClipRewardEnv, lambda env: ClipRewardEnv(CompatWrapper(env))])
def test_render_takes_the_mode_that_the_environment_was_made_with(made: Any) -> None:
    env = made(Drawn())
    assert env.render() == env.render("ansi") == env.render(mode="ansi") == "drawn"
    with pytest.raises(
        ValueError, match=r"render_mode='ansi' and cannot render 'human': make it with render_mode='human'"
    ):
        env.render(mode="human")


def test_render_passes_the_mode_on_to_an_environment_of_gyms_api() -> None:
    for env in (CompatWrapper(OldDrawn()), ClipRewardEnv(OldDrawn()), CompatWrapper(ClipRewardEnv(OldDrawn()))):
        assert env.render() == "human"
        assert env.render(mode="rgb_array") == "rgb_array"


def test_both_apis_play_the_same_episode() -> None:
    new, old = (wrap_rms(ActionMappingWrapper(env), gamma=0.9) for env in (Counter(), CompatWrapper(Counter())))
    assert new.reset()[0].tolist() == old.reset().tolist()
    for _ in range(3):
        obs, reward, terminated, truncated, _ = new.step(np.array([0.5], np.float32))
        other, other_reward, done, _ = old.step(np.array([0.5], np.float32))
        assert (obs.tolist(), reward, terminated or truncated) == (other.tolist(), other_reward, done)
    ours, theirs = get_ob_rms(new), get_ob_rms(old)  # found through the views between the wrappers
    assert ours is not None
    assert theirs is not None
    assert ours.mean.tolist() == theirs.mean.tolist()


def test_what_a_subclass_does_has_the_form_of_its_api() -> None:
    class Doubled(ActionMappingWrapper):
        def step(self, action: Any) -> Any:
            obs, reward, done, info = super().step(action)
            return obs, 2 * reward, done, info

    env = MonitorEnv(Doubled(CompatWrapper(Counter(length=2))))
    env.reset()
    env.step(np.zeros(1, np.float32))
    *_, info = env.step(np.zeros(1, np.float32))
    assert info["episode"]["r"] == 6.0


def test_an_old_environment_is_seen_through_gymnasiums_api() -> None:
    inner = Old(length=5, limit=2)
    env = as_gymnasium(inner)
    assert (api_of(inner), api_of(env)) == ("gym", "gymnasium")
    assert isinstance(env, gymnasium.Env)
    obs, info = env.reset(seed=4)
    assert (obs.tolist(), info, inner.seeds) == ([0.0], {}, [4])
    assert env.step(0)[2:4] == (False, False)
    assert env.step(0)[2:4] == (False, True)
    ended = as_gymnasium(Old(length=1))
    ended.reset()
    assert ended.step(0)[2:4] == (True, False)
    assert env.unwrapped is inner
    env.close()
    assert inner.closed
    assert as_gymnasium(env) is env


class OldOfEnv(gymnasium.Env[Any, Any]):
    """Gym's API before 0.26, in a class that a program of PARL 2.x derives from `gym.Env`, now Gymnasium's."""

    observation_space, action_space = Old.observation_space, Old.action_space

    def reset(self) -> Any:  # type: ignore[override]  # as gym had it
        return np.zeros(1)

    def step(self, action: Any) -> Any:
        return np.ones(1), 1.0, True, {}


class SecondLook(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper of a program of PARL 2.x."""

    def step(self, action: Any) -> Any:
        env: Any = self.env
        obs, reward, done, info = env.step(action)
        return obs, 2 * reward, done, info


def test_a_class_of_gymnasium_whose_reset_takes_no_seed_has_gyms_api() -> None:
    assert (api_of(OldOfEnv()), api_of(Counter())) == ("gym", "gymnasium")
    env = CompatWrapper(OldOfEnv())
    env.seed(3)
    assert env.reset().tolist() == [0.0]
    assert env.step(0)[1:3] == (1.0, True)
    envs = VectorEnv([OldOfEnv(), OldOfEnv()])
    assert [obs.tolist() for obs in envs.reset()] == [[0.0], [0.0]]
    assert envs.step([0, 0])[2] == [True, True]
    assert as_gymnasium(OldOfEnv()).reset(seed=4)[1] == {}


class Endless(OldOfEnv):
    """The same without an end."""

    def __init__(self) -> None:
        self.seeds: list[int | None] = []

    def seed(self, seed: int | None = None) -> None:
        self.seeds.append(seed)

    def step(self, action: Any) -> Any:
        return np.ones(1), 1.0, False, {}


def test_an_old_environment_that_a_program_registers_keeps_its_api_and_its_time_limit() -> None:
    inner = Endless()
    gymnasium.register("Endless-v0", lambda **_: inner, max_episode_steps=2)
    try:
        made = gymnasium.make("Endless-v0")
    finally:
        del gymnasium.registry["Endless-v0"]
    env = CompatWrapper(made)
    env.seed(5)
    assert env.reset().tolist() == [0.0]
    assert inner.seeds == [5]
    assert env.step([0.0])[2:] == (False, {})
    assert env.step([0.0])[2:] == (True, {"TimeLimit.truncated": True})
    assert env._max_episode_steps == 2
    assert env.spec is not None
    assert env.spec.max_episode_steps == 2
    assert ActionMappingWrapper(made).api == "gym"


def test_a_time_limit_around_a_compat_wrapper_ends_its_episodes() -> None:
    env = CompatWrapper(gymnasium.wrappers.TimeLimit(CompatWrapper(Counter(length=9)), 2))
    env.reset()
    assert env.step([0.0])[2:] == (False, {})
    assert env.step([0.0])[2:] == (True, {"TimeLimit.truncated": True})


def test_a_programs_own_wrapper_passes_the_seed_of_training_on() -> None:
    old = Old()
    env = as_gymnasium(SecondLook(CompatWrapper(old)))
    env.reset(seed=4)
    assert old.seeds == [4]
    assert env.step(0)[1] == 2.0


class Duck:
    """Gymnasium's API, in a class that derives from none."""

    observation_space, action_space = Old.observation_space, Old.action_space

    def __init__(self) -> None:
        self.seeds: list[int | None] = []

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1), 0.0, False, False, {}


def test_a_class_without_a_base_whose_reset_takes_a_seed_has_gymnasiums_api() -> None:
    inner = Duck()
    assert api_of(inner) == "gymnasium"
    assert as_gymnasium(inner).reset(seed=4)[1] == {}
    assert inner.seeds == [4]
    env = CompatWrapper(inner)
    assert env.reset().tolist() == [0.0]
    assert len(env.step(0)) == OLD_STEP


def test_a_class_that_does_not_tell_the_arguments_of_its_reset_has_gyms_api() -> None:
    class Compiled(Old):
        reset: Any = type  # as methods of compiled classes, it has no signature

    assert api_of(Compiled()) == "gym"


def test_an_api_that_was_taken_for_the_other_is_named() -> None:
    class Seedless(Duck):
        def reset(self) -> Any:  # type: ignore[override]  # that is the mistake
            return super().reset()

    env = CompatWrapper(Seedless())
    with pytest.raises(TypeError, match=r"Seedless.reset\(\) returned \(obs, info\).*api = 'gymnasium'"):
        env.reset()
    with pytest.raises(TypeError, match=r"Seedless.step\(\) returned 5 values"):
        env.step(0)

    class Marked(Seedless):
        api = "gymnasium"

        def reset(self, **_: Any) -> Any:  # type: ignore[override]  # it ignores all arguments
            return super().reset()

    marked = CompatWrapper(Marked())
    assert marked.reset().tolist() == [0.0]
    assert len(marked.step(0)) == OLD_STEP
    Marked.api = "gym26"
    with pytest.raises(ValueError, match="gym26"):
        api_of(Marked())
    with pytest.raises(TypeError, match=r"no reset\(\)"):
        CompatWrapper(object())

    class Seeded(Old):
        def reset(self, **_: Any) -> Any:
            return super().reset()

    with pytest.raises(TypeError, match=r"Seeded.reset\(\) takes a seed, .* did not return \(obs, info\).*api = 'gym'"):
        CompatWrapper(Seeded()).reset()

    class SeedAlone(Old):
        def reset(self, seed: int | None = None) -> Any:
            return super().reset()

    with pytest.raises(TypeError, match=r"SeedAlone.reset\(\) takes a seed, .* did not return .*api = 'gym'"):
        CompatWrapper(SeedAlone()).reset()


def test_a_reset_without_options_is_called_without_them() -> None:
    class SeedAlone(Counter):
        def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
            return super().reset(seed=seed)

    for env in (CompatWrapper(SeedAlone()), CompatWrapper(ActionMappingWrapper(SeedAlone()))):
        env.seed(7)
        assert env.reset().tolist() == [0.0]
        inner: Any = env.unwrapped
        assert inner.seeds == [7]
        assert len(env.step(np.zeros(1))) == OLD_STEP
        with pytest.raises(TypeError, match=r"SeedAlone.reset\(\) takes no options: let it take options=None"):
            env.reset(options={"start": 1})


def test_environments_of_gym_speak_the_api_of_their_version(monkeypatch: pytest.MonkeyPatch) -> None:
    gym: Any = ModuleType("gym")
    gym.Env = type("Env", (Old,), {})
    monkeypatch.setitem(sys.modules, "gym", gym)
    gym.__version__ = "0.21.0"
    assert api_of(gym.Env()) == "gym"
    gym.__version__ = "0.26.2"
    assert api_of(gym.Env()) == "gymnasium"
    assert api_of(Old()) == "gym"


def test_spaces_of_gym_become_gymnasiums() -> None:
    def likeness(name: str, **attributes: Any) -> Any:
        return type(name, (), attributes)()

    box = likeness("Box", low=np.zeros(2), high=np.ones(2), shape=(2,), dtype=np.dtype(np.float64))
    parts = {
        "discrete": likeness("Discrete", n=3),
        "digits": likeness("MultiDiscrete", nvec=np.array([2, 3])),
        "bits": likeness("MultiBinary", n=4),
        "pair": likeness("Tuple", spaces=[box, likeness("Discrete", n=2, start=1)]),
    }

    class Typed(Old):
        observation_space = likeness("Dict", spaces=parts)
        action_space = box

    made = gymnasium.spaces
    box_made = made.Box(0.0, 1.0, (2,), np.float64)
    env = as_gymnasium(Typed())
    assert env.action_space == box_made
    assert env.observation_space == made.Dict(
        {
            "discrete": made.Discrete(3),
            "digits": made.MultiDiscrete([2, 3]),
            "bits": made.MultiBinary(4),
            "pair": made.Tuple([box_made, made.Discrete(2, start=1)]),
        }
    )
    Typed.action_space = likeness("Sphere")
    with pytest.raises(TypeError, match="Sphere"):
        as_gymnasium(Typed())


def test_a_list_of_old_environments_steps_in_gyms_form() -> None:
    envs = VectorEnv([CompatWrapper(Counter(length=2)), Old(length=3, limit=3)])
    assert envs.api == "gym"
    assert [obs.tolist() for obs in envs.reset(seed=1)] == [[0.0], [0.0]]
    assert envs.envs[1].seeds != [None]
    envs.step([0, 0])
    obs, rewards, dones, infos = envs.step([0, 0])
    assert ([o.tolist() for o in obs], rewards, dones) == ([[0.0], [2.0]], [2.0, 2.0], [True, False])
    assert infos[0]["final_obs"].tolist() == [2.0]
    assert envs.step([0, 0])[2] == [False, True]
    with pytest.raises(ValueError, match="CompatWrapper around all"):
        VectorEnv([CompatWrapper(Counter()), Counter()])


def test_training_takes_a_compat_wrapper_as_the_environment_inside() -> None:
    with make_vector_env(lambda: CompatWrapper(Counter(length=2, truncates=True)), 2) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros((2, 1), np.float32))
        _, _, terminated, truncated, _ = envs.step(np.zeros((2, 1), np.float32))
        assert (terminated.tolist(), truncated.tolist()) == ([False, False], [True, True])


def test_wrapped_environments_are_copied_and_pickled() -> None:
    env = ActionMappingWrapper(Old())
    env.reset()
    env.step(np.zeros(1, np.float32))
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert other.step(np.zeros(1, np.float32))[0].tolist() == [2.0]


def test_atari_wrappers_speak_gyms_api_around_a_compat_wrapper() -> None:
    pytest.importorskip("ale_py")
    from parl_core.env.atari import make_atari

    make_atari("ALE/Breakout-v5").close()
    env = wrap_deepmind(CompatWrapper(gymnasium.make("ALE/Breakout-v5", frameskip=1)), obs_format="NCHW", test=True)
    assert env.api == "gym"
    env.seed(1)
    assert env.reset().shape == (4, 84, 84)
    assert len(env.step(0)) == OLD_STEP
    assert env.get_real_done() is False
    env.close()


def test_gymnasium_counts_on_from_gyms_versions() -> None:
    assert is_gym_version_ge("0.26.0")
    assert is_gym_version_ge(gymnasium.__version__)
    assert not is_gym_version_ge("999.0")
