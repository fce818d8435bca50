"""Every autoreset mode gives the episodes that really happened; their lengths are known beforehand."""

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.wrappers.vector import NormalizeObservation

from parl_core.actors import InProcessActors
from parl_core.env.autoreset import SameStep, in_same_step
from parl_core.env.vector import make_vector_env
from parl_core.errors import EnvironmentContractError, HyperparameterError, ParlError
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.on_policy import OnPolicySettings, train_on_policy

LENGTHS = (3, 5, 4)
MODES = list(AutoresetMode)


class Clock(gymnasium.Env[Any, Any]):
    """Observes (episode, step); ends after `length` steps, each worth its number; even episodes are truncated."""

    observation_space = gymnasium.spaces.Box(0.0, 1000.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self._length, self._episode, self._step = length, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        return self._seen(), {"options": options}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._step < self._length, "stepped after the end of an episode"
        self._step += 1
        over, even = self._step == self._length, self._episode % 2 == 0
        return self._seen(), float(self._step), over and not even, over and even, {"at": self._step}

    def _seen(self) -> Any:
        return np.array([self._episode, self._step], np.float32)


def makers() -> list[Any]:
    return [lambda length=length: Clock(length) for length in LENGTHS]


def ours(mode: Any, actors: Any = None) -> Any:
    lengths = iter(LENGTHS)
    return make_vector_env(
        lambda: Clock(next(lengths)),
        3,
        actors=actors,
        envs_per_actor=None if actors is None else 2,
        autoreset_mode=mode,
        with_infos=True,
    )


def transitions(envs: Any, steps: int) -> list[list[tuple[Any, ...]]]:
    """Return the transitions of each environment, as a loop that trusts SAME_STEP sees them."""
    seen: list[list[tuple[Any, ...]]] = [[] for _ in range(envs.num_envs)]
    obs, _ = envs.reset(seed=0)
    for _ in range(steps):
        before = np.array(obs)
        obs, reward, terminated, truncated, infos = envs.step(np.zeros(envs.num_envs, int))
        for i in range(envs.num_envs):
            ended = terminated[i] or truncated[i]
            after = infos["final_obs"][i] if ended else obs[i]
            seen[i].append((*before[i], reward[i], *after, bool(terminated[i]), bool(truncated[i])))
    envs.close()
    return seen


def expected(length: int, steps: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for t in range(steps):
        episode, step = 1 + t // length, t % length
        over, even = step + 1 == length, episode % 2 == 0
        rows.append((episode, step, step + 1.0, episode, step + 1, over and not even, over and even))
    return rows


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["ours", "ours in actors", "gymnasium sync", "gymnasium async"])
def test_a_loop_sees_the_transitions_that_happened_whichever_mode_the_environments_have(mode: Any, kind: str) -> None:
    with InProcessActors() as actors:
        envs: Any = {
            "ours": lambda: ours(mode),
            "ours in actors": lambda: ours(mode, actors),
            "gymnasium sync": lambda: SyncVectorEnv(makers(), autoreset_mode=mode),
            "gymnasium async": lambda: AsyncVectorEnv(makers(), autoreset_mode=mode),
        }[kind]()
        adapted = in_same_step(envs)
        assert adapted.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert transitions(adapted, 24) == [expected(length, 24) for length in LENGTHS]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_a_mode_gives_step_by_step_what_gymnasiums_own_gives(mode: AutoresetMode) -> None:
    mine, reference = ours(mode), SyncVectorEnv(makers(), autoreset_mode=mode)
    np.testing.assert_equal(mine.reset(seed=3)[0], reference.reset(seed=3)[0])
    for _ in range(20):
        actions = np.zeros(3, int)
        np.testing.assert_equal(mine.step(actions)[:4], reference.step(actions)[:4])


def test_with_next_step_the_step_after_an_end_only_resets() -> None:
    envs = make_vector_env(Clock, 1, env_kwargs={"length": 2}, autoreset_mode="NEXT_STEP")
    envs.reset(seed=0)
    steps = [envs.step(np.zeros(1, int)) for _ in range(6)]
    assert [step[0][0].tolist() for step in steps] == [[1, 1], [1, 2], [2, 0], [2, 1], [2, 2], [3, 0]]
    assert [step[1].item() for step in steps] == [1.0, 2.0, 0.0, 1.0, 2.0, 0.0]
    assert [bool(step[2] | step[3]) for step in steps] == [False, True, False, False, True, False]
    assert "final_obs" not in steps[1][-1]
    assert steps[1][-1]["episode"]["l"].item() == 2


def test_with_disabled_a_step_after_an_end_is_refused_until_those_environments_are_reset() -> None:
    envs = ours(AutoresetMode.DISABLED)
    envs.reset(seed=0)
    for _ in range(3):
        *_, terminated, truncated, _ = envs.step(np.zeros(3, int))
    with pytest.raises(ParlError, match=r"environments \[0\] are over .*reset_mask"):
        envs.step(np.zeros(3, int))
    obs, infos = envs.reset(options={"reset_mask": terminated | truncated, "level": 7})
    assert obs.tolist() == [[2, 0], [1, 3], [1, 3]]
    assert infos["options"]["level"].tolist() == [7, 0, 0]
    assert envs.step(np.zeros(3, int))[1].tolist() == [1.0, 4.0, 4.0]


@pytest.mark.parametrize("mode", MODES)
def test_statistics_of_episodes_come_in_every_mode(mode: AutoresetMode) -> None:
    envs = ours(mode)
    envs.reset(seed=0)
    lengths: list[list[int]] = [[], [], []]
    for _ in range(30):
        *_, terminated, truncated, infos = envs.step(np.zeros(3, int))
        for i in np.flatnonzero(infos.get("_episode", [])):
            lengths[i].append(int(infos["episode"]["l"][i]))
            assert infos["episode"]["r"][i] == sum(range(LENGTHS[i] + 1))
        if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            envs.reset(options={"reset_mask": terminated | truncated})
    assert all(set(found) == {length} for found, length in zip(lengths, LENGTHS, strict=True))


class InParts(Clock):
    """Observes the same in a dictionary."""

    observation_space: Any = gymnasium.spaces.Dict({"both": Clock.observation_space})

    def _seen(self) -> Any:
        return {"both": super()._seen()}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_last_observations_in_parts_stay_where_a_vector_writes_into_the_same_arrays_again(mode: AutoresetMode) -> None:
    envs = in_same_step(SyncVectorEnv([lambda: InParts(2)] * 2, copy=False, autoreset_mode=mode))
    envs.reset(seed=0)
    for _ in range(2):
        obs, *_, infos = envs.step(np.zeros(2, int))
    assert [last["both"].tolist() for last in infos["final_obs"]] == [[1, 2], [1, 2]]
    assert obs["both"].tolist() == [[2, 0], [2, 0]]


def test_same_step_environments_are_handed_back_as_they_are() -> None:
    envs = ours(AutoresetMode.SAME_STEP)
    assert in_same_step(envs) is envs


def test_environments_that_do_not_say_their_mode_are_refused() -> None:
    envs = ours(AutoresetMode.SAME_STEP)
    envs.metadata = {}
    with pytest.raises(HyperparameterError, match=r"metadata\['autoreset_mode'\] is None"):
        in_same_step(envs)


def test_environments_that_reset_all_instead_of_some_are_found_out() -> None:
    class Forgetful(VectorWrapper):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return self.env.reset(seed=seed)

    envs = SameStep(Forgetful(SyncVectorEnv(makers(), autoreset_mode=AutoresetMode.NEXT_STEP)))
    envs.reset(seed=0)
    envs.step(np.zeros(3, int))
    envs.step(np.zeros(3, int))
    with pytest.raises(ParlError, match=r"reset environments \[0\] and changed environment 1"):
        envs.step(np.zeros(3, int))


@pytest.mark.parametrize("mask", [np.ones(2, bool), np.ones(3, int), "all"])
def test_a_reset_mask_of_another_form_is_refused(mask: Any) -> None:
    envs = ours(AutoresetMode.DISABLED)
    envs.reset(seed=0)
    with pytest.raises(HyperparameterError, match=r"bool array of shape \[3\]"):
        envs.reset(options={"reset_mask": mask})


def test_some_environments_cannot_be_reset_before_all_were() -> None:
    with pytest.raises(ParlError, match="without a reset_mask first"):
        ours(AutoresetMode.DISABLED).reset(options={"reset_mask": np.ones(3, bool)})


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(HyperparameterError, match=r"AutoresetMode\.NEXT_STEP.* got 'sometimes'"):
        ours("sometimes")


def test_a_wrapper_that_resets_all_or_none_is_named_with_what_to_use_in_its_place() -> None:
    envs = in_same_step(NormalizeObservation(SyncVectorEnv(makers(), autoreset_mode=AutoresetMode.NEXT_STEP)))
    envs.reset(seed=0)
    for _ in range(2):
        envs.step(np.zeros(3, int))
    with pytest.raises((AssertionError, ValueError)) as caught:  # of Gymnasium: the first to 1.3, with no word
        envs.step(np.zeros(3, int))
    assert re.search(
        r"NormalizeObservation was asked to reset environments \[0\] alone.*NormalizeVector", caught.value.__notes__[0]
    )


def test_a_vector_without_reset_mask_is_refused_with_one_that_works() -> None:
    envs = in_same_step(gymnasium.make_vec("CartPole-v1", 3))
    envs.reset(seed=0)

    def play() -> None:
        for _ in range(100):
            envs.step(np.ones(3, np.int64))

    with pytest.raises(ParlError, match=r"CartPoleVectorEnv .*vectorization_mode='sync', .*AutoresetMode\.SAME_STEP"):
        play()
    kwargs = {"autoreset_mode": AutoresetMode.SAME_STEP}
    told: Any = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync", vector_kwargs=kwargs)
    assert in_same_step(told) is told


@pytest.mark.parametrize("given", ["CartPole-v1", lambda: Clock(3), Clock(3)], ids=["id", "function", "environment"])
@pytest.mark.parametrize("loop", [train_on_policy, train_off_policy])
def test_what_is_no_vector_is_refused_by_the_loops_with_how_to_make_one(given: Any, loop: Any) -> None:
    settings = OnPolicySettings(total_steps=8) if loop is train_on_policy else OffPolicySettings(total_steps=8)
    with pytest.raises(HyperparameterError, match=r"a vector of environments, got .*make_vector_env\("):
        loop(None, given, settings)


class WithoutLastObservations(VectorWrapper):
    def step(self, actions: Any) -> Any:
        *step, infos = self.env.step(actions)
        return *step, {name: info for name, info in infos.items() if name != "final_obs"}


def test_a_vector_that_gives_no_last_observations_is_told_what_is_needed() -> None:
    class Standing:
        """Stands still, and learns nothing."""

        alg = type("Nothing", (), {"FIGURES": ("loss",), "gamma": 0.9})()

        def explore(self, obs: Any) -> Any:
            return np.zeros(len(obs)), self.sample(obs), np.zeros(len(obs))

        def sample(self, obs: Any, **exploration: float) -> Any:
            return np.zeros(len(obs), np.int64)

    agent: Any = Standing()
    envs = [WithoutLastObservations(make_vector_env(lambda: Clock(4), 1)) for _ in range(2)]
    with pytest.raises(EnvironmentContractError, match=r"its infos lack final_obs, .*SAME_STEP"):
        train_on_policy(agent, envs[0], OnPolicySettings(total_steps=9, n_steps=9))
    with pytest.raises(EnvironmentContractError, match="its infos lack final_obs"):
        train_off_policy(
            agent, envs[1], OffPolicySettings(total_steps=9, learning_starts=9, batch_size=2, memory_size=9)
        )
