"""A vector environment gives the same numbers however its environments are spread over actors."""

import pickle
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parl_core.actors import InProcessActors
from parl_core.env._steps import ActionRows, Ending, GroupStep
from parl_core.env.vector import VectorEnv, make_vector_env
from parl_core.errors import EnvironmentContractError, HyperparameterError, ParlError


class Countdown(gymnasium.Env[Any, Any]):
    """Observes its step count; terminates after `ends` steps or is truncated after `cut`."""

    observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, ends: int = 100, cut: int = 100, angry_at: int = 100) -> None:
        self._ends, self._cut, self._angry_at = ends, cut, angry_at
        self._observation = np.zeros(1, np.float32)  # one array for all steps, as some simulators do

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._observation[0] = 0.0
        return self._observation, {"fresh": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._observation[0] += 1.0
        count = int(self._observation[0])
        if count == self._angry_at:
            raise LookupError(f"angry at {count}")
        return self._observation, float(action), count == self._ends, count == self._cut, {"count": count}


class Composite(gymnasium.Env[Any, Any]):
    """Dict observations and tuple actions."""

    observation_space = gymnasium.spaces.Dict(
        {"seen": gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32), "mode": gymnasium.spaces.Discrete(5)}
    )
    action_space = gymnasium.spaces.Tuple(
        (gymnasium.spaces.Discrete(4), gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32))
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {"seen": self.np_random.random(2, np.float32), "mode": 0}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        mode, push = action
        seen = (self.np_random.random(2) + push).astype(np.float32)
        return {"seen": seen, "mode": int(mode)}, float(push.sum()), False, False, {}


def drive(envs: VectorEnv | SyncVectorEnv, steps: int) -> list[tuple[Any, ...]]:
    envs.action_space.seed(3)
    observations, infos = envs.reset(seed=11)
    log: list[tuple[Any, ...]] = [(observations, infos)]
    log.extend(envs.step(envs.action_space.sample()) for _ in range(steps))
    envs.close()
    for *_, infos in log:
        if "final_obs" in infos:  # numpy compares no arrays of arrays
            infos["final_obs"] = infos["final_obs"].tolist()
    return log


@pytest.mark.parametrize("envs_per_actor", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", Composite])
def test_results_do_not_depend_on_how_many_environments_share_an_actor(env: Any, envs_per_actor: int) -> None:
    together = drive(make_vector_env(env, 7), 60)
    with InProcessActors() as actors:
        apart = drive(make_vector_env(env, 7, actors=actors, envs_per_actor=envs_per_actor), 60)
    np.testing.assert_equal(apart, together)


def test_numbers_agree_with_gymnasiums_own_vector_environment() -> None:
    ours = drive(make_vector_env("CartPole-v1", 4, with_infos=True), 80)
    theirs = drive(
        SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4, autoreset_mode=AutoresetMode.SAME_STEP), 80
    )
    for mine, reference in zip(ours, theirs, strict=True):
        np.testing.assert_equal(mine[:-1], reference[:-1])
        np.testing.assert_equal(mine[-1].get("final_obs"), reference[-1].get("final_obs"))


def test_an_episode_that_ends_is_reset_in_the_same_step_and_its_last_observation_is_kept() -> None:
    envs = make_vector_env(Countdown, 2, env_kwargs={"cut": 3})
    envs.reset(seed=0)
    envs.step(np.array([1, 2]))
    envs.step(np.array([1, 0]))
    observations, rewards, terminated, truncated, infos = envs.step(np.array([2, 2]))
    np.testing.assert_array_equal(observations, [[0.0], [0.0]])
    np.testing.assert_array_equal(rewards, [2.0, 2.0])
    assert not terminated.any()
    assert truncated.all()
    assert [float(last[0]) for last in infos["final_obs"]] == [3.0, 3.0]
    np.testing.assert_array_equal(infos["episode"]["r"], [4.0, 4.0])
    np.testing.assert_array_equal(infos["episode"]["l"], [3, 3])
    np.testing.assert_array_equal(infos["final_info"]["count"], [3, 3])
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


