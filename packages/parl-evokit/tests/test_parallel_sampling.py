"""The same rounds over threads, processes and actors; workers that fail, die, and are slow."""

import itertools
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_core.errors import LostActor
from parl_core.worker_pool import Work
from parl_evokit import AsyncESAgent, ESAgent, mlp
from parl_evokit.errors import EvaluationFailed, EvolutionError, LayoutMismatch, WorkersLost
from parl_evokit.parallel import ObservationStatistics, Pool, ProcessPool, ThreadPool, open_pool, sample
from parl_evokit.parallel._observations import NormalizedAgent
from parl_evokit.parallel._worker import Failure, Reply, Worker, seed_of

HERE = Path(__file__).parent
CONFIG = {"keys": "COUNTER", "solver": {"optimizer": {"type": "ADAM", "base_lr": 0.1}}}


@pytest.fixture(scope="module", autouse=True)
def importable_evaluations() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        yield


def new_agent(**solver: Any) -> ESAgent:
    return ESAgent({**CONFIG, "solver": {**CONFIG["solver"], **solver}}, mlp([4, 5, 2]))  # type: ignore[dict-item]


def remote_pool() -> Pool:
    parl_remote = pytest.importorskip("parl_remote", reason="remote actors need parl-remote")
    parl_remote.disconnect()  # what other tests have left open
    return Pool("remote", 2, cpu_num=2)


POOLS: dict[str, Callable[[], Pool]] = {
    "threads": lambda: ThreadPool(3),
    "one thread": lambda: ThreadPool(1),
    "four threads": lambda: ThreadPool(4),
    "processes": lambda: ProcessPool(2),
    "forked processes": lambda: ProcessPool(2, start_method="fork"),
    "actors of parl-core": lambda: Pool("subprocess", 2),
    "four of them": lambda: Pool("subprocess", 4, processes=4),
    "actors in this process": lambda: Pool("in-process", 2),
    "remote actors": remote_pool,
}


