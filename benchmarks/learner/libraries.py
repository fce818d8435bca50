"""The same update in each library: what `run.py` measures.

A numpy batch goes in and a whole update is done, the target network included. One thread.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

UPDATES = 32  # of one run
OBS_DIM, ACT_DIM = 4, 2
DQN_BATCH, DQN_HIDDEN, SYNC_EVERY = 64, 128, 32
ROLLOUT, MINIBATCH, PPO_HIDDEN, EPOCHS = 2048, 64, 64, 1

Run = Callable[[], None]


def transitions() -> tuple[Any, ...]:
    """obs, action, reward, next_obs, terminal of one batch for DQN."""
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, DQN_BATCH, OBS_DIM)).astype(np.float32)
    reward = rng.normal(size=DQN_BATCH).astype(np.float32)
    return (
        obs,
        rng.integers(ACT_DIM, size=DQN_BATCH),
        reward,
        next_obs,
        (rng.random(DQN_BATCH) < 0.1).astype(np.float32),
    )


def rollout() -> dict[str, Any]:
    """Columns of a rollout for PPO."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        name: rng.normal(scale=0.1, size=ROLLOUT).astype(np.float32)
        for name in ("value", "return_", "log_prob", "advantage")
    }
    obs = rng.normal(size=(ROLLOUT, OBS_DIM)).astype(np.float32)
    return {"obs": obs, "action": rng.integers(ACT_DIM, size=ROLLOUT), **columns}


class Parl:
    """This project, as a user calls it."""

    def dqn(self) -> Run:
        from parl_torch.agent import Agent
        from parl_torch.algorithms import DQN
        from parl_torch.networks import QNetwork

        model = QNetwork(ACT_DIM, (DQN_HIDDEN, DQN_HIDDEN))
        agent = Agent(DQN(model, gamma=0.99, lr=1e-3, sync_every=SYNC_EVERY, device="cpu"))
        batch = transitions()

        def run() -> None:
            for _ in range(UPDATES):
                agent.learn(*batch)

        return run

    def ppo(self) -> Run:
        from parl_core.contracts.rollout_batch import RolloutBatch
        from parl_torch.agent import Agent
        from parl_torch.algorithms import PPO
        from parl_torch.networks import ActorCritic

        agent = Agent(PPO(ActorCritic(ACT_DIM, (PPO_HIDDEN, PPO_HIDDEN)), clip_param=0.2, device="cpu"))
        batch, rng = RolloutBatch(**rollout()), np.random.default_rng(1)
        return lambda: agent.learn_rollout(batch, epochs=EPOCHS, minibatch_size=MINIBATCH, rng=rng) and None


class Floor:
    """The same mathematics by hand in eager PyTorch, without a library around it."""

    def dqn(self) -> Run:
        from torch import nn
        from torch.nn import functional as F

        def network() -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(OBS_DIM, DQN_HIDDEN),
                nn.ReLU(),
                nn.Linear(DQN_HIDDEN, DQN_HIDDEN),
                nn.ReLU(),
                nn.Linear(DQN_HIDDEN, ACT_DIM),
            )

        q, target = network(), network()
        adam = torch.optim.Adam(q.parameters(), lr=1e-3, fused=True)
        batch = transitions()

        def run() -> None:
            for step in range(UPDATES):
                obs, action, reward, next_obs, terminal = (torch.from_numpy(array) for array in batch)
                with torch.no_grad():
                    value = reward + 0.99 * (1.0 - terminal) * target(next_obs).amax(1)
                loss = F.mse_loss(q(obs).gather(1, action[:, None])[:, 0], value)
                adam.zero_grad()
                loss.backward()
                adam.step()
                loss.item()
                if step % SYNC_EVERY == 0:
                    target.load_state_dict(q.state_dict())

        return run

    def ppo(self) -> Run:
        from torch import nn

        def network(outputs: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(OBS_DIM, PPO_HIDDEN),
                nn.Tanh(),
                nn.Linear(PPO_HIDDEN, PPO_HIDDEN),
                nn.Tanh(),
                nn.Linear(PPO_HIDDEN, outputs),
            )

        policy, critic = network(ACT_DIM), network(1)
        parameters = [*policy.parameters(), *critic.parameters()]
        adam = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5, fused=True)
        columns = rollout()

        def run() -> None:
            tensors = [torch.from_numpy(array) for array in columns.values()]
            for _ in range(EPOCHS):
                order = torch.randperm(ROLLOUT)
                shuffled = [tensor[order].split(MINIBATCH) for tensor in tensors]
                for obs, action, value_old, target, log_prob_old, advantage in zip(*shuffled, strict=True):
                    scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                    log_p = torch.log_softmax(policy(obs), dim=1)
                    log_ratio = log_p.gather(1, action[:, None])[:, 0] - log_prob_old
                    ratio = log_ratio.exp()
                    policy_loss = -torch.min(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled).mean()
                    value = critic(obs)[:, 0]
                    near = value_old + (value - value_old).clamp(-0.2, 0.2)
                    value_loss = 0.5 * torch.max((value - target) ** 2, (near - target) ** 2).mean()
                    entropy = -(log_p.exp() * log_p).sum(1).mean()
                    loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
                    adam.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(parameters, 0.5)
                    adam.step()
                    with torch.no_grad():  # the figures that the libraries report
                        (ratio - 1.0 - log_ratio).mean()
                        ((ratio - 1.0).abs() > 0.2).float().mean()

        return run


class StableBaselines3:
    """Its `train()`. Drawing from its buffer is left out: it gets the same batch each time, as the others do."""

    def dqn(self) -> Run:
        from stable_baselines3 import DQN
        from stable_baselines3.common.buffers import ReplayBufferSamples
        from stable_baselines3.common.logger import configure
        from stable_baselines3.common.utils import polyak_update

        model = DQN("MlpPolicy", _cartpole(), policy_kwargs={"net_arch": [DQN_HIDDEN, DQN_HIDDEN]}, device="cpu")
        model.set_logger(configure(None, []))
        obs, action, reward, next_obs, terminal = transitions()
        columns = (obs, action[:, None], next_obs, terminal[:, None], reward[:, None])
        buffer = model.replay_buffer
        buffer.sample = lambda *_, **__: ReplayBufferSamples(*(torch.from_numpy(array) for array in columns))

        def run() -> None:
            for step in range(UPDATES):
                model.train(gradient_steps=1, batch_size=DQN_BATCH)
                if step % SYNC_EVERY == 0:
                    polyak_update(model.q_net.parameters(), model.q_net_target.parameters(), 1.0)

        return run

    def ppo(self) -> Run:
        from stable_baselines3 import PPO
        from stable_baselines3.common.logger import configure

        model = PPO(
            "MlpPolicy",
            _cartpole(),
            n_steps=ROLLOUT,
            batch_size=MINIBATCH,
            n_epochs=EPOCHS,
            clip_range_vf=0.2,
            ent_coef=0.01,
            device="cpu",
        )
        model.set_logger(configure(None, []))
        buffer, columns = model.rollout_buffer, rollout()
        buffer.observations[:, 0] = columns["obs"]
        buffer.actions[:, 0, 0] = columns["action"]
        buffer.values[:, 0] = columns["value"]
        buffer.returns[:, 0] = columns["return_"]
        buffer.log_probs[:, 0] = columns["log_prob"]
        buffer.advantages[:, 0] = columns["advantage"]
        buffer.full = True
        return model.train


def _cartpole() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


LIBRARIES = {"ours": Parl, "by hand": Floor, "SB3": StableBaselines3}