class Reusing(Countdown):
    """Returns one info, whose entries change."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self._info = getattr(self, "_info", {"at": {"step": 0}, "seen": np.zeros(2)})
        self._note(0)
        return super().reset(**options)[0], self._info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *answer, info = super().step(action)
        self._note(info["count"])
        return *answer, self._info  # type: ignore[return-value]  # the four that the base returns

    def _note(self, step: int) -> None:
        self._info["at"]["step"] = step
        self._info["seen"][:] = step


@pytest.mark.parametrize("envs_per_actor", [1, 2])
def test_the_last_info_is_kept_though_the_reset_changes_it(envs_per_actor: int) -> None:
    with InProcessActors() as actors:
        envs = make_vector_env(Reusing, 2, env_kwargs={"cut": 3}, actors=actors, envs_per_actor=envs_per_actor)
        envs.reset(seed=0)
        infos = [envs.step(np.array([0, 0]))[-1] for _ in range(3)][-1]
        assert infos["final_info"]["at"]["step"].tolist() == [3, 3]
        assert infos["final_info"]["seen"].tolist() == [[3.0, 3.0], [3.0, 3.0]]
        assert infos["at"]["step"].tolist() == [0, 0]


class Telling(Countdown):
    """Its first info has an entry that another environment has in another form."""

    entries: ClassVar[list[Any]] = []

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**options)[0], {"path": self.entries.pop(0), "count": 1, "within": {"path": 0}}


@pytest.mark.parametrize(
    "entries",
    [
        (np.zeros(2), np.ones(3)),
        (np.zeros((1, 2)), np.ones(2)),
        (1, 2.5),
        (1.5, None),
        (1, "two"),
        (3, [1, 2]),
        (np.arange(3), 7),
        (None, np.ones(3)),
        (None, {"step": 3}),
        (2, {"step": 3}),
        ({"step": 3}, None),
        ({"step": 3}, 2),
        ({"step": 3, "at": {"name": "door"}}, np.ones(3)),
    ],
)
def test_entries_of_infos_in_unequal_forms_stay_as_they_are(entries: tuple[Any, Any]) -> None:
    Telling.entries = [*entries]
    infos = make_vector_env(Telling, 2).reset(seed=0)[1]
    for found, given in zip(infos["path"], entries, strict=True):
        assert type(found) is type(given) or np.ndim(given) == 0
        np.testing.assert_array_equal(found, given)
    assert infos["_path"].all()
    assert infos["count"].dtype == np.int64


def test_statistics_begin_anew_with_every_episode() -> None:
    envs = make_vector_env(Countdown, 1, env_kwargs={"ends": 2})
    envs.reset(seed=0)
    returns = []
    for action in (1, 1, 2, 2):
        *_, infos = envs.step(np.array([action]))
        if "episode" in infos:
            returns.append((infos["episode"]["r"].item(), infos["episode"]["l"].item()))
    assert returns == [(2.0, 2), (4.0, 2)]


def test_infos_of_ordinary_steps_come_only_when_asked_for() -> None:
    silent, talking = make_vector_env(Countdown, 2), make_vector_env(Countdown, 2, with_infos=True)
    for envs in (silent, talking):
        assert envs.reset(seed=0)[1]["fresh"].all()
    assert silent.step(np.array([0, 0]))[-1] == {}
    np.testing.assert_array_equal(talking.step(np.array([0, 0]))[-1]["count"], [1, 1])


def test_earlier_observations_are_not_overwritten_by_later_steps() -> None:
    envs = make_vector_env(Countdown, 2)
    envs.reset(seed=0)
    first = envs.step(np.array([0, 0]))[0]
    envs.step(np.array([0, 0]))
    np.testing.assert_array_equal(first, [[1.0], [1.0]])


@pytest.mark.parametrize("envs_per_actor", [1, 2])
def test_an_environment_that_raises_gives_its_own_exception_and_says_which_one(envs_per_actor: int) -> None:
    with InProcessActors() as actors:
        envs = make_vector_env(Countdown, 2, actors=actors, envs_per_actor=envs_per_actor, env_kwargs={"angry_at": 2})
        envs.reset(seed=0)
        envs.step(np.array([0, 0]))
        with pytest.raises(LookupError, match="angry at 2") as caught:
            envs.step(np.array([0, 0]))
        assert "raised in step by environment 0" in caught.value.__notes__[0]
        with pytest.raises(ParlError, match="reset"):
            envs.step(np.array([0, 0]))
        envs.reset(seed=0)
        np.testing.assert_array_equal(envs.step(np.array([0, 0]))[0], [[1.0], [1.0]])


@pytest.mark.parametrize(
    ("reward", "found"), [(np.ones(2), r"\[1\., 1\.\]\) of shape \[2\]"), ([1.0], r"\[1\.0\] of list")]
)
def test_a_reward_that_is_no_number_is_refused_by_environment_with_what_to_do(reward: Any, found: str) -> None:
    class Generous(Countdown):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, reward if action else 0.0, *rest

    envs = make_vector_env(Generous, 2)
    envs.reset(seed=0)
    with pytest.raises(ParlError, match=rf"step of Generous gave the reward .*{found}.*return float") as caught:
        envs.step(np.array([0, 1]))
    assert "environment 1 of the 2" in caught.value.__notes__[0]


def test_a_failing_constructor_leaves_no_actor_open() -> None:
    made: list[Any] = []

    def make() -> Any:
        if len(made) == 1:
            raise OSError("no simulator left")
        made.append(Countdown())
        return made[-1]

    with InProcessActors() as actors, pytest.raises(OSError, match="no simulator left"):
        make_vector_env(make, 2, actors=actors, envs_per_actor=1)


@pytest.mark.parametrize("envs_per_actor", [1, 2, 3])
def test_attributes_and_methods_of_environments_are_reached_as_in_gymnasiums_vectors(envs_per_actor: int) -> None:
    reference = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
    with make_vector_env("CartPole-v1", 3, envs_per_actor=envs_per_actor) as envs:
        found = []
        both: tuple[Any, ...] = (reference, envs)
        for each in both:
            each.reset(seed=0)
            each.set_attr("gravity", 20.0)
            each.set_attr("length", [0.5, 1.0, 1.5])
            _, *rest = each.step(np.array([0, 1, 0]))
            numbers = (each.get_attr("gravity"), each.get_attr("length"), each.call("gravity"))
            found.append((*numbers, each.call("has_wrapper_attr", "x"), [one.tolist() for one in rest[:3]]))
        assert found[0] == found[1]
        assert reference.get_attr("gravity") == (20.0,) * 3
        with pytest.raises(HyperparameterError, match="2 values of length were given for 3 environments"):
            envs.set_attr("length", [1.0, 2.0])
        with pytest.raises(AttributeError, match="no_such"):
            envs.call("no_such")
    reference.close()


def test_closing_twice_is_harmless_and_a_step_after_close_is_refused() -> None:
    envs = make_vector_env(Countdown, 2)
    envs.reset(seed=0)
    envs.close()
    envs.close()
    with pytest.raises(ParlError, match="closed"):
        envs.step(np.array([0, 0]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"num_envs": 0}, "num_envs must be at least 1, got 0"), ({"num_envs": 2, "envs_per_actor": -1}, "got -1")],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HyperparameterError, match=message):
        make_vector_env("CartPole-v1", **arguments)


def test_a_wrong_number_of_seeds_or_actions_is_refused() -> None:
    envs = make_vector_env("CartPole-v1", 3)
    with pytest.raises(HyperparameterError, match="2 seeds were given for 3"):
        envs.reset(seed=[1, 2])
    envs.reset(seed=[1, None, 2])
    with pytest.raises(HyperparameterError, match="4 actions were given for 3"):
        envs.step(np.zeros(4, int))


@pytest.mark.parametrize("rows", [3, 3000])
def test_a_step_survives_pickling_with_dtypes_shapes_and_writable_arrays(rows: int) -> None:
    step = GroupStep(
        np.arange(2 * rows, dtype=np.float32).reshape(2, rows),
        np.array([0.1, np.nan]),
        np.array([True, False]),
        np.array([False, True]),
        [Ending(1, np.ones(3, np.uint8), {"score": 3}, 2.5, 7)],
        [(0, {"lives": 2})],
    )
    back = pickle.loads(pickle.dumps(step, protocol=5))
    assert type(back) is GroupStep
    np.testing.assert_equal(tuple(back), tuple(step))
    for before, after in zip(step[:4], back[:4], strict=True):
        assert before.dtype == after.dtype
        assert after.flags.writeable


def test_dict_observations_and_few_bytes_travel() -> None:
    step = GroupStep({"seen": np.ones((2, 2))}, np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), [], [])
    np.testing.assert_equal(pickle.loads(pickle.dumps(step)), step)
    cartpole = step._replace(observations=np.zeros((4, 4), np.float32))
    assert len(pickle.dumps(cartpole, protocol=5)) < 300


def test_actions_survive_pickling_one_by_one() -> None:
    for actions in (np.array([1, 0, 2]), np.array([[0.5, -1.0]], np.float32)):
        back = pickle.loads(pickle.dumps(ActionRows(actions)))
        np.testing.assert_array_equal(list(back), list(ActionRows(actions)))
        assert [row.dtype for row in back] == [actions.dtype] * len(actions)


def test_seeds_may_be_numpy_s_whole_numbers_and_nothing_else() -> None:
    with make_vector_env("CartPole-v1", 2) as envs:
        first, _ = envs.reset(seed=np.int64(3))  # type: ignore[arg-type]
        np.testing.assert_array_equal(first, envs.reset(seed=np.array([3, 4]))[0])  # type: ignore[arg-type]
        for seed, said in (("a", "'a'"), (1.5, "1.5"), ([1, -1], "at least 0, got -1"), ([1], "1 seeds")):
            with pytest.raises(HyperparameterError, match=said):
                envs.reset(seed=seed)  # type: ignore[arg-type]


BOX, BYTES = gymnasium.spaces.Box(-9.0, 9.0, (3,), np.float32), gymnasium.spaces.Box(0, 255, (3,), np.uint8)
CHOICE, NAMED = gymnasium.spaces.Discrete(4), gymnasium.spaces.Dict(a=BOX, b=BOX)
CHOICES = gymnasium.spaces.MultiDiscrete([2, 3])
SIGNED = gymnasium.spaces.Box(-128, 127, (1,), np.int8)


class Says(gymnasium.Env[Any, Any]):
    """Answers whatever it was given; resets to zeros unless it is asked to do the same there."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, space: Any, observation: Any, reward: Any = 1.0, ended: Any = False) -> None:
        self.observation_space = space
        self._answer: tuple[Any, ...] = observation, reward, ended, False, {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._answer[0], {}

    def step(self, action: Any) -> Any:
        return self._answer


@pytest.mark.parametrize("method", ["reset", "step"])
@pytest.mark.parametrize("info", [None, [], "done"])
def test_an_info_that_is_no_dictionary_is_refused_where_it_is_returned(method: str, info: Any) -> None:
    class Mute(Countdown):
        def reset(self, **options: Any) -> Any:
            observation, given = super().reset(**options)
            return observation, info if method == "reset" else given

        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], info

    def play() -> None:
        envs = make_vector_env(Mute, 2)
        envs.reset(seed=0)
        envs.step(np.zeros(2, int))

    with pytest.raises(EnvironmentContractError, match=f"{method} of Mute gave info=.*return a dict") as caught:
        play()
    assert f"raised in {method} by environment 0 of the 2" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("space", "observation", "said"),
    [
        (BOX, np.float32(2), "2.0"),
        (BOX, np.ones(1, np.float32), r"of shape \[1\].*return one of shape \[3\]"),
        (BOX, np.ones((1, 3), np.float32), r"of shape \[1, 3\]"),
        (BOX, [[1.0], [1.0, 2.0]], r"\[\[1.0\], \[1.0, 2.0\]\]"),
        (BOX, np.array([1j, 1, 1]), "complex"),
        (BOX, np.array(["1", "2", "3"]), "dtype <U1"),
        (BOX, None, "None"),
        (BYTES, np.array([300.7, -1.0, 2.9]), r"\[300.7.*dtype uint8"),
        (BYTES, np.array([256, 0, 0]), r"\[256"),
        (SIGNED, np.array([200]), r"\[200\] of shape \[1\] and dtype int64.*dtype int8"),
        (gymnasium.spaces.Dict(s=SIGNED), {"s": np.array([-129])}, r"\['s'\] \[-129\] of shape \[1\].*dtype int8"),
        (gymnasium.spaces.Box(-5, 5, (), np.int16), 2**15, r"32768.*dtype int16"),
        (CHOICE, 2.7, "2.7"),
        (CHOICE, 4, r"4, which is not in Discrete\(4\): return one of 0\.\.3"),
        (CHOICE, np.int64(-1), r"-1, which is not in Discrete\(4\)"),
        (gymnasium.spaces.Discrete(4, start=2), 1, r"1, which is not in .*: return one of 2\.\.5"),
        (
            CHOICES,
            np.array([1, 3]),
            r"\[1 3\], which is not in MultiDiscrete\(\[2 3\]\): return one of \[0 0\]\.\.\[1 2\]",
        ),
        (CHOICES, np.array([-1, 0], np.int32), r"\[-1  0\], which is not in MultiDiscrete"),
        (gymnasium.spaces.Dict(c=CHOICES), {"c": np.array([2, 0])}, r"\['c'\] \[2 0\], which is not in MultiDiscrete"),
        (gymnasium.spaces.Dict(c=CHOICE), {"c": 4}, r"\['c'\] 4, which is not in Discrete\(4\)"),
        (NAMED, {"a": np.ones(3, np.float32)}, r"without the key 'b'.*the keys \['a', 'b'\]"),
        (NAMED, {"a": BOX.low, "b": BOX.low, "c": BOX.low}, r"with the key 'c'.*the keys \['a', 'b'\]"),
        (gymnasium.spaces.Dict(n=NAMED), {"n": {"a": 1, "b": 1, "c": 1}}, r"\['n'\] with the key 'c'"),
        (NAMED, {"a": np.ones(1, np.float32), "b": np.ones(1, np.float32)}, "'a'"),
    ],
)
def test_an_observation_that_is_not_of_its_space_is_refused(space: Any, observation: Any, said: str) -> None:
    envs = make_vector_env(Says, 2, env_kwargs={"space": space, "observation": observation})
    with pytest.raises(EnvironmentContractError, match=f"(?s)Says gave the observation.*{said}") as caught:
        envs.reset(seed=0)
    assert "raised in reset by environment 0 of the 2" in caught.value.__notes__[0]


