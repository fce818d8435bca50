"""PARL 2.2.1 in `speed.py`: its algorithms and memory as in its examples, with networks of the same sizes."""

from typing import Any

import numpy as np
import torch
from serving import AGENTS, BATCH, CHOICES, EPISODES, HIDDEN, OBS_DIM, ROWS, STEPS, Run, serve
from torch import nn

import parl
from parl.algorithms import MADDPG, MAPPO, QMIX
from parl.utils import ReplayMemory

STATE_DIM = AGENTS * OBS_DIM
RNG = np.random.default_rng(0)


def mlp(inputs: int, outputs: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, HIDDEN), act(), nn.Linear(HIDDEN, HIDDEN), act(), nn.Linear(HIDDEN, outputs))


class Choices:
    """A discrete action space."""

    n = CHOICES


class OneAgent(parl.Model):  # type: ignore[misc]  # of the other PARL
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(OBS_DIM, CHOICES), mlp(AGENTS * (OBS_DIM + CHOICES), 1)

    def policy(self, obs: Any) -> Any:
        return self.actor(obs)

    def value(self, obs_n: Any, act_n: Any) -> Any:
        return self.critic(torch.cat([*obs_n, *act_n], 1)).squeeze(1)

    def get_actor_params(self) -> Any:
        return self.actor.parameters()

    def get_critic_params(self) -> Any:
        return self.critic.parameters()


class Learner:
    """The agents of its MADDPG example, with an algorithm and a memory each."""

    def __init__(self, remembered: int) -> None:
        of_one = (0.95, 0.01, 1e-2, 1e-2)
        self.algorithms = [MADDPG(OneAgent(), i, [Choices()] * AGENTS, *of_one) for i in range(AGENTS)]
        self.memories = [ReplayMemory(100_000, OBS_DIM, CHOICES) for _ in range(AGENTS)]
        for memory in self.memories:
            for _ in range(remembered):
                obs, action, next_obs = RNG.normal(size=OBS_DIM), RNG.random(CHOICES), RNG.normal(size=OBS_DIM)
                memory.append(obs, action, -1.0, next_obs, False)

    def learn(self, i: int) -> float:
        chosen = self.memories[i].make_index(BATCH)
        parts = [memory.sample_batch_by_index(chosen) for memory in self.memories]
        obs_n, act_n, next_n = ([torch.from_numpy(part[at]).float() for part in parts] for at in (0, 1, 3))
        reward, over = (torch.from_numpy(parts[i][at]).float() for at in (2, 4))
        algorithm: Any = self.algorithms[i]
        pairs = zip(self.algorithms, next_n, strict=True)
        next_act = [other.sample(obs, use_target_model=True).detach() for other, obs in pairs]
        value = algorithm.Q(next_n, next_act, use_target_model=True).detach()
        return float(algorithm.learn(obs_n, act_n, reward + 0.95 * (1.0 - over) * value).detach())


def update_maddpg() -> Run:
    learner = Learner(30_000)

    def run(updates: int) -> None:
        for _ in range(updates):
            for i in range(AGENTS):
                learner.learn(i)

    return run


def collect() -> Run:
    from mpe2 import simple_spread_v3

    env, learner = simple_spread_v3.parallel_env(max_cycles=STEPS), Learner(0)
    obs, _ = env.reset(seed=0)

    def run(steps: int) -> None:
        nonlocal obs
        for _ in range(steps):
            taken = []
            for algorithm, own in zip(learner.algorithms, obs.values(), strict=True):
                rows = torch.from_numpy(own.reshape(1, -1)).float()
                taken.append(algorithm.sample(rows).detach().cpu().numpy().flatten())
            named = {name: int(np.argmax(action)) for name, action in zip(obs, taken, strict=True)}
            next_obs, reward, _, over, _ = env.step(named)
            for memory, action, name in zip(learner.memories, taken, obs, strict=True):
                memory.append(obs[name], action, reward[name], next_obs[name], False)
            obs = env.reset()[0] if all(over.values()) else next_obs

    return run


