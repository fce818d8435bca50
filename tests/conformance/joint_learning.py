"""Two processes that learn together end with the weights of one that learns from the joined batches.

The same program runs under the framework's launcher and without one:

    torchrun --nproc-per-node=2 joint_learning.py torch FOLDER
    python -m paddle.distributed.launch --nproc_per_node=2 joint_learning.py paddle FOLDER

Each process takes every second row and writes `<algorithm>-<rank>.npz`.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from conformance.adapter import assert_weights_close, random_weights
from conformance.continuous_models import DETERMINISTIC_SHAPES, deterministic
from conformance.models import (
    ACT_DIM,
    ACTOR_CRITIC_SHAPES,
    GAUSSIAN_SHAPES,
    OBS_DIM,
    Q_SHAPES,
    WINDOW_SHAPES,
    actor_critic,
    of_windows,
    probabilities,
    q_values,
    separate_actor_critic,
)
from conformance.programs import environment
from parl_core import backends
from parl_core.backends import Backend, Learners
from parl_core.contracts.batches import RolloutBatch
from parl_core.model import Weights

__all__ = ["CASES", "assert_joint_learning"]

ROWS, UPDATES = 16, 3

Batch = Mapping[str, Any]
Learner = tuple[Any, Callable[[Batch], object]]
"""An agent, and how it learns from a batch."""


def _dqn(backend: Backend, weights: Weights) -> Learner:
    model = q_values(backend)
    model.set_weights(weights, portable=True)
    agent = backend.Agent(backend.algorithms.DQN(model, lr=0.01, sync_every=2, max_grad_norm=0.5, device="cpu"))
    return agent, lambda batch: agent.learn(
        batch["obs"], batch["action"], batch["reward"], batch["next_obs"], batch["done"], weights=batch["weight"]
    )


def _frozen_at_first(backend: Backend, weights: Weights) -> Learner:
    """The first layer is frozen in the first update and trained in the later ones."""
    agent, learned = _dqn(backend, weights)
    layer = next(iter(agent.alg.model.parameters()))
    freezing = iter((True, False, False))

    def update(batch: Batch) -> None:
        frozen = next(freezing)
        if backend.name == "torch":
            layer.requires_grad = not frozen
        else:
            layer.stop_gradient = frozen
        learned(batch)

    return agent, update


def _policy_gradient(backend: Backend, weights: Weights) -> Learner:
    model = probabilities(backend)
    model.set_weights(weights, portable=True)
    agent = backend.Agent(backend.algorithms.PolicyGradient(model, lr=0.01, device="cpu"))
    return agent, lambda batch: agent.learn(batch["obs"], batch["action"], batch["reward"])


def _ppo(backend: Backend, weights: Weights) -> Learner:
    agent = _actor_critic(backend, weights, "PPO", initial_lr=0.01)
    return agent, lambda batch: agent.learn_rollout(
        RolloutBatch(*(batch[name] for name in ("obs", "action", "reward", "weight", "log_prob", "reward"))),
        epochs=2,
        minibatch_size=ROWS,  # the whole rollout, so that the order of rows does not matter
        rng=np.random.default_rng(1),
        target_kl=10.0,
    )


def _policy_gradient_rollout(backend: Backend, weights: Weights) -> Learner:
    agent, _ = _policy_gradient(backend, weights)
    return agent, lambda batch: agent.learn_rollout(
        RolloutBatch(*(batch[name] for name in ("obs", "action", "reward", "weight", "log_prob", "reward"))),
        rng=np.random.default_rng(1),
    )


def _separate_ppo(backend: Backend, weights: Weights) -> Learner:
    """Two optimizers of one model."""
    model = separate_actor_critic(backend)
    model.set_weights(weights, portable=True)
    algorithm = backend.algorithms.PPO(model, policy_lr=0.01, value_lr=0.01, device="cpu")
    agent = backend.Agent(algorithm)

    def update(batch: Batch) -> None:
        agent.run(algorithm.policy_learn, batch["obs"], np.tanh(batch["logits"]), batch["reward"])
        agent.run(algorithm.value_learn, batch["obs"], batch["weight"])

    return agent, update


def _decision_transformer(backend: Backend, weights: Weights) -> Learner:
    """Windows of two steps, of which the first one may be padding: the processes have different numbers of steps."""
    model = of_windows(backend)
    model.set_weights(weights, portable=True)
    agent = backend.Agent(
        backend.algorithms.DecisionTransformer(model, learning_rate=0.01, weight_decay=0.1, device="cpu")
    )

    def update(batch: Batch) -> None:
        both = np.stack([batch["done"], np.ones_like(batch["done"])], axis=1)
        actions = np.tanh(np.stack([batch["logits"], -batch["logits"]], axis=1))
        obs = np.stack([batch["obs"], batch["next_obs"]], axis=1)
        agent.learn(obs, actions, both[..., None], np.tile([0, 1], (len(both), 1)), both)

    return agent, update


def _a2c(backend: Backend, weights: Weights) -> Learner:
    agent = _actor_critic(backend, weights, "A2C", learning_rate=0.01, max_grad_norm=1.0)
    return agent, lambda batch: agent.learn(batch["obs"], batch["action"], batch["reward"], batch["weight"])


def _impala(backend: Backend, weights: Weights) -> Learner:
    agent = _actor_critic(backend, weights, "IMPALA", sample_batch_steps=1, learning_rate=0.01, max_grad_norm=1.0)
    return agent, lambda batch: agent.learn(
        batch["obs"], batch["action"], batch["logits"], batch["reward"], batch["done"], last_obs=batch["next_obs"]
    )


def _ddpg(backend: Backend, weights: Weights) -> Learner:
    model = deterministic(backend)
    model.set_weights(weights, portable=True)
    algorithm = backend.algorithms.DDPG(model, gamma=0.9, tau=0.1, actor_lr=0.01, critic_lr=0.01, device="cpu")
    agent = backend.Agent(algorithm)
    return agent, lambda batch: agent.learn(
        batch["obs"], np.tanh(batch["logits"]), batch["reward"], batch["next_obs"], batch["done"]
    )


def _actor_critic(backend: Backend, weights: Weights, name: str, **settings: Any) -> Any:
    model = actor_critic(backend)
    model.set_weights(weights, portable=True)
    return backend.Agent(getattr(backend.algorithms, name)(model, device="cpu", **settings))


CASES: Mapping[str, tuple[Callable[[Backend, Weights], Learner], dict[str, tuple[int, ...]]]] = {
    "DQN": (_dqn, Q_SHAPES),
    "DQN, frozen at first": (_frozen_at_first, Q_SHAPES),
    "DDPG": (_ddpg, DETERMINISTIC_SHAPES),
    "PolicyGradient": (_policy_gradient, Q_SHAPES),
    "PolicyGradient, a rollout": (_policy_gradient_rollout, Q_SHAPES),
    "PPO": (_ppo, ACTOR_CRITIC_SHAPES),
    "PPO of PARL 1.x": (_separate_ppo, GAUSSIAN_SHAPES),
    "A2C": (_a2c, ACTOR_CRITIC_SHAPES),
    "IMPALA": (_impala, ACTOR_CRITIC_SHAPES),
    "DecisionTransformer": (_decision_transformer, WINDOW_SHAPES),
}


def assert_joint_learning(backend: Backend, launcher: Sequence[str], folder: Path, timeout_s: float = 110.0) -> None:
    """Start two processes with a launcher, and compare what they learn with what this process learns alone.

    Args:
        backend: of all of them.
        launcher: command before the program.
        folder: an empty one.
        timeout_s: after which the launcher and its processes are killed.
    """
    with (folder / "output").open("w+b") as output:
        process = subprocess.Popen(
            [*launcher, __file__, backend.name, str(folder)],
            env=environment(),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        assert code == 0, output.read().decode(errors="replace")[-5000:]
    for name in CASES:
        alone = learn(backend, name, Learners(0, 1))
        for rank in (0, 1):
            with np.load(folder / f"{name}-{rank}.npz") as found:
                assert_weights_close(dict(found), alone, 1e-6)


def learn(backend: Backend, name: str, learners: Learners) -> Weights:
    """Make some updates from this process's rows, and return the weights."""
    make, shapes = CASES[name]
    rng = np.random.default_rng(5)
    weights = random_weights(rng, shapes)
    agent, update = make(backend, weights)
    for _ in range(UPDATES):
        batch = _batch(rng)
        update({key: column[learners.rank :: learners.size] for key, column in batch.items()})
    found: Weights = agent.alg.model.get_weights(portable=True)
    return found


def _batch(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "obs": rng.normal(size=(ROWS, OBS_DIM)).astype(np.float32),
        "next_obs": rng.normal(size=(ROWS, OBS_DIM)).astype(np.float32),
        "action": rng.integers(ACT_DIM, size=ROWS),
        "reward": rng.normal(size=ROWS).astype(np.float32),
        "done": (rng.random(ROWS) < 0.3).astype(np.float32),
        "weight": rng.random(ROWS).astype(np.float32),
        "log_prob": rng.normal(-1.1, 0.4, size=ROWS).astype(np.float32),
        "logits": rng.normal(size=(ROWS, ACT_DIM)).astype(np.float32),
    }


def _main(backend_name: str, folder: str) -> None:
    backend = backends.load(backend_name)
    learners = backend.data_parallel.join()
    for name in CASES:
        weights: dict[str, Any] = learn(backend, name, learners)
        np.savez(Path(folder) / f"{name}-{learners.rank}.npz", **weights)


if __name__ == "__main__":
    _main(*sys.argv[1:])
