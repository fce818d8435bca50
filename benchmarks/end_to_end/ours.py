"""This project's training loops with agent, vector environment and settings, as in a user's program."""

from collections.abc import Callable
from typing import Any

import tasks

Run = Callable[[int], None]


class Parl:
    """Each method returns a function that continues training for a number of environment steps.

    Args:
        compile: The option of the algorithms.
    """

    def __init__(self, *, compile: bool = False) -> None:
        self._options: dict[str, Any] = {"device": "cpu", "compile": compile}

    def dqn_cartpole(self) -> Run:
        from parl_core.training.off_policy import OffPolicySettings
        from parl_torch.algorithms import DQN
        from parl_torch.networks import QNetwork

        settings = OffPolicySettings(
            learning_starts=0, batch_size=tasks.DQN_BATCH, memory_size=50_000, exploration={"epsilon": 0.1}
        )
        algorithm = DQN(QNetwork(2, tasks.DQN_HIDDEN), lr=1e-3, sync_every=tasks.DQN_SYNC, **self._options)
        return _off_policy(algorithm, "CartPole-v1", settings)

    def sac_halfcheetah(self) -> Run:
        from parl_core.training.off_policy import OffPolicySettings
        from parl_torch.algorithms import SAC
        from parl_torch.networks import SquashedActorCritic

        settings = OffPolicySettings(learning_starts=0, batch_size=tasks.SAC_BATCH, memory_size=50_000)
        return _off_policy(SAC(SquashedActorCritic(6, tasks.SAC_HIDDEN), **self._options), "HalfCheetah-v5", settings)

    def ppo_cartpole(self) -> Run:
        from parl_core.env.vector import make_vector_env
        from parl_core.training.on_policy import OnPolicySettings, train_on_policy
        from parl_torch.agent import Agent
        from parl_torch.algorithms import PPO
        from parl_torch.networks import ActorCritic

        agent = Agent(PPO(ActorCritic(2), **self._options))
        envs = make_vector_env("CartPole-v1", tasks.PPO_ENVS)
        settings = OnPolicySettings(
            n_steps=tasks.PPO_STEPS,
            epochs=tasks.PPO_EPOCHS,
            minibatch_size=tasks.PPO_MINIBATCH,
            gamma=0.98,
            gae_lambda=0.8,
            lr=1e-3,
            clip=0.2,
            entropy_coef=0.0,
        )

        def run(steps: int) -> None:
            train_on_policy(agent, envs, settings.with_total_steps(steps), seed=0)

        return run


def _off_policy(algorithm: Any, env: str, settings: Any) -> Run:
    import numpy as np

    from parl_core.env.vector import make_vector_env
    from parl_core.training.off_policy import make_memory, train_off_policy
    from parl_torch.agent import Agent

    agent, envs = Agent(algorithm, seed=0), make_vector_env(env, 1)
    memory = make_memory(agent, envs, settings, np.random.default_rng(0))

    def run(steps: int) -> None:
        train_off_policy(agent, envs, settings.with_total_steps(steps), memory=memory, seed=0)

    return run
