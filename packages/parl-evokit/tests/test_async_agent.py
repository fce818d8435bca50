"""`AsyncESAgent`: samples of any model in the warehouse, the next model saved in one step, orphans set aside."""

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_core.atomic_write import atomic_write
from parl_evokit import (
    AsyncESAgent,
    LogWriter,
    NothingToUpdate,
    SamplingInfo,
    SolverError,
    StorageError,
    UpdateLocked,
    mlp,
    read_log,
    update_lock,
)
from parl_evokit.agent import ESAgent
from parl_evokit.async_agent import Warehouse
from parl_evokit.noise._keys import Arm

Make = Callable[..., AsyncESAgent]


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {
        "keys": "COUNTER",
        "solver": {"optimizer": {"type": "ADAM"}, "sampling": {"gaussian_sampling": {"std": 0.1}}},
        "async_es": {"model_warehouse": str(tmp_path / "warehouse"), "max_to_keep": 3},
    }


@pytest.fixture
def make(settings: dict[str, Any]) -> Make:
    def build(**async_es: Any) -> AsyncESAgent:
        kept = {name: async_es.pop(name) for name in ("logs", "wait_s") if name in async_es}
        return AsyncESAgent(mlp([3, 2]), settings | {"async_es": settings["async_es"] | async_es}, **kept)

    return build


def sampled(agent: AsyncESAgent, n: int = 4) -> list[SamplingInfo]:
    clone = agent.clone()
    return [clone.add_noise() for _ in range(n)]


def there(agent: AsyncESAgent) -> list[str]:
    return sorted(os.listdir(agent.warehouse.path))


def test_updates_save_numbered_models_and_only_the_newest_stay(make: Make) -> None:
    agent = make()
    assert there(agent) == ["model_iter_id-0"]
    for _ in range(5):
        agent.update(sampled(agent), [1.0, 2.0, 3.0, 4.0])
    assert there(agent) == ["model_iter_id-3", "model_iter_id-4", "model_iter_id-5"]


def test_another_process_goes_on_with_the_newest_model(make: Make) -> None:
    agent = make()
    agent.update(sampled(agent), [1.0, 2.0, 3.0, 4.0])
    other = make()
    assert other.model_iter_id == 1
    assert all((other.parameters()[name] == array).all() for name, array in agent.parameters().items())
    assert not other.refresh()
    infos = sampled(agent)
    agent.update(infos, [1.0, 2.0, 3.0, 4.0])
    clone = other.clone()
    assert other.refresh()
    assert clone.add_noise().model_iter_id == 2


def test_samples_of_every_model_that_is_there_count_as_one_agent_counts_them(
    make: Make, settings: dict[str, Any]
) -> None:
    agent, plain = make(), ESAgent(settings, mlp([3, 2]))
    old, clone = sampled(agent), plain.clone()
    assert [clone.add_noise() for _ in range(4)] == old
    fresh = sampled(agent)
    for updater in (agent, plain):
        updater.update(fresh, [1.0, 2.0, 3.0, 4.0])
    report, expected = (updater.update(old, [4.0, 1.0, 3.0, 2.0]) for updater in (agent, plain))
    assert report.stale == {1: 4}
    assert report.parameters_sha256 == expected.parameters_sha256


def test_samples_whose_model_is_gone_are_kept_and_reported_and_the_others_count(make: Make) -> None:
    agent = make(max_to_keep=1)
    old = sampled(agent)
    agent.update(sampled(agent), [1.0, 2.0, 3.0, 4.0])
    fresh = sampled(agent)
    report = agent.update([*old, *fresh], np.arange(8.0))
    assert (report.used, report.set_aside.orphan) == (4, 4)
    (orphans,) = agent.warehouse.path.glob("orphans-*.evl")
    contents = read_log(orphans)
    assert contents.infos == old
    assert contents.rewards == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(NothingToUpdate, match="4 samples are of models that were removed"):
        agent.update(old, [1.0] * 4)
    assert len(list(agent.warehouse.path.glob("orphans-*.evl"))) == 1