def test_observations_of_other_lengths_are_refused_though_together_they_are_long_enough() -> None:
    lengths = iter([1, 3])

    class Uneven(Countdown):
        observation_space = gymnasium.spaces.Box(0.0, 9.0, (2,), np.float32)

        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            return np.ones(next(lengths), np.float32), super().reset(**options)[1]

    with pytest.raises(EnvironmentContractError, match=r"Uneven gave the observation \[1.\] of shape \[1\]"):
        make_vector_env(Uneven, 2).reset(seed=0)


def test_a_last_observation_with_an_unknown_key_is_refused_by_it() -> None:
    class Ends(Says):
        def step(self, action: Any) -> Any:
            return {**self._answer[0], "c": 1}, 0.0, True, False, {}

    fine = {"a": BOX.low, "b": BOX.low}
    envs = make_vector_env(Ends, 2, env_kwargs={"space": NAMED, "observation": fine})
    envs.reset(seed=0)
    with pytest.raises(EnvironmentContractError, match="Ends gave the observation with the key 'c'"):
        envs.step(np.zeros(2, int))


@pytest.mark.parametrize(
    ("space", "observation"),
    [(BOX, np.ones(3)), (BOX, [1, 1, 1]), (BYTES, np.ones(3)), (BYTES, np.ones(3, np.int64)), (CHOICE, np.int32(1))],
)
def test_an_observation_of_another_dtype_is_taken_where_nothing_is_lost(space: Any, observation: Any) -> None:
    with make_vector_env(Says, 2, env_kwargs={"space": space, "observation": observation}) as envs:
        envs.reset(seed=0)
        found = envs.step(np.zeros(2, int))[0]
    assert found.dtype == space.dtype
    assert (found == 1).all()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"reward": None}, "the reward None of NoneType"),
        ({"reward": "1.5"}, "the reward '1.5' of str"),
        ({"reward": 1j}, "the reward 1j of complex"),
        ({"ended": "no"}, "terminated='no' of str"),
        ({"ended": None}, "terminated=None of NoneType"),
    ],
)
def test_rewards_and_ends_that_are_none_are_refused(answer: dict[str, Any], said: str) -> None:
    with make_vector_env(Says, 1, env_kwargs={"space": CHOICE, "observation": 1, **answer}) as envs:
        envs.reset(seed=0)
        with pytest.raises(EnvironmentContractError, match=f"step of Says gave {said}"):
            envs.step(np.zeros(1, int))