class Remembering(parl.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.cell, self.last = (
            nn.Linear(OBS_DIM, HIDDEN),
            nn.GRUCell(HIDDEN, HIDDEN),
            nn.Linear(HIDDEN, CHOICES),
        )

    def init_hidden(self) -> Any:
        return self.first.weight.new_zeros(1, HIDDEN)

    def forward(self, obs: Any, hidden: Any) -> Any:
        after = self.cell(torch.relu(self.first(obs)), hidden.reshape(-1, HIDDEN))
        return self.last(after), after


class Mixer(parl.Model):  # type: ignore[misc]
    def __init__(self, embed: int = 32) -> None:
        super().__init__()
        self.n_agents, self.embed = AGENTS, embed
        self.w1, self.w2 = nn.Linear(STATE_DIM, embed * AGENTS), nn.Linear(STATE_DIM, embed)
        self.b1 = nn.Linear(STATE_DIM, embed)
        self.b2 = nn.Sequential(nn.Linear(STATE_DIM, embed), nn.ReLU(), nn.Linear(embed, 1))

    def forward(self, values: Any, state: Any) -> Any:
        rows = state.reshape(-1, STATE_DIM)
        first = self.w1(rows).abs().reshape(-1, AGENTS, self.embed)
        hidden = nn.functional.elu(torch.bmm(values.reshape(-1, 1, AGENTS), first) + self.b1(rows).unsqueeze(1))
        total = torch.bmm(hidden, self.w2(rows).abs().unsqueeze(2)) + self.b2(rows).unsqueeze(1)
        return total.reshape(values.shape[0], -1, 1)


def update_qmix() -> Run:
    algorithm, rows = QMIX(Remembering(), Mixer(), double_q=True, gamma=0.99, lr=5e-4, clip_grad_norm=10.0), STEPS + 1
    shapes = {
        "state": (EPISODES, rows, STATE_DIM),
        "obs": (EPISODES, rows, AGENTS, OBS_DIM),
        "reward": (EPISODES, rows, 1),
    }
    state, obs, reward = (torch.randn(shape) for shape in shapes.values())
    action = torch.randint(CHOICES, (EPISODES, rows, AGENTS))
    over, filled, possible = (
        torch.zeros_like(reward),
        torch.zeros_like(reward),
        torch.ones(EPISODES, rows, AGENTS, CHOICES),
    )

    def run(updates: int) -> None:
        for _ in range(updates):
            algorithm.learn(state, action, reward, over, obs, possible, filled)

    return run


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = mlp(OBS_DIM + AGENTS + STATE_DIM, 1, nn.Tanh)
        self.trunk, self.v_out = layers[:-1], layers[-1]  # PopArt changes the last one

    def forward(self, obs: Any) -> Any:
        return self.v_out(self.trunk(obs))


class Central(parl.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(OBS_DIM + AGENTS, CHOICES, nn.Tanh), Critic()
        self.actor.multi_discrete = False  # type: ignore[assignment]

    def policy(self, obs: Any) -> Any:
        return self.actor(obs)

    def value(self, obs: Any) -> Any:
        return self.critic(obs)


def update_mappo() -> Run:
    algorithm: Any = MAPPO(Central(), 0.2, 1.0, 0.01, 7e-4, 10.0, eps=1e-5, max_grad_norm=10.0)
    n = ROWS * AGENTS
    seen = torch.randn(n, OBS_DIM + AGENTS + STATE_DIM), torch.randn(n, OBS_DIM + AGENTS)
    columns = [torch.randn(n, 1) for _ in range(4)]
    action, active = torch.randint(CHOICES, (n, 1)), torch.ones(n, 1)

    def run(updates: int) -> None:
        for _ in range(updates):
            losses = algorithm.learn(*seen, action, *columns, active)
            for loss in losses:
                loss.item()

    return run


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve({name: globals()[name] for name in ("update_maddpg", "update_qmix", "update_mappo", "collect")})
