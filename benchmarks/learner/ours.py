"""This project on either backend, called like in a user's program: numpy in, losses as floats out."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import batches
import numpy as np

Run = Callable[[int], None]


class Parl:
    """Ready-made networks and one agent; options go to the algorithm."""

    def __init__(self, backend: str = "torch", **options: Any) -> None:
        self._options: dict[str, Any] = {"device": "cpu", **options}
        self._algorithms = import_module(f"parl_{backend}.algorithms")
        self._networks = import_module(f"parl_{backend}.networks")
        self._agent = import_module(f"parl_{backend}.agent").Agent

    def dqn(self) -> Run:
        model = self._networks.QNetwork(batches.ACT_DIM, (batches.DQN_HIDDEN, batches.DQN_HIDDEN))
        return self._updates("DQN", model, batches.transitions(), gamma=0.99, lr=1e-3, sync_every=batches.SYNC_EVERY)

    def dqn_many(self) -> Run:
        from parl_core.contracts.batches import Transitions

        model = self._networks.QNetwork(batches.ACT_DIM, (batches.DQN_HIDDEN, batches.DQN_HIDDEN))
        algorithm = self._algorithms.DQN(model, gamma=0.99, lr=1e-3, sync_every=batches.SYNC_EVERY, **self._options)
        agent, columns = self._agent(algorithm), batches.transitions()
        return lambda updates: agent.learn_many([Transitions(*columns) for _ in range(updates)]) and None

    def dqn_cnn(self) -> Run:
        model = self._networks.AtariQNetwork(batches.ATARI_ACTIONS)
        return self._updates("DQN", model, batches.frame_transitions(), sync_every=batches.SYNC_EVERY)

    def ppo(self) -> Run:
        from parl_core.contracts.batches import RolloutBatch

        model = self._networks.ActorCritic(batches.ACT_DIM, (batches.PPO_HIDDEN, batches.PPO_HIDDEN))
        agent = self._agent(self._algorithms.PPO(model, clip_param=0.2, **self._options))
        batch, rng = RolloutBatch(**batches.vector_rollout()), np.random.default_rng(1)
        epochs, size = batches.EPOCHS, batches.MINIBATCH
        return lambda _: agent.learn_rollout(batch, epochs=epochs, minibatch_size=size, rng=rng) and None

    def a2c_cnn(self) -> Run:
        rows = batches.A2C_STEPS * batches.A2C_ENVS
        columns = batches.rollout(rows, batches.ATARI_ACTIONS)
        batch = (batches.frames(rows), columns["action"], columns["advantage"], columns["return_"])
        return self._updates("A2C", self._networks.AtariActorCritic(batches.ATARI_ACTIONS), batch)

    def impala_cnn(self) -> Run:
        model = self._networks.AtariActorCritic(batches.ATARI_ACTIONS)
        return self._updates("IMPALA", model, batches.fragments(), sample_batch_steps=batches.A2C_STEPS)

    def sac(self) -> Run:
        return self._continuous("SAC", "SquashedActorCritic")

    def sac_fixed(self) -> Run:
        return self._continuous("SAC", "SquashedActorCritic", alpha=0.2)

    def td3(self) -> Run:
        return self._continuous("TD3", "TwinActorCritic")

    def ddpg(self) -> Run:
        return self._continuous("DDPG", "DeterministicActorCritic")

    def _continuous(self, algorithm: str, network: str, **settings: float) -> Run:
        model = getattr(self._networks, network)(batches.CHEETAH_ACT, batches.CHEETAH_HIDDEN)
        return self._updates(algorithm, model, batches.cheetah_transitions(), **settings)

    def _updates(self, algorithm: str, model: Any, batch: batches.Columns, **settings: float) -> Run:
        agent = self._agent(getattr(self._algorithms, algorithm)(model, **settings, **self._options))

        def run(updates: int) -> None:
            for _ in range(updates):
                agent.learn(*batch)

        return run


class Reduced:
    """The cases with convolutions, where `compute_dtype="bfloat16"` pays."""

    def __init__(self, device: str = "cpu") -> None:
        parl = Parl(compute_dtype="bfloat16", device=device)
        self.dqn_cnn, self.a2c_cnn, self.impala_cnn = parl.dqn_cnn, parl.a2c_cnn, parl.impala_cnn