class OldApi(Says):
    """Has gym's old API where it is asked to: four values from `step`, or the observation alone from `reset`."""

    def __init__(self, method: str) -> None:
        super().__init__(BOX, np.zeros(3, np.float32))
        self._method = method

    def reset(self, **options: Any) -> Any:
        found = super().reset(**options)
        return found[0] if self._method == "reset" else found

    def step(self, action: Any) -> Any:
        found = super().step(action)
        return (*found[:3], {}) if self._method == "step" else found


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("step", r"step of OldApi returned a tuple of 4: .*\(observation, reward, terminated, truncated, info\)"),
        ("reset", r"reset of OldApi returned an array of shape \[3\]: .*\(observation, info\)"),
    ],
)
def test_the_old_api_of_gym_is_named(method: str, said: str) -> None:
    def begin_and_step(envs: Any) -> None:
        envs.reset(seed=0)
        envs.step(np.zeros(1, int))

    old = make_vector_env(OldApi, 1, env_kwargs={"method": method})
    with old, pytest.raises(EnvironmentContractError, match=said):
        begin_and_step(old)


class WithoutBase:
    """Of gym's old API, and of no class of Gymnasium's."""

    observation_space, action_space = BOX, gymnasium.spaces.Discrete(2)

    def reset(self) -> Any:
        self.count = 0
        return np.zeros(3, np.float32)

    def step(self, action: int) -> Any:
        self.count += 1
        return np.full(3, self.count, np.float32), float(action), self.count == 2, {}