@pytest.fixture(scope="module", params=POOLS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """Each kind of pool, one after the other; all tests that do it no harm share one."""
    with POOLS[request.param]() as opened:
        yield opened


def straight_digest(rounds: int, n: int) -> str:
    """The same rounds with nothing but the documented calls."""
    from parallel_evaluations import output

    agent = new_agent()
    clone = agent.clone()
    for _ in range(rounds):
        infos, rewards = [], []
        for _ in range(n):
            infos.append(clone.add_noise())
            rewards.append(output(clone, seed_of(infos[-1].noise_key)))
        digest = agent.update(infos, rewards).parameters_sha256
    return digest


def test_every_pool_gives_the_bits_of_one_clone_in_a_loop(pool: Pool) -> None:
    from parallel_evaluations import output

    agent = new_agent()
    for _ in range(3):
        sampled = sample(agent, output, 21, pool, share=1.0)
        assert (len(sampled), sampled.late, sampled.missing) == (21, 0, 0)
        report = agent.update(*sampled)
    assert report.parameters_sha256 == straight_digest(3, 21)


@pytest.mark.parametrize("alike", [True, False])
def test_both_halves_of_a_pair_start_alike_or_each_on_its_own(alike: bool, tmp_path: Path) -> None:
    config = {"keys": "COUNTER", "async_es": {"model_warehouse": str(tmp_path)}}
    for agent in (ESAgent(config, mlp([4, 2])), AsyncESAgent(mlp([4, 2]), config)):
        sampled = sample(agent, lambda _, seed: float(seed % 2**20), 12, "threads", share=1.0, alike=alike)
        even, odd = sampled.rewards[::2], sampled.rewards[1::2]
        assert (even == odd).tolist() == [alike] * 6
        assert len(set(even.tolist())) == 6


def test_observations_are_normalised_and_counted_as_one_loop_does_it(pool: Pool) -> None:
    from parallel_evaluations import output

    agent, seen = new_agent(), ObservationStatistics(4)
    for _ in range(3):
        report = agent.update(*sample(agent, output, 12, pool, share=1.0, observations=seen))

    straight, inputs = new_agent(), np.zeros((0, 4))
    clone = straight.clone()
    for _ in range(3):
        mean, std = (inputs.mean(axis=0), inputs.std(axis=0)) if len(inputs) else (0.0, 1.0)
        infos, rewards = clone.draw(12), []
        for info in infos:
            clone.apply_noise(info)
            x = np.random.default_rng(seed_of(info.noise_key)).normal(size=4).astype(np.float32)
            rewards.append(clone.predict(((x - mean) / std).astype(np.float32))[0])
            inputs = np.vstack([inputs, x])
        straight.update(infos, rewards)
    assert seen.count == 36
    assert seen.mean == pytest.approx(inputs.mean(axis=0))
    assert seen.std == pytest.approx(inputs.std(axis=0))
    assert report.parameters == pytest.approx(np.concatenate([p.ravel() for p in straight.parameters().values()]))


def test_a_function_that_raises_ends_the_round_and_the_pool_goes_on(pool: Pool) -> None:
    from parallel_evaluations import Raises, output

    agent = new_agent()
    seed = seed_of(new_agent().clone().draw(10)[7].noise_key)
    with pytest.raises(
        EvaluationFailed, match=rf"cannot evaluate {seed}(.|\n)*\|   File .*parallel_evaluations"
    ) as caught:
        sample(agent, Raises(seed), 10, pool)
    assert caught.value.info is not None
    assert seed_of(caught.value.info.noise_key) == seed
    assert caught.value.sampled is not None
    assert len(caught.value.sampled) + caught.value.sampled.missing == 10
    assert len(sample(agent, output, 10, pool, share=1.0)) == 10


def test_a_second_failure_that_comes_in_the_next_round_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from parallel_evaluations import output

    next_round, calls = threading.Event(), itertools.count()

    def fails(_: Any) -> float:
        if next(calls):  # it was handed to the worker together with the first one
            assert next_round.wait(60.0)
        raise EvolutionError("no reward")

    with ThreadPool(1) as pool:
        with pytest.raises(EvaluationFailed, match="no reward"):
            sample(new_agent(), fails, 10, pool)
        submit = pool._workers.submit

        def submit_before_it_fails(work: Work) -> None:
            submit(work)
            next_round.set()

        monkeypatch.setattr(pool._workers, "submit", submit_before_it_fails)
        assert len(sample(new_agent(), output, 10, pool, share=1.0)) == 10


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("failing", [False, True])
def test_a_worker_of_another_version_is_refused(n: int, failing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Former(Worker):
        """Its rewards are of 4 bytes each, and where it fails it has one for each sample, too."""

        def evaluate(self, keys: Any) -> Reply:
            return Reply(bytes(4 * len(keys) * (1 + failing)), None, Failure("", "") if failing else None, 0.0)

    monkeypatch.setattr("parl_evokit.parallel._pool.Worker", Former)
    with (
        Pool("in-process", 1) as pool,
        pytest.raises(EvolutionError, match="all machines need the same version") as caught,
    ):
        sample(new_agent(), lambda _: 1.0, n, pool)
    assert not isinstance(caught.value, EvaluationFailed)


def test_a_class_is_made_in_each_worker_and_its_failure_is_reported(pool: Pool) -> None:
    from parallel_evaluations import Counting, Unmakeable

    agent = new_agent()
    counting: Any = Counting
    unmakeable: Any = Unmakeable
    assert len(sample(agent, counting, 8, pool, share=1.0)) == 8
    with pytest.raises(EvaluationFailed, match="no environment here"):
        sample(agent, unmakeable, 8, pool)
    assert len(sample(agent, counting, 8, pool, share=1.0)) == 8


@pytest.mark.slow
@pytest.mark.parametrize("where", ["processes", "forked processes", "remote actors", "actors of parl-core"])
def test_a_worker_killed_with_signal_9_costs_nothing_but_time(where: str, tmp_path: Path) -> None:
    from parallel_evaluations import Dies

    seed = seed_of(new_agent().clone().draw(21)[4].noise_key)
    (tmp_path / "once").touch()
    (tmp_path / "twice").touch()
    agent, evaluate = new_agent(), Dies(seed, str(tmp_path))
    with POOLS[where]() as pool:
        for _ in range(3):
            report = agent.update(*sample(agent, evaluate, 21, pool, share=1.0))
    assert not list(tmp_path.iterdir())
    assert report.parameters_sha256 == straight_digest(3, 21)


@pytest.mark.slow
def test_a_sample_that_kills_every_worker_ends_the_round(tmp_path: Path) -> None:
    from parallel_evaluations import Dies, output

    for name in range(20):
        (tmp_path / str(name)).touch()
    agent = new_agent()
    seed = seed_of(new_agent().clone().draw(12)[0].noise_key)
    with ProcessPool(2) as pool:
        with pytest.raises(
            WorkersLost, match=r"3 workers ended while they evaluated the same sample.*SIGKILL"
        ) as caught:
            sample(agent, Dies(seed, str(tmp_path)), 12, pool)
        assert caught.value.sampled is not None
        assert len(sample(agent, output, 12, pool, share=1.0)) >= 12


@pytest.mark.parametrize(
    ("host", "times", "ends"),
    [
        (False, 5, "3 workers ended while they evaluated the same sample"),
        (True, 5, ""),
        (True, 100, "20 workers in a row ended before"),
    ],
)
def test_a_sample_is_blamed_for_dead_processes_and_not_for_lost_hosts(host: bool, times: int, ends: str) -> None:
    from parallel_evaluations import output

    class Lost(LostActor):
        from_outside = host

    class Future:
        def __init__(self, answer: object) -> None:
            self.answer = answer

        def done(self) -> bool:
            return True

        def result(self) -> object:
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    class Handle:
        def __init__(self, dies: bool) -> None:
            self.actor, self.dies = Worker(), dies

        def submit(self, method: str, *args: Any) -> Future:
            answer = getattr(self.actor, method)(*args)
            return Future(Lost() if self.dies and method == "evaluate" and bad in args[0] else answer)

        def close(self) -> None:
            pass

        def kill(self) -> None:
            pass

    class System:
        slots = 1
        made = 0

        def create(self, _: type) -> Handle:
            self.made += 1
            return Handle(self.made <= times)

        def put(self, value: object) -> object:
            return value

    agent = new_agent()
    bad = new_agent().clone().draw(12)[3].noise_key
    with Pool(System(), 1) as pool:  # type: ignore[arg-type]
        if ends:
            with pytest.raises(WorkersLost, match=ends):
                sample(agent, output, 12, pool)
        else:
            assert len(sample(agent, output, 12, pool, share=1.0)) == 12


def test_a_straggler_comes_late_and_counts_as_stale() -> None:
    from parallel_evaluations import output

    agent, held, waits = new_agent(), threading.Event(), threading.Event()
    seed = seed_of(new_agent().clone().draw(20)[3].noise_key)

    def evaluate(clone: Any, given: int) -> float:
        if given == seed and not waits.is_set():
            waits.set()
            assert held.wait(60)
        return output(clone, given)

    with ThreadPool(2) as pool:
        first = sample(agent, evaluate, 20, pool, grace_s=0.05)
        assert (len(first), first.missing) == (19, 1)
        agent.update(*first)
        held.set()
        while not (sampled := sample(agent, evaluate, 4, pool, share=1.0)).late:
            pass
        assert sampled.late == 1
        assert sampled.infos[-1].model_iter_id == 0
        assert agent.update(*sampled).stale == {agent.model_iter_id - 1: 1}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_processes_that_hang_forever_are_replaced_when_no_other_is_left(tmp_path: Path) -> None:
    from parallel_evaluations import WaitsForPipe, output

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    agent = new_agent()
    seed = seed_of(new_agent().clone().draw(20)[0].noise_key)
    with ProcessPool(2) as pool:  # both halves of a pair have the seed: both processes are held up
        first = sample(agent, WaitsForPipe(seed, str(pipe)), 20, pool, grace_s=0.05)
        assert (len(first), first.missing) == (18, 2)
        agent.update(*first)
        pipe.unlink()
        assert len(sample(agent, output, 20, pool, share=1.0, grace_s=0.05)) == 20


def test_parameters_are_sent_once_a_model_and_a_sample_comes_back_in_few_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from parallel_evaluations import output

    sent: list[str] = []
    replies: list[Any] = []

    class Noting(Worker):
        """A worker that notes its calls and replies."""

        def equip(self, *args: Any) -> Any:
            sent.append("equip")
            return super().equip(*args)

        def take(self, *args: Any) -> Any:
            sent.append("take")
            return super().take(*args)

        def evaluate(self, *args: Any) -> Any:
            sent.append("evaluate")
            replies.append(super().evaluate(*args)._replace(seconds=1e-6))  # as on a machine that is not busy
            return replies[-1]

    monkeypatch.setattr("parl_evokit.parallel._pool.Worker", Noting)
    agent = new_agent()
    with Pool("in-process", 2) as pool:
        for _ in range(2):
            agent.update(*sample(agent, output, 64, pool))
        sample(agent, output, 64, pool)
        sample(agent, output, 64, pool)  # the same model
    assert sent.count("equip") == 2
    assert sent.count("take") == 2 * 3
    assert sent.count("evaluate") < 4 * 16
    largest = max(replies, key=lambda reply: len(reply.rewards))
    assert len(largest.rewards) == 8 * len(largest.done())
    assert len(pickle.dumps(Reply(bytes(8 * 256), None, None, 0.1), 5)) / 256 <= 64


def test_a_value_that_cannot_be_sent_to_a_process_is_named_and_a_thread_takes_it() -> None:
    agent = new_agent()
    with ProcessPool(1) as pool, pytest.raises(EvolutionError, match="top level of a module"):
        sample(agent, lambda clone: 1.0, 2, pool)
    assert sample(agent, lambda clone: 1.0, 2, "threads").rewards.tolist() == [1.0, 1.0]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes by descriptor")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_end_with_a_program_that_is_killed(method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys, time, signal\n"
        "from parl_evokit import ESAgent, mlp\n"
        "from parl_evokit.parallel import ProcessPool, sample\n"
        "def evaluate(agent):\n"
        "    os.write(1, b'%d\\n' % os.getpid())\n"
        "    return 1.0\n"
        "if __name__ == '__main__':\n"
        f"    pool = ProcessPool(2, start_method={method!r})\n"
        "    sample(ESAgent({}, mlp([2, 2])), evaluate, 8, pool)\n"
        "    print('ready', flush=True)\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = {int(line) for line in iter(process.stdout.readline, "ready\n")}
        watches = [os.pidfd_open(pid) for pid in pids]
        process.kill()
    for watch in watches:
        assert select.select([watch], [], [], 30.0)[0], "a worker outlives its pool"
        os.close(watch)


def test_pools_by_name_and_what_they_refuse() -> None:
    agent = new_agent()
    with open_pool("threads", 2) as pool:
        assert pool.workers == 2
        assert sample(agent, lambda clone: 0.0, 3, pool).infos[0].model_iter_id == 0
    with pytest.raises(EvolutionError, match="closed"):
        sample(agent, lambda clone: 0.0, 3, pool)
    with pytest.raises(ValueError, match="threads, processes or remote, not 'ray'"):
        open_pool("ray")
    with pytest.raises(ValueError, match="1 worker or more, not 0"):
        ThreadPool(0)
    with pytest.raises(ValueError, match="n must be 1 or more"):
        sample(agent, lambda clone: 0.0, 0)
    with pytest.raises(ValueError, match="share must be above 0"):
        sample(agent, lambda clone: 0.0, 1, share=0.0)
    with pytest.raises(EvolutionError, match="cannot be cloned"):
        sample(agent.clone(), lambda clone: 0.0, 1)
    with pytest.raises(EvaluationFailed, match="float"):
        sample(agent, lambda clone: None, 1)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("enough")])
