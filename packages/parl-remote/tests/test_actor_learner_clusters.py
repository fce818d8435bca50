"""The actors-and-learner loop on a real cluster that disappears, loses a node, or comes back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest

import parl_remote
from parl_core.actors import InProcessActors
from parl_core.checkpoint import CheckpointStore
from parl_core.training import ActorLearnerSettings, Callback, Checkpoints, Ended, Run, Update, train_actor_learner
from parl_remote.actors import RemoteActors
from parl_remote.errors import ClusterUnreachable
from parl_remote.testing import LoopbackCluster

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

WAIT_S = 2.0  # for a slot on a cluster


class Noisy(gymnasium.Env[Any, Any]):
    """Observes and rewards what its generator says."""

    observation_space: Any = gymnasium.spaces.Box(-10.0, 10.0, (3,), np.float32)
    action_space: Any = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs = self.np_random.normal(size=3).astype(np.float32)
        return obs, float(obs[action]), bool(self.np_random.random() < 0.1), False, {}


class VTraceLoss(NamedTuple):
    total_loss: float


class Linear:
    """Its logits are the observations times a weight, which every update changes."""

    sample_batch_steps = 4

    def __init__(self) -> None:
        self.scale = np.ones(1)

    def logits(self, obs: Any) -> Any:
        return obs * self.scale

    def value(self, obs: Any) -> Any:
        return obs[:, 0]

    def learn(self, obs: Any, _action: Any, _logits: Any, reward: Any, _done: Any, **_: Any) -> Any:
        self.scale = self.scale + np.float64(np.mean(reward) + np.mean(obs))
        return VTraceLoss(float(np.mean(reward))), 0.0

    def get_weights(self) -> dict[str, Any]:
        return {"scale": self.scale.copy()}

    def set_weights(self, weights: dict[str, Any]) -> None:
        self.scale = np.array(weights["scale"])

    def save(self, path: Path) -> None:
        path.write_bytes(self.scale.tobytes())

    def restore(self, path: Path) -> None:
        self.scale = np.frombuffer(path.read_bytes()).copy()


class Strike(Callback):
    """Does something to the cluster once half of the steps are over, and remembers the metrics."""

    def __init__(self, what: Any) -> None:
        self._what: Any = what
        self.metrics: dict[str, float] = {}

    def on_update(self, update: Update) -> None:
        self.metrics = dict(update.metrics)
        if update.step >= 240 and self._what is not None:
            what, self._what = self._what, None
            what()


@pytest.fixture
def cluster(unconnected: None) -> Iterator[LoopbackCluster]:
    with LoopbackCluster(2, cpus=1) as one:
        one.connect(lease_timeout_s=WAIT_S)
        with RemoteActors() as system:
            system.create(Linear).close()  # after which all of this module travels by value: actors cannot import it
        yield one
        parl_remote.disconnect()


def learn(run: Run, actors: Any, *callbacks: Callback, **changes: Any) -> tuple[Linear, Ended]:
    agent = Linear()
    given = {"total_steps": 480, "n_actors": 2, "envs_per_group": 3, "n_steps": 4, "report_every": 1, "max_lag": 1}
    settings = ActorLearnerSettings(**{**given, "deterministic": True, **changes})
    checkpoints = Checkpoints(run, 96)
    ended = train_actor_learner(
        agent, Linear, Noisy, settings, actors=actors, callbacks=callbacks, checkpoints=checkpoints, seed=3
    )
    return agent, ended


def test_a_cluster_that_disappears_costs_the_last_interval_and_the_run_goes_on_elsewhere(
    cluster: LoopbackCluster, tmp_path: Path
) -> None:
    def pull_the_plug() -> None:
        for member in (cluster.master, *cluster.nodes.values()):
            member.kill()

    unreachable = pytest.raises(ClusterUnreachable, match="is gone")
    with unreachable as gone, Run.at(tmp_path / "run") as run, RemoteActors() as actors:
        learn(run, actors, Strike(pull_the_plug))
    told = " ".join(gone.value.__notes__)
    assert "in spawning another worker in the place of worker" in told
    assert "its node was lost" in told
    assert "checkpoint of step 192 (000000000192); continue with: Run.resume" in told
    assert CheckpointStore(tmp_path / "run" / "checkpoints").steps() == [96, 192]
    parl_remote.disconnect()
    with Run.resume(tmp_path / "run") as run, RemoteActors(cpu_num=1) as actors:
        resumed, ended = learn(run, actors, n_actors=1, groups=2)
    assert ended.step == 480
    with Run.at(tmp_path / "whole") as run:
        whole, _ = learn(run, InProcessActors())
    np.testing.assert_array_equal(resumed.scale, whole.scale)


def test_a_cluster_that_comes_back_is_used_again(cluster: LoopbackCluster, tmp_path: Path) -> None:
    def restart() -> None:
        for member in (cluster.master, *cluster.nodes.values()):
            member.kill()
        cluster.restart_master()
        for node in cluster.nodes.values():
            cluster.start_node(node)

    strike = Strike(restart)
    with Run.at(tmp_path / "run") as run, RemoteActors() as actors:
        _, ended = learn(run, actors, strike)
    assert ended.step == 480
    assert strike.metrics["actors/lost"] == 2


def test_a_killed_master_does_not_hold_up_programs(cluster: LoopbackCluster, tmp_path: Path) -> None:
    strike = Strike(lambda: cluster.master.kill())
    with Run.at(tmp_path / "run") as run, RemoteActors() as actors:
        _, ended = learn(run, actors, strike, deterministic=False)
    assert ended.step == 480
    assert strike.metrics["actors/lost"] == 0


def test_without_a_slot_for_another_actor_the_run_ends_and_says_so(cluster: LoopbackCluster, tmp_path: Path) -> None:
    strike = Strike(lambda: cluster.nodes["node1"].kill())
    no_slot = pytest.raises(parl_remote.NoResources)
    with no_slot as refused, Run.at(tmp_path / "run") as run, RemoteActors() as actors:
        learn(run, actors, strike)
    told = " ".join(refused.value.__notes__)
    assert "in spawning another worker in the place of worker" in told
    assert "checkpoint of step 192" in told