class SeededWithoutBase:
    """Of Gymnasium's API, and of no class of Gymnasium's."""

    observation_space, action_space = BOX, gymnasium.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.inner = WithoutBase()
        return self.inner.reset() + (seed or 0), {}

    def step(self, action: int) -> Any:
        obs, reward, terminated, info = self.inner.step(action)
        return obs, reward, terminated, False, info


@pytest.mark.parametrize(("env", "seeds"), [(WithoutBase, [0, 0]), (SeededWithoutBase, [5, 6])])
def test_an_environment_needs_no_base_class(env: Any, seeds: list[int]) -> None:
    with make_vector_env(env, 2) as envs:
        obs, _ = envs.reset(seed=5)
        assert obs[:, 0].tolist() == seeds
        envs.step([0, 1])
        _, rewards, terminated, _, infos = envs.step([0, 1])
    assert (rewards.tolist(), terminated.tolist()) == ([0.0, 1.0], [True, True])
    assert infos["episode"]["l"].tolist() == [2, 2]


def test_an_environment_without_a_space_is_refused_by_name() -> None:
    class Spaceless(gymnasium.Env[Any, Any]):
        action_space = gymnasium.spaces.Discrete(2)

    for env in (Spaceless, lambda: gymnasium.wrappers.TimeLimit(Spaceless(), 9)):
        with pytest.raises(EnvironmentContractError, match=r"Spaceless has no observation_space: set self.obs"):
            make_vector_env(env, 1)