def test_an_evaluation_that_exits_is_reported_as_one_that_raised(error: BaseException) -> None:
    agent = new_agent()

    def leave(clone: Any) -> float:
        raise error

    class Leaving:
        def __init__(self) -> None:
            raise error

    with ThreadPool(2) as pool:
        for evaluate in (leave, Leaving):
            with pytest.raises(EvaluationFailed, match=f"{type(error).__name__}: {error}"):
                sample(agent, evaluate, 4, pool)  # type: ignore[arg-type]
        assert len(sample(agent, lambda clone: 1.0, 4, pool, share=1.0)) == 4


def test_a_cma_waits_for_all_of_its_samples_because_it_can_use_no_stale_ones() -> None:
    agent = new_agent(type="CMA_ES")
    sampled = sample(agent, lambda clone, seed: float(seed), 30, ThreadPool(2))
    assert sampled.missing == 0
    assert agent.update(*sampled).used == 30


def test_a_share_of_the_samples_is_control_traffic_as_a_clone_draws_it() -> None:
    agent = new_agent(guard={"control_share": 0.5})
    drawn = agent.clone().draw(40)
    again = new_agent(guard={"control_share": 0.5}).clone()
    assert drawn == [again.add_noise() for _ in range(40)]
    assert 5 < sum(info.noise_key == 0 for info in drawn) < 35


