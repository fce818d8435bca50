"""Logged data: what is read, in which order, and what is refused with which words."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from parl_core.errors import DatasetError, HyperparameterError
from parl_core.offline import OfflineDataset, SequenceSampler, padded_window, read_minari, read_npz
from parl_core.replay import ReplayMemory
from parl_core.training.acting import into_space


def arrays(n: int = 6, **changed: Any) -> dict[str, Any]:
    obs = np.arange(2.0 * n).reshape(n, 2)
    columns = {
        "obs": obs,
        "action": np.arange(n) % 3,
        "reward": np.arange(1.0, n + 1.0),
        "next_obs": obs + 2.0,
        "terminal": np.arange(n) % 3 == 2,
    }
    return {name: value for name, value in {**columns, **changed}.items() if value is not None}


def test_columns_are_converted_and_episodes_found() -> None:
    data = OfflineDataset.from_arrays(arrays())
    assert (data.obs.dtype, data.action.dtype, data.reward.dtype) == (np.float32, np.int64, np.float32)
    assert data.episodes == ((0, 3), (3, 6))
    np.testing.assert_array_equal(data.episode_returns, [6.0, 15.0])
    assert [len(episode) for episode in data] == [3, 3]
    assert not data.truncated.any()


def test_an_episode_also_ends_where_it_was_cut_and_where_the_next_row_does_not_go_on() -> None:
    obs = np.arange(12.0).reshape(6, 2)
    obs[4:] += 50.0  # row 4 begins somewhere else, and no flag says so
    after = np.concatenate([obs[1:4], [[8.0, 9.0]], obs[5:], [[70.0, 70.0]]])
    columns = arrays(obs=obs, next_obs=after, terminal=np.zeros(6), truncated=np.arange(6) == 1)
    assert OfflineDataset.from_arrays(columns).episodes == ((0, 2), (2, 4), (4, 6))


def test_rows_of_shape_n_1_and_continuous_actions_of_one_dimension_are_taken() -> None:
    columns = arrays(reward=np.ones((6, 1)), terminal=np.zeros((6, 1)), action=np.linspace(-1.0, 1.0, 6))
    data = OfflineDataset.from_arrays(columns)
    assert data.reward.shape == data.terminal.shape == (6,)
    assert (data.action.shape, data.action.dtype) == ((6, 1), np.float32)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reward": None, "terminal": None}, r"lacks reward, terminal; it has action, next_obs, obs"),
        ({"action": np.zeros(5, int)}, r"different lengths: obs 6, action 5, reward 6"),
        ({"reward": np.array([0, 1, np.inf, 3, 4, 5])}, r"has reward inf in row 2"),
        ({"obs": np.full((6, 2), np.nan)}, r"has obs nan in row 0"),
        ({"action": np.array([0.5, np.nan, 0, 0, 0, 0])}, r"has action nan in row 1"),
        ({"next_obs": np.zeros((6, 3))}, r"obs of shape \[6, 2\] and next_obs of shape \[6, 3\]"),
        ({"terminal": np.array([0, 0, 7, 0, 0, 0])}, r"has terminal 7.0 in row 2: flags are 0 or 1"),
        ({"action": np.array([0, -1, 0, 0, 0, 0])}, r"has the action -1"),
        ({"reward": np.zeros((6, 2))}, r"reward must have shape"),
        ({"action": np.zeros((6, 0), int)}, r"actions of shape \[6, 0\]: an action has at least one number"),
        ({"action": np.array(list("abcdef"))}, r"has action of dtype <U1"),
        ({"reward": np.array([0, 1e300, 0, 0, 0, 0])}, r"has reward 1e\+300 in row 1: beyond float32.*scale or clip"),
        ({"obs": np.full((6, 2), -1e39)}, r"has obs -1e\+39 in row 0: beyond float32"),
        ({"action": np.array([0.0, 0, 0, 1e40, 0, 0])}, r"has action 1e\+40 in row 3: beyond float32"),
        ({"obs": np.full((6, 2), 1j)}, r"has obs of dtype complex128, in row 0 \[1j\].*real and imaginary"),
        ({"next_obs": np.full((6, 2), 1j)}, r"next_obs.*complex128"),
        ({"reward": np.full(6, 1j)}, r"has reward of dtype complex128"),
    ],
)
def test_data_that_cannot_be_learned_from_is_refused_with_names_and_values(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        OfflineDataset.from_arrays(arrays(**changed), "log.npz")


def test_a_dataset_without_rows_is_refused() -> None:
    with pytest.raises(DatasetError, match="has no transitions"):
        OfflineDataset.from_arrays(arrays(0))


def test_a_saved_dataset_is_read_again(tmp_path: Path) -> None:
    data = OfflineDataset.from_arrays(arrays(truncated=np.arange(6) == 4))
    again = read_npz(data.save(tmp_path / "log.npz"))
    for name in ("obs", "action", "reward", "next_obs", "terminal", "truncated"):
        np.testing.assert_array_equal(getattr(again, name), getattr(data, name))
    assert again.source.endswith("log.npz")


def test_a_file_of_d4rls_form_is_read(tmp_path: Path) -> None:
    columns = arrays()
    names = {"obs": "observations", "action": "actions", "reward": "rewards", "next_obs": "next_observations"}
    theirs = {theirs: columns[ours] for ours, theirs in names.items()}
    np.savez(tmp_path / "d4rl.npz", **theirs, terminals=columns["terminal"], timeouts=np.arange(6) == 4)
    data = read_npz(tmp_path / "d4rl.npz")
    assert data.episodes == ((0, 3), (3, 5), (5, 6))
    np.savez(tmp_path / "part.npz", **theirs)
    with pytest.raises(DatasetError, match=r"part\.npz lacks terminals; it has actions, .*observations, actions"):
        read_npz(tmp_path / "part.npz")


def raw_d4rl(n: int = 8, **changed: Any) -> dict[str, Any]:
    columns = {
        "observations": np.arange(2.0 * n).reshape(n, 2),
        "actions": np.zeros((n, 1), np.float32),
        "rewards": np.arange(float(n)),
        "terminals": np.arange(n) == 2,
        "timeouts": np.arange(n) == 5,
    }
    return {name: value for name, value in {**columns, **changed}.items() if value is not None}


def test_without_next_observations_those_of_the_following_rows_are_taken(tmp_path: Path) -> None:
    np.savez(tmp_path / "raw.npz", **raw_d4rl())
    data = read_npz(tmp_path / "raw.npz")
    # Row 5 reached the time limit and row 7 is the last: what came after them is not in the log.
    assert data.reward.tolist() == [0, 1, 2, 3, 4, 6]
    assert data.terminal.tolist() == [False, False, True, False, False, False]
    assert data.truncated.tolist() == [False, False, False, False, True, True]
    assert data.episodes == ((0, 3), (3, 5), (5, 6))
    going_on = ~data.terminal
    np.testing.assert_array_equal(data.next_obs[going_on], data.obs[going_on] + 2.0)


def test_without_next_observations_episodes_of_one_row_and_a_terminal_end_are_kept_right(tmp_path: Path) -> None:
    terminals, timeouts = np.array([0, 1, 0, 0, 1]), np.array([1, 1, 0, 1, 0])
    np.savez(tmp_path / "raw.npz", **raw_d4rl(5, terminals=terminals, timeouts=timeouts))
    data = read_npz(tmp_path / "raw.npz")
    assert data.reward.tolist() == [1, 2, 4]  # row 0 was an episode of its own, and was cut
    assert data.terminal.tolist() == [True, False, True]
    assert data.truncated.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"timeouts": None}, "lacks next_observations, and timeouts"),
        ({"rewards": None}, "lacks rewards; it has"),
        ({"terminals": np.zeros(3)}, "different lengths"),
        ({"terminals": np.full(8, 2)}, "has terminal 2.0 in row 0"),
        ({"timeouts": np.ones(8), "terminals": np.zeros(8)}, "has no transitions"),
    ],
)
def test_a_raw_file_that_cannot_be_completed_is_refused_by_its_own_names(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    np.savez(tmp_path / "raw.npz", **raw_d4rl(**changed))
    with pytest.raises(DatasetError, match=message):
        read_npz(tmp_path / "raw.npz")


@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_replay_memory_that_went_round_is_put_into_order(tmp_path: Path, n_envs: int) -> None:
    memory = ReplayMemory(8, 1, 0, n_envs=n_envs)
    for t in range(11 if n_envs == 1 else 6):
        for env in range(n_envs):
            at = np.array([100.0 * env + t], np.float32)
            memory.append(at, env, float(t), at + 1, False)
    memory.save(tmp_path / "memory")
    data = read_npz(tmp_path / "memory")
    expected = [range(3, 11)] if n_envs == 1 else [range(2, 6), range(102, 106)]
    assert data.obs[:, 0].tolist() == [float(t) for part in expected for t in part]
    assert len(data.episodes) == n_envs


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 torn"])
def test_a_missing_or_damaged_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "log.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"log\.npz"):
        read_npz(path)


def test_batches_are_rows_of_the_data() -> None:
    data = OfflineDataset.from_arrays(arrays())
    batch = data.draw(1000, np.random.default_rng(1))
    assert list(batch) == ["obs", "action", "reward", "next_obs", "terminal"]
    np.testing.assert_array_equal(batch["obs"][:, 0], 2.0 * (batch["reward"] - 1.0))
    assert np.unique(batch["reward"]).size == 6


def test_windows_end_anywhere_and_never_cross_episodes() -> None:
    action = np.arange(6.0)[:, None] / 10.0
    data = OfflineDataset.from_arrays(arrays(action=action))
    window = SequenceSampler(data, context=4, return_scale=2.0).draw(500, np.random.default_rng(1))
    lengths = window.mask.sum(axis=1).astype(int)
    assert set(lengths) == {1, 2, 3}
    to_go = {1: 6.0, 2: 5.0, 3: 3.0, 4: 15.0, 5: 11.0, 6: 6.0}  # sums of what is left, by the reward of the step
    for i, length in enumerate(lengths):
        there = window.mask[i] == 1
        assert there[4 - length :].all()
        assert window.timestep[i][there].tolist() == list(range(length))
        numbers = np.rint(window.action[i][there][:, 0] * 10).astype(int)
        assert (np.diff(numbers) == 1).all()
        expected = [to_go[number + 1] / 2.0 for number in numbers]
        np.testing.assert_allclose(window.return_to_go[i][there][:, 0], expected)
        for part in (window.obs, window.action, window.return_to_go):
            assert (part[i][~there] == 0).all()
        assert (window.timestep[i][~there] == 0).all()


def test_windows_of_discrete_actions_are_refused_with_the_remedy() -> None:
    with pytest.raises(HyperparameterError, match="one-hot"):
        SequenceSampler(OfflineDataset.from_arrays(arrays()), 4)


def test_choices_become_one_hot_rows_of_the_same_episodes() -> None:
    data = OfflineDataset.from_arrays(arrays(action=np.array([0, 2, 1, 0, 2, 2])))
    made = data.with_one_hot_actions(3)
    assert (made.action.dtype, made.action.argmax(1).tolist()) == (np.float32, [0, 2, 1, 0, 2, 2])
    assert (made.action.sum(1) == 1.0).all()
    assert made.episodes == data.episodes
    with pytest.raises(DatasetError, match="has the action 2, and there are 2 choices"):
        data.with_one_hot_actions(2)
    with pytest.raises(DatasetError, match=r"actions of shape \[3\], not choices"):
        made.with_one_hot_actions(3)


def test_a_game_that_is_being_played_gives_padded_windows_with_its_own_step_numbers() -> None:
    window = padded_window(np.ones((2, 3, 4)), np.ones((2, 3, 1)), np.ones((2, 3, 1)), context=5, first_step=7)
    assert window.mask.tolist() == [[0, 0, 1, 1, 1]] * 2
    assert window.timestep.tolist() == [[0, 0, 7, 8, 9]] * 2
    assert window.obs.shape == (2, 5, 4)
    assert padded_window(np.ones((1, 6, 4)), np.ones((1, 6, 1)), np.ones((1, 6, 1)), 5).timestep.tolist() == [
        [1, 2, 3, 4, 5]
    ]


def test_rewards_can_be_scaled() -> None:
    data = OfflineDataset.from_arrays(arrays()).scaled_rewards(0.5, -1.0)
    np.testing.assert_array_equal(data.reward, np.arange(1.0, 7.0) * 0.5 - 1.0)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_minari_dataset_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(1)
    episodes: list[EpisodeBuffer] = []
    for length in (3, 5, 4):
        episodes.append(
            EpisodeBuffer(
                id=len(episodes),
                observations=rng.normal(size=(length + 1, 2)).astype(np.float32),
                actions=rng.integers(3, size=length),
                rewards=rng.normal(size=length),
                terminations=np.arange(length) == (length - 1 if length < 5 else -1),
                truncations=np.arange(length) == (length - 1 if length == 5 else -1),
                infos={},
            )
        )
    minari.create_dataset_from_buffers(
        dataset_id="small/random-v0",
        buffer=episodes,
        observation_space=gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32),
        action_space=gymnasium.spaces.Discrete(3),
        eval_env=None,
    )
    data = read_minari("small/random-v0")
    assert data.episodes == ((0, 3), (3, 8), (8, 12))
    assert data.source == "small/random-v0"
    assert (np.flatnonzero(data.terminal).tolist(), np.flatnonzero(data.truncated).tolist()) == ([2, 11], [7])
    for episode, logged in zip(data, episodes, strict=True):
        np.testing.assert_array_equal(episode.obs, logged.observations[:-1])
        np.testing.assert_array_equal(episode.next_obs, logged.observations[1:])
        np.testing.assert_array_equal(episode.action, logged.actions)
        np.testing.assert_allclose(episode.reward, logged.rewards, rtol=1e-6)
    with pytest.raises(DatasetError, match="cannot load 'small/expert-v9'"):
        read_minari("small/expert-v9")


def test_a_missing_minari_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ImportError, match=r'pip install "parl-core\[minari\]"'):
        read_minari("anything-v0")


def test_a_dataset_of_one_row_is_one_episode() -> None:
    data = OfflineDataset.from_arrays(arrays(1))
    assert data.episodes == ((0, 1),)
    assert data.episode_returns.shape == (1,)
    assert [len(episode) for episode in data] == [1]


def test_actions_beyond_int64_are_refused() -> None:
    with pytest.raises(DatasetError, match="action 9223372036854775813, which is beyond int64"):
        OfflineDataset.from_arrays(arrays(action=np.full(6, 2**63 + 5, np.uint64)))


def test_episodes_with_observations_of_different_sizes_are_refused() -> None:
    def episode(size: int) -> Any:
        columns = {name: np.zeros(3) for name in ("actions", "rewards", "terminations", "truncations")}
        return SimpleNamespace(id=size, observations=np.zeros((4, size)), **columns)

    with pytest.raises(DatasetError, match=r"episode 5: rows of obs have the shape \[5\], .* before it \[2\]"):
        read_minari(SimpleNamespace(iterate_episodes=lambda: [episode(2), episode(5)]))


def one_episode(actions: Any, **more: Any) -> Any:
    steps = len(actions)
    zeros = {name: np.zeros(steps) for name in ("rewards", "terminations", "truncations")}
    episode = SimpleNamespace(id=0, observations=np.zeros((steps + 1, 2)), actions=actions, **zeros)
    return SimpleNamespace(iterate_episodes=lambda: [episode], **more)


@pytest.mark.parametrize(
    ("space", "chosen"),
    [
        (spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 3.0], np.float32)), [[-1.0, 1.0], [0.5, 0.0]]),
        (spaces.Box(np.array([-np.inf, 0.0], np.float32), np.array([np.inf, 4.0], np.float32)), [[-7.0, 0.5]]),
        (spaces.Box(np.zeros(1, np.float32), np.zeros(1, np.float32)), [[0.0], [0.0]]),
        (spaces.Box(-2.0, 3.0, (2, 2), np.float32), [[-1.0, 0.0, 0.5, 1.0]]),
        (spaces.Box(-2.0, 3.0, (), np.float32), [[-1.0], [0.5]]),
        (spaces.Discrete(3, start=-1), [0, 2, 1]),
        (spaces.MultiDiscrete([3, 2], start=[1, -4]), [[0, 1], [2, 0]]),
        (spaces.MultiBinary(2), [[0, 1]]),
    ],
)
def test_actions_of_minari_are_those_that_the_loops_make_the_logged_ones_of(space: Any, chosen: Any) -> None:
    logged = into_space(space, unit_box=True)(np.array(chosen, np.float32 if hasattr(space, "low") else np.int64))
    data = read_minari(one_episode(logged, action_space=space))
    np.testing.assert_allclose(data.action, chosen, atol=1e-6)
    assert data.action.dtype == (np.float32 if hasattr(space, "low") else np.int64)


@pytest.mark.parametrize("space", [spaces.Box(-2.0, 3.0, (2,)), spaces.Discrete(3), spaces.Text(5)])
def test_actions_that_are_none_of_a_space_are_refused(space: Any) -> None:
    data = OfflineDataset.from_arrays(arrays(action=np.zeros((6, 5))))
    with pytest.raises(DatasetError, match=r"actions of shape \[5\], which are none of"):
        data.chosen_in(space)


@pytest.mark.parametrize("parts", [{"a": np.zeros(3)}, (np.zeros(3), np.zeros(3))])
def test_actions_in_parts_are_refused(parts: Any) -> None:
    with pytest.raises(DatasetError, match="has actions with parts"):
        read_minari(one_episode(parts))


@pytest.mark.parametrize("column", ["actions", "terminations", "truncations"])
def test_episodes_whose_columns_would_slide_against_each_other_are_refused(column: str) -> None:
    def episode(steps: int, wrong: int) -> Any:
        columns = {name: np.zeros(steps) for name in ("actions", "rewards", "terminations", "truncations")}
        return SimpleNamespace(
            id=7, observations=np.zeros((steps + 1, 2)), **{**columns, column: np.zeros(steps + wrong)}
        )

    lengths = SimpleNamespace(iterate_episodes=lambda: [episode(3, -1), episode(4, 1)])
    with pytest.raises(DatasetError, match=r"episode 7: \w+ has the shape \[2\] for 3 rewards"):
        read_minari(lengths)