@pytest.mark.parametrize("model", [2**31, 2**40, -1])
def test_a_sample_with_a_number_that_no_model_has_does_not_refuse_the_others(make: Make, model: int) -> None:
    agent = make()
    report = agent.update([*sampled(agent), SamplingInfo([1, 2], model)], range(5))
    assert (report.used, report.set_aside.total) == (4, 1)


def test_what_a_killed_writer_of_orphans_left_goes_with_the_next_update(make: Make) -> None:
    agent = make()
    directory = agent.warehouse.path
    before = set(directory.iterdir())
    with atomic_write(directory / "orphans-0123456789ab.evl"):
        (left,) = set(directory.iterdir()) - before  # what a kill in this block would leave
    left.touch()
    (directory / "orphans-0123456789ab.evl").unlink()
    agent.update(sampled(agent), [1.0, 2.0, 3.0, 4.0])
    assert there(agent) == ["model_iter_id-0", "model_iter_id-1"]


def test_a_model_stays_while_unread_samples_refer_to_it(make: Make, tmp_path: Path) -> None:
    agent = make(max_to_keep=1, logs=tmp_path / "late")
    late, waiting = sampled(agent), sampled(agent, 1)
    with LogWriter(tmp_path / "late") as log:
        for info in late:
            log.reward(info, 1.0)
    with LogWriter(tmp_path / "log") as log:
        log.sampled(waiting[0])
        for info in sampled(agent):
            log.reward(info, 1.0)
    agent.update_from_log(tmp_path / "log")
    agent.update(sampled(agent), [1.0, 2.0, 3.0, 4.0])
    assert there(agent) == ["model_iter_id-0", "model_iter_id-2"]
    assert agent.update_from_log(tmp_path / "late")[0].used == 4
    assert there(agent) == ["model_iter_id-0", "model_iter_id-3"]  # one sample still waits for its reward
    with LogWriter(tmp_path / "log") as log:
        log.reward(waiting[0], 1.0)
        for info in sampled(agent):
            log.reward(info, 2.0)
    assert agent.update_from_log(tmp_path / "log")[0].stale == {3: 1}
    assert there(agent) == ["model_iter_id-4"]


def test_what_updates_used_is_remembered_in_the_warehouse(make: Make, tmp_path: Path) -> None:
    agent = make()
    with LogWriter(tmp_path / "log") as log:
        for info in sampled(agent):
            log.reward(info, 1.0)
    agent.update_from_log(tmp_path / "log")
    with pytest.raises(NothingToUpdate):
        make().update_from_log(tmp_path / "log")


def test_the_manuals_directories_are_read_with_or_without_a_solver(
    make: Make, settings: dict[str, Any], tmp_path: Path
) -> None:
    first = tmp_path / "warehouse" / "model_dir_7"
    first.mkdir(parents=True)
    mlp([3, 2], seed=5).save(first)
    agent = make()
    assert agent.model_iter_id == 7
    assert (agent.parameters()["w0"] == mlp([3, 2], seed=5).layout.views(mlp([3, 2], seed=5).parameters())["w0"]).all()
    agent.update(sampled(agent), [1.0, 2.0, 3.0, 4.0])
    assert there(agent) == ["model_dir_7", "model_iter_id-8"]
    assert make().model_iter_id == 8