def test_a_reset_that_takes_a_seed_alone_is_enough() -> None:
    class Seeded(Says):
        def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]  # that is what is tested
            return super().reset(seed=seed)

    with make_vector_env(Seeded, 1, env_kwargs={"space": BOX, "observation": np.ones(3, np.float32)}) as envs:
        assert envs.reset(seed=3)[0].tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("envs_per_actor", [1, 2])
def test_environments_of_a_vector_need_the_same_spaces(envs_per_actor: int) -> None:
    spaces = iter([BOX, gymnasium.spaces.Box(-9.0, 9.0, (1,), np.float32)])
    with (
        InProcessActors() as actors,
        pytest.raises(EnvironmentContractError, match=r"environment 1 has the observation_space .*\(1,\)"),
    ):
        make_vector_env(lambda: Says(next(spaces), np.ones(3)), 2, actors=actors, envs_per_actor=envs_per_actor)


class Licensed(Countdown):
    """There are two licences; the first one's environment cannot be closed properly."""

    made: ClassVar[list[Any]] = []
    closed: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        if len(self.made) == 2:
            raise OSError("no licence left")
        self.made.append(self)

    def close(self) -> None:
        self.closed.append(self)
        if self is self.made[0]:
            raise OSError("the licence server is gone")


@pytest.fixture
def licences() -> type[Licensed]:
    Licensed.made, Licensed.closed = [], []
    return Licensed