def test_samples_of_both_arms_are_served_and_seeded_as_a_clone_draws_them(pool: Pool) -> None:
    from parallel_evaluations import output

    agent = new_agent(guard={"control_share": 0.2, "holdout_share": 0.3, "rollback": True})
    agent.update(*sample(agent, output, 40, pool, share=1.0))
    sampled = sample(agent, output, 200, pool, share=1.0)
    clone = agent.clone()
    wanted = []
    for info in sampled.infos:
        clone.apply_noise(info)
        wanted.append(output(clone, seed_of(info.identity or info.noise_key)))
    assert sampled.rewards.tolist() == wanted
    controls = [info.identity for info in sampled.infos if not info.noise_key]
    assert len({*controls}) == len(controls) > 60
    report = agent.update(*sampled)
    assert report.control + report.holdout == len(controls)
    assert min(report.control, report.holdout) > 20


def test_statistics_of_observations_are_those_of_numpy_and_come_back_from_a_file() -> None:
    rows = np.random.default_rng(1).normal([5.0, -2.0, 0.0], [2.0, 0.1, 0.0], size=(500, 3))
    seen = ObservationStatistics(3, clip=2.0)
    assert seen.std.tolist() == [1.0, 1.0, 1.0]
    with ThreadPool(2) as pool:
        sample(
            new_agent_of(3),
            lambda agent, seed: float(agent.predict(rows[seed % 500])[0]),
            400,
            pool,
            share=1.0,
            observations=seen,
        )
    used = np.array([rows[seed_of(info.noise_key) % 500] for info in new_agent_of(3).clone().draw(400)])
    assert seen.mean == pytest.approx(used.mean(axis=0))
    assert seen.std[:2] == pytest.approx(used.std(axis=0)[:2])
    assert seen.std[2] == 0.01
    other = ObservationStatistics((3,), clip=2.0)
    other.load_state(seen.state())
    assert (other.mean == seen.mean).all()
    assert other.normalizer()(rows[:7]).shape == (7, 3)
    assert np.abs(other.normalizer()(rows)).max() <= 2.0
    with pytest.raises(LayoutMismatch, match=r"observations \[2\] cannot take over"):
        ObservationStatistics(2).load_state(seen.state())
    with pytest.raises(LayoutMismatch, match=r"of observations \[3\], this one is \[4\]"):
        seen.normalized(new_agent()).predict(np.zeros(4))


