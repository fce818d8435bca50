"""This project, as a user calls it: numpy in, losses as floats out."""

from collections.abc import Callable
from typing import Any

import batches
import numpy as np

Run = Callable[[int], None]


class Parl:
    """Ready-made networks, one agent; the options are the algorithm's."""

    def __init__(self, **options: Any) -> None:
        self._options: dict[str, Any] = {"device": "cpu", **options}

    def dqn(self) -> Run:
        from parl_torch.algorithms import DQN
        from parl_torch.networks import QNetwork

        model = QNetwork(batches.ACT_DIM, (batches.DQN_HIDDEN, batches.DQN_HIDDEN))
        settings = {"gamma": 0.99, "lr": 1e-3, "sync_every": batches.SYNC_EVERY}
        return _updates(DQN(model, **settings, **self._options), batches.transitions())

    def dqn_cnn(self) -> Run:
        from parl_torch.algorithms import DQN
        from parl_torch.networks import AtariQNetwork

        algorithm = DQN(AtariQNetwork(batches.ATARI_ACTIONS), sync_every=batches.SYNC_EVERY, **self._options)
        return _updates(algorithm, batches.frame_transitions())

    def ppo(self) -> Run:
        from parl_core.contracts.rollout_batch import RolloutBatch
        from parl_torch.agent import Agent
        from parl_torch.algorithms import PPO
        from parl_torch.networks import ActorCritic

        hidden = (batches.PPO_HIDDEN, batches.PPO_HIDDEN)
        agent = Agent(PPO(ActorCritic(batches.ACT_DIM, hidden), clip_param=0.2, **self._options))
        batch, rng = RolloutBatch(**batches.vector_rollout()), np.random.default_rng(1)
        epochs, size = batches.EPOCHS, batches.MINIBATCH
        return lambda _: agent.learn_rollout(batch, epochs=epochs, minibatch_size=size, rng=rng) and None

    def a2c_cnn(self) -> Run:
        from parl_torch.agent import Agent
        from parl_torch.algorithms import A2C
        from parl_torch.networks import AtariActorCritic

        rows = batches.A2C_STEPS * batches.A2C_ENVS
        agent = Agent(A2C(AtariActorCritic(batches.ATARI_ACTIONS), **self._options))
        columns, obs = batches.rollout(rows, batches.ATARI_ACTIONS), batches.frames(rows)

        def run(updates: int) -> None:
            for _ in range(updates):
                agent.learn(obs, columns["action"], columns["advantage"], columns["return_"])

        return run

    def sac(self) -> Run:
        from parl_torch.algorithms import SAC
        from parl_torch.networks import SquashedActorCritic

        return self._continuous(SAC, SquashedActorCritic)

    def td3(self) -> Run:
        from parl_torch.algorithms import TD3
        from parl_torch.networks import TwinActorCritic

        return self._continuous(TD3, TwinActorCritic)

    def ddpg(self) -> Run:
        from parl_torch.algorithms import DDPG
        from parl_torch.networks import DeterministicActorCritic

        return self._continuous(DDPG, DeterministicActorCritic)

    def _continuous(self, algorithm: Any, network: Any) -> Run:
        model = network(batches.CHEETAH_ACT, batches.CHEETAH_HIDDEN)
        return _updates(algorithm(model, **self._options), batches.cheetah_transitions())


def _updates(algorithm: Any, batch: batches.Columns) -> Run:
    from parl_torch.agent import Agent

    agent = Agent(algorithm)

    def run(updates: int) -> None:
        for _ in range(updates):
            agent.learn(*batch)

    return run


class Reduced:
    """With `compute_dtype="bfloat16"`, where it pays: convolutions."""

    def __init__(self) -> None:
        parl = Parl(compute_dtype="bfloat16")
        self.dqn_cnn, self.a2c_cnn = parl.dqn_cnn, parl.a2c_cnn