def test_numbering_begins_where_the_configuration_says_and_its_file_is_not_written(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "config.prototxt"
    text = f'async_es {{ model_warehouse: "{tmp_path / "warehouse"}" model_iter_id: 41 }}  // mine\n'
    path.write_text(text)
    agent = AsyncESAgent(mlp([3, 2]), path)
    agent.update(sampled(agent), [1.0, 2.0, 3.0, 4.0])
    assert there(agent) == ["model_iter_id-41", "model_iter_id-42"]
    assert path.read_text() == text


def test_an_update_that_cannot_be_saved_leaves_the_agent_as_it_was(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make()
    infos, before = sampled(agent), agent.parameters()

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("parl_evokit._directories.sync", full)
        with pytest.raises(StorageError, match="No space left on device; it is unchanged"):
            agent.update(infos, [1.0, 2.0, 3.0, 4.0])
    assert agent.model_iter_id == 0
    assert there(agent) == ["model_iter_id-0"]
    assert all((agent.parameters()[name] == array).all() for name, array in before.items())
    assert agent.update(infos, [1.0, 2.0, 3.0, 4.0]).model_iter_id == 1


def test_one_process_updates_a_warehouse_at_a_time(make: Make) -> None:
    agent = make(wait_s=0.0)
    with update_lock(agent.warehouse.path), pytest.raises(UpdateLocked, match="warehouse is being updated by pid"):
        agent.update(sampled(agent), [1.0, 2.0, 3.0, 4.0])
    assert agent.model_iter_id == 0


def test_a_directory_with_another_number_or_twice_the_same_is_refused(make: Make, tmp_path: Path) -> None:
    agent = make()
    (tmp_path / "warehouse" / "model_iter_id-0").rename(tmp_path / "warehouse" / "model_dir_3")
    with pytest.raises(SolverError, match=r"model_dir_3 holds model 0, not 3 as its name says"):
        make()
    (tmp_path / "warehouse" / "model_iter_id-3").mkdir()
    with pytest.raises(SolverError, match="both are model 3"):
        make()
    assert agent.model_iter_id == 0


def test_a_model_that_expires_while_it_is_looked_up_is_passed_over(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, service = make(max_to_keep=1), make()
    newest, slow = Warehouse.newest, 0

    def overtaken(warehouse: Warehouse) -> tuple[int, Path] | None:
        nonlocal slow
        found = newest(warehouse)
        if slow:
            slow = 0
            agent.update(sampled(agent), [1.0, 2.0, 3.0, 4.0])
        return found

    monkeypatch.setattr(Warehouse, "newest", overtaken)
    agent.update(sampled(agent), [1.0, 2.0, 3.0, 4.0])
    slow = 1
    assert service.refresh()
    assert (service.model_iter_id, there(agent)) == (2, ["model_iter_id-2"])
    slow = 1
    assert make().model_iter_id == 3


@pytest.mark.parametrize("call", ["agent", "refresh", "update"])
def test_a_warehouse_that_cannot_be_read_is_named(make: Make, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    agent = make()
    infos = sampled(agent)

    def refused(path: Path) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "iterdir", refused)
    calls: dict[str, Callable[[], object]] = {
        "agent": make,
        "refresh": agent.refresh,
        "update": lambda: agent.update(infos, [1.0, 2.0, 3.0, 4.0]),
    }
    with pytest.raises(StorageError, match="warehouse cannot be read"):
        calls[call]()


def test_a_link_in_the_warehouse_is_removed_and_not_what_it_leads_to(make: Make, tmp_path: Path) -> None:
    agent = make(max_to_keep=1)
    (tmp_path / "warehouse" / "model_iter_id-0").rename(tmp_path / "elsewhere")
    (tmp_path / "warehouse" / "model_iter_id-0").symlink_to(tmp_path / "elsewhere")
    agent.update(sampled(agent), [1.0, 2.0, 3.0, 4.0])
    assert there(agent) == ["model_iter_id-1"]
    assert (tmp_path / "elsewhere" / "solver.json").exists()


def test_the_first_model_may_be_a_directory_that_needs_no_code(settings: dict[str, Any], tmp_path: Path) -> None:
    ESAgent(settings, mlp([3, 2], seed=9)).save(tmp_path / "first")
    agent = AsyncESAgent(tmp_path / "first", settings)
    assert (agent.parameters()["w0"] == ESAgent(settings, mlp([3, 2], seed=9)).parameters()["w0"]).all()
    with pytest.raises(SolverError, match="needs model="):
        AsyncESAgent(tmp_path, settings)


def test_an_update_with_orphans_can_be_replayed(tmp_path: Path) -> None:
    config = {
        "async_es": {"model_warehouse": str(tmp_path / "w"), "max_to_keep": 2},
        "solver": {"update": {"max_age": 8}},
    }
    agent, late = AsyncESAgent(mlp([3, 2]), config), []
    for update in range(5):
        clone = agent.clone()
        infos = [clone.add_noise() for _ in range(20)]
        if update == 0:
            late, infos = infos[:6], infos[6:]
        with LogWriter(tmp_path / "log") as log:
            for number, info in enumerate(infos + (late if update == 4 else [])):
                log.reward(info, float(number))
        report, _ = agent.update_from_log(tmp_path / "log")
    assert report.set_aside.orphan == 6
    again = ESAgent()
    again.load_config(config)
    again.load_inference_model(tmp_path / "w" / "model_iter_id-4", model=mlp([3, 2]))
    again.load_solver(tmp_path / "w" / "model_iter_id-4")
    replayed, _ = again.replay_log(tmp_path / "log", tmp_path / "w" / "model_iter_id-5")
    assert (replayed.used, replayed.set_aside.orphan) == (report.used, 6)
    assert replayed.parameters_sha256 == report.parameters_sha256


def test_who_never_answered_to_a_removed_model_is_an_orphan_in_a_rollback(tmp_path: Path) -> None:
    config = {
        "keys": "COUNTER",
        "async_es": {"model_warehouse": str(tmp_path / "w"), "max_to_keep": 20},
        "solver": {
            "update": {"max_age": 2, "reward_timeout_s": 1e6},
            "guard": {"rollback": True, "control_share": 0.3, "holdout_share": 0.3, "min_control": 10},
        },
    }
    model = ({"w": np.zeros(8)}, lambda arrays, x: arrays)
    agent, random = AsyncESAgent(model, config), np.random.default_rng(1)
    clone, silent = agent.clone(), Counter[int]()
    for number in range(4):
        with LogWriter(tmp_path / "log") as log:
            for _ in range(300):
                info = clone.add_noise()
                log.sampled(info)
                if random.random() < 0.5:
                    log.reward(info, random.normal() - 9.0 * (number == 3 and info.identity >> 60 == Arm.PRESENT))
                else:
                    silent[number] += 1
        if number == 3:
            shutil.rmtree(tmp_path / "w" / "model_iter_id-2")
        report, _ = agent.update_from_log(tmp_path / "log")
        assert bool(report.rolled_back) == (number == 3)
    assert (report.set_aside.orphan, report.timed_out) == (silent[2], silent[1] + silent[2])
    (orphans,) = agent.warehouse.path.glob("orphans-*.evl")
    assert len(read_log(orphans).infos) == silent[2]
    again = ESAgent()
    again.load_config(config)
    again.load_inference_model(tmp_path / "w" / "model_iter_id-3", model=model)
    again.load_solver(tmp_path / "w" / "model_iter_id-3")
    replayed, _ = again.replay_log(tmp_path / "log", tmp_path / "w" / "model_iter_id-5")
    assert (replayed.set_aside.orphan, replayed.timed_out) == (silent[2], silent[1] + silent[2])
    assert replayed.parameters_sha256 == report.parameters_sha256


def test_samples_of_another_model_in_the_log_are_no_orphans(make: Make, tmp_path: Path) -> None:
    agent, other = make(), ESAgent({}, mlp([5, 2]))
    clone = other.clone()
    foreign = [clone.add_noise() for _ in range(6)]
    for info in foreign:
        info.model_iter_id = 50
    with LogWriter(tmp_path / "log") as log:
        for number, info in enumerate([*sampled(agent), *foreign]):
            log.reward(info, float(number))
    report, _ = agent.update_from_log(tmp_path / "log")
    assert (report.used, report.set_aside.foreign, report.set_aside.total) == (4, 6, 6)
    assert not list(agent.warehouse.path.glob("orphans-*"))