def new_agent_of(inputs: int) -> ESAgent:
    return ESAgent(CONFIG, mlp([inputs, 2]))


def test_ctrl_c_in_a_round_leaves_a_pool_that_closes() -> None:
    agent = new_agent()
    main = threading.main_thread().ident
    assert main is not None

    once = iter([True])  # a second one could come when the round is over

    def interrupt(clone: Any) -> float:
        if next(once, False):
            signal.pthread_kill(main, signal.SIGINT)
        return 0.0

    with ThreadPool(1) as pool, pytest.raises(KeyboardInterrupt):
        sample(agent, interrupt, 50, pool)


def test_observations_that_are_not_finite_are_skipped_with_their_sample_and_counted() -> None:
    seen = ObservationStatistics(2)
    agent = new_agent_of(2)
    for rows in ([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [np.nan, 0.0]], [[1e200, 0.0]], [[5.0, 0.0]]):
        counting = NormalizedAgent(agent, seen.normalizer(), counts=True)
        with np.errstate(over="ignore"):
            counting.predict(rows)
        seen.add(counting.take_sums())
    assert (seen.count, seen.skipped) == (3, 2)
    assert seen.mean.tolist() == [3.0, 2.0]
    again = ObservationStatistics(2)
    again.load_state(seen.state())
    assert again.skipped == 2
