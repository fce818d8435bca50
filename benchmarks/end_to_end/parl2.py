"""PARL 2.2.1 as in its manual: its algorithms and replay memory, an agent that converts arrays, and a handwritten loop.

Its package has the same name as ours, so it is measured only where `import parl` finds it (see README.md). Its examples
read gym's old `step` of four values; here Gymnasium's five are read.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import tasks
import torch
from torch import nn

Run = Callable[[int], None]


class Parl2:
    """Each method returns a function that continues training for a number of environment steps."""

    def __init__(self) -> None:
        import parl

        if not parl.__version__.startswith("2."):
            raise ModuleNotFoundError("`import parl` finds this project, not PARL 2.2.1; see README.md")

    def dqn_cartpole(self) -> Run:
        import parl
        from parl.algorithms import DQN

        network = _mlp(4, tasks.DQN_HIDDEN, 2)

        class Model(parl.Model):  # type: ignore[misc]  # of the other PARL
            def __init__(self) -> None:
                super().__init__()
                self.network = network

            def forward(self, obs: Any) -> Any:
                return self.network(obs)

        class Agent(parl.Agent):  # type: ignore[misc]
            def __init__(self, algorithm: Any) -> None:
                super().__init__(algorithm)
                self.steps = 0

            def sample(self, obs: Any) -> Any:
                return np.random.randint(2) if np.random.random() < 0.1 else self.predict(obs)

            def predict(self, obs: Any) -> int:
                return int(self.alg.predict(torch.as_tensor(obs)).argmax().item())

            def learn(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminal: Any) -> Any:
                if self.steps % tasks.DQN_SYNC == 0:
                    self.alg.sync_target()
                self.steps += 1
                columns = (action.astype(np.int64), reward, terminal.astype(np.float32))
                action, reward, terminal = (torch.as_tensor(column[:, None]) for column in columns)
                return self.alg.learn(torch.as_tensor(obs), action, reward, torch.as_tensor(next_obs), terminal)

        agent = Agent(DQN(Model(), gamma=0.99, lr=1e-3))
        return _off_policy(agent, "CartPole-v1", (4, 0), tasks.DQN_BATCH)

    def sac_halfcheetah(self) -> Run:
        import parl
        from parl.algorithms import SAC

        actor = _mlp(17, tasks.SAC_HIDDEN, 12)
        critics = nn.ModuleList([_mlp(23, tasks.SAC_HIDDEN, 1) for _ in range(2)])

        class Model(parl.Model):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.actor, self.critics = actor, critics

            def policy(self, obs: Any) -> Any:
                mean, log_std = self.actor(obs).chunk(2, dim=1)
                return mean, log_std.clamp(-20.0, 2.0)

            def value(self, obs: Any, action: Any) -> Any:
                both = torch.cat([obs, action], 1)
                return tuple(critic(both) for critic in self.critics)

            def get_actor_params(self) -> Any:
                return self.actor.parameters()

            def get_critic_params(self) -> Any:
                return self.critics.parameters()

        class Agent(parl.Agent):  # type: ignore[misc]
            def sample(self, obs: Any) -> Any:
                action, _ = self.alg.sample(torch.as_tensor(obs[None], dtype=torch.float32))
                return action.detach().numpy()[0]

            def learn(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminal: Any) -> Any:
                columns = (obs, action, reward[:, None], next_obs, terminal[:, None].astype(np.float32))
                losses = self.alg.learn(*(torch.as_tensor(column) for column in columns))
                return [loss.item() for loss in losses]

        agent = Agent(SAC(Model(), gamma=0.99, tau=0.005, alpha=0.2, actor_lr=3e-4, critic_lr=3e-4))
        return _off_policy(agent, "HalfCheetah-v5", (17, 6), tasks.SAC_BATCH)

    def ppo_cartpole(self) -> Run:
        import parl
        from parl.algorithms import PPO
        from parl.utils.rl_utils import calc_gae

        actor, critic = (_mlp(4, (64, 64), outputs, nn.Tanh) for outputs in (2, 1))

        class Model(parl.Model):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.actor, self.critic = actor, critic

            def policy(self, obs: Any) -> Any:
                return self.actor(obs)

            def value(self, obs: Any) -> Any:
                return self.critic(obs)

        class Agent(parl.Agent):  # type: ignore[misc]
            def sample(self, obs: Any) -> Any:
                with torch.no_grad():
                    value, action, log_prob, _ = self.alg.sample(torch.as_tensor(obs))
                return value.numpy()[:, 0], action.numpy(), log_prob.numpy()

            def value(self, obs: Any) -> Any:  # type: ignore[override]  # of PARL 2.2.1
                with torch.no_grad():
                    return self.alg.value(torch.as_tensor(obs)).numpy()[:, 0]

            def learn(self, columns: Any) -> None:
                rows = len(columns[0])
                for _ in range(tasks.PPO_EPOCHS):
                    order = np.random.permutation(rows)
                    for start in range(0, rows, tasks.PPO_MINIBATCH):
                        chosen = order[start : start + tasks.PPO_MINIBATCH]
                        self.alg.learn(*(torch.as_tensor(column[chosen]) for column in columns))

        agent = Agent(PPO(Model(), clip_param=0.2, entropy_coef=0.0, initial_lr=1e-3))
        envs = [gymnasium.make("CartPole-v1") for _ in range(tasks.PPO_ENVS)]
        shape = (tasks.PPO_STEPS, tasks.PPO_ENVS)
        obs = [np.stack([env.reset()[0] for env in envs])]

        def run(steps: int) -> None:
            for _ in range(steps // (tasks.PPO_ENVS * tasks.PPO_STEPS)):
                seen, actions = np.zeros((*shape, 4), np.float32), np.zeros(shape, np.int64)
                log_probs, rewards, values, dones = (np.zeros(shape, np.float32) for _ in range(4))
                for t in range(tasks.PPO_STEPS):
                    seen[t] = obs[0]
                    values[t], actions[t], log_probs[t] = agent.sample(obs[0])
                    new = []
                    for i, env in enumerate(envs):  # equals its vector environment, which has gym's old API
                        first, rewards[t, i], terminated, truncated, _ = env.step(actions[t, i])
                        dones[t, i] = terminated or truncated
                        new.append(env.reset()[0] if dones[t, i] else first)
                    obs[0] = np.stack(new)
                advantages = _advantages(calc_gae, rewards, values, dones, agent.value(obs[0]))
                columns = (seen, actions, values, advantages + values, log_probs, advantages)
                agent.learn([column.reshape(-1, *column.shape[2:]) for column in columns])

        return run


def _advantages(calc_gae: Any, rewards: Any, values: Any, dones: Any, next_value: Any) -> Any:
    """Return advantages, computed per piece of an episode, as its examples do: its function ignores ends."""
    advantages = np.zeros_like(rewards)
    for env in range(rewards.shape[1]):
        start = 0
        for end in [*(np.flatnonzero(dones[:, env]) + 1), len(rewards)]:
            if start < end:
                last = 0.0 if dones[end - 1, env] else next_value[env]
                advantages[start:end, env] = calc_gae(rewards[start:end, env], values[start:end, env], last, 0.98, 0.8)
            start = end
    return advantages


def _off_policy(agent: Any, name: str, sizes: tuple[int, int], batch: int) -> Run:
    from parl.utils import ReplayMemory

    env, memory = gymnasium.make(name), ReplayMemory(50_000, *sizes)
    obs = [env.reset()[0]]

    def run(steps: int) -> None:
        for _ in range(steps):
            action = agent.sample(obs[0])
            next_obs, reward, terminated, truncated, _ = env.step(action)
            memory.append(obs[0], action, float(reward), next_obs, terminated)
            obs[0] = env.reset()[0] if terminated or truncated else next_obs
            agent.learn(*memory.sample_batch(batch))

    return run


def _mlp(inputs: int, hidden: tuple[int, ...], outputs: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    sizes = [inputs, *hidden]
    layers = [layer for pair in zip(sizes, hidden, strict=False) for layer in (nn.Linear(*pair), act())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))