@pytest.mark.parametrize("envs_per_actor", [1, 2, 3])
def test_where_one_environment_cannot_be_made_those_before_it_are_closed(
    licences: type[Licensed], envs_per_actor: int
) -> None:
    with InProcessActors() as actors, pytest.raises(OSError, match="no licence left"):
        make_vector_env(Licensed, 3, actors=actors, envs_per_actor=envs_per_actor)
    assert licences.closed == licences.made
    assert len(licences.made) == 2


def test_an_environment_that_cannot_be_closed_does_not_keep_the_others_open(licences: type[Licensed]) -> None:
    make_vector_env(Licensed, 2).close()
    assert licences.closed == licences.made


def test_a_function_that_gives_one_environment_twice_is_refused() -> None:
    one = Countdown()
    with pytest.raises(EnvironmentContractError, match="gave the same Countdown again as environment 1"):
        make_vector_env(lambda: one, 2)


@pytest.mark.parametrize("number", [0, 2.0, "3", True, None])
def test_numbers_of_environments_are_whole_and_at_least_one(number: Any) -> None:
    with pytest.raises(HyperparameterError, match="num_envs must be"):
        make_vector_env(Countdown, number)
    if number is not None:
        with pytest.raises(HyperparameterError, match="envs_per_actor must be"):
            make_vector_env(Countdown, 2, envs_per_actor=number)


@pytest.mark.parametrize("actions", [None, 0, "ab", np.float32(1)])
def test_what_is_no_row_of_actions_is_refused(actions: Any) -> None:
    with make_vector_env(Countdown, 2) as envs:
        envs.reset(seed=0)
        with pytest.raises(HyperparameterError, match="one action for each of 2 environments, got"):
            envs.step(actions)
