"""PARL 2.2.1 on PyTorch, called like in its examples: numpy in, `learn` on tensors, the loss as a number out.

It is measured only where `import parl` finds it (see `other_parl.py`).
"""

from collections.abc import Callable
from typing import Any

import batches
import numpy as np
import torch
from other_parl import OtherParl
from torch import nn

Run = Callable[[int], None]


class Parl2(OtherParl):
    """PARL 2.2.1's algorithms; its SAC has only a fixed temperature."""

    def dqn(self) -> Run:
        network = _mlp(batches.OBS_DIM, [batches.DQN_HIDDEN] * 2, batches.ACT_DIM)
        return self._dqn(network, batches.transitions())

    def dqn_cnn(self) -> Run:
        network = nn.Sequential(*_nature(), nn.Linear(512, batches.ATARI_ACTIONS))
        return self._dqn(network, batches.frame_transitions(), scale=255.0)

    def ppo(self) -> Run:
        from parl.algorithms import PPO

        hidden = [batches.PPO_HIDDEN] * 2
        policy, value = _mlp(batches.OBS_DIM, hidden, batches.ACT_DIM), _mlp(batches.OBS_DIM, hidden, 1)
        algorithm = PPO(_actor_critic(None, policy, value), clip_param=0.2)
        columns = batches.vector_rollout()
        ordered = [columns[name] for name in ("obs", "action", "value", "return_", "log_prob", "advantage")]
        size, rng = batches.MINIBATCH, np.random.default_rng(1)

        def run(_: int) -> None:
            order = rng.permutation(batches.ROLLOUT)
            for at in range(0, batches.ROLLOUT, size):
                chosen = order[at : at + size]
                algorithm.learn(*(torch.from_numpy(column[chosen]) for column in ordered))

        return run

    def a2c_cnn(self) -> Run:
        from parl.algorithms import A2C

        heads = nn.Linear(512, batches.ATARI_ACTIONS), nn.Linear(512, 1)
        settings = {"vf_loss_coeff": 0.5, "learning_rate": 1e-3}
        algorithm: Any = A2C(_actor_critic(nn.Sequential(*_nature()), *heads, scale=255.0), settings)
        rows = batches.A2C_STEPS * batches.A2C_ENVS
        columns, obs = batches.rollout(rows, batches.ATARI_ACTIONS), batches.frames(rows)

        def run(updates: int) -> None:
            for _ in range(updates):
                tensors = [torch.from_numpy(columns[name]) for name in ("action", "advantage", "return_")]
                losses = algorithm.learn(torch.from_numpy(obs.astype(np.float32)), *tensors, 1e-3, -0.01)
                for loss in losses:
                    loss.item()

        return run

    def _dqn(self, network: nn.Module, columns: batches.Columns, scale: float = 1.0) -> Run:
        import parl
        from parl.algorithms import DQN

        class Model(parl.Model):  # type: ignore[misc]  # of the other PARL
            def __init__(self) -> None:
                super().__init__()
                self.network = network

            def forward(self, obs: torch.Tensor) -> torch.Tensor:
                return self.network(obs / scale)

        algorithm = DQN(Model(), gamma=0.99, lr=1e-3)
        obs, action, reward, next_obs, terminal = columns

        def run(updates: int) -> None:
            for step in range(updates):
                tensors = [torch.from_numpy(part.astype(np.float32)) for part in (obs, next_obs)]
                column = [torch.from_numpy(part[:, None]) for part in (action, reward, terminal)]
                algorithm.learn(tensors[0], column[0], column[1], tensors[1], column[2])  # reads the loss itself
                if step % batches.SYNC_EVERY == 0:
                    algorithm.sync_target()

        return run

    def sac_fixed(self) -> Run:
        from parl.algorithms import SAC

        return self._continuous(SAC, outputs=2, critics=2, alpha=0.2)

    def td3(self) -> Run:
        from parl.algorithms import TD3

        return self._continuous(TD3, outputs=1, critics=2)

    def ddpg(self) -> Run:
        from parl.algorithms import DDPG

        return self._continuous(DDPG, outputs=1, critics=1)

    def _continuous(self, make: Any, *, outputs: int, critics: int, **settings: float) -> Run:
        import parl

        width, hidden = batches.CHEETAH_OBS + batches.CHEETAH_ACT, list(batches.CHEETAH_HIDDEN)

        class Model(parl.Model):  # type: ignore[misc]  # of the other PARL
            def __init__(self) -> None:
                super().__init__()
                self.actor_model = _mlp(batches.CHEETAH_OBS, hidden, outputs * batches.CHEETAH_ACT)
                self.critic_model = nn.ModuleList([_mlp(width, hidden, 1) for _ in range(critics)])

            def policy(self, obs: torch.Tensor) -> Any:
                output = self.actor_model(obs)
                if outputs == 1:
                    return torch.tanh(output)
                mean, log_std = output.chunk(2, dim=1)
                return mean, log_std.clamp(-20.0, 2.0)

            def value(self, obs: torch.Tensor, action: torch.Tensor) -> Any:
                both = torch.cat([obs, action], 1)
                values = tuple(critic(both) for critic in self.critic_model)
                return values if critics == 2 else values[0]

            def Q1(self, obs: torch.Tensor, action: torch.Tensor) -> Any:  # noqa: N802 - its name
                return self.critic_model[0](torch.cat([obs, action], 1))

            def get_actor_params(self) -> Any:
                return self.actor_model.parameters()

            def get_critic_params(self) -> Any:
                return self.critic_model.parameters()

        algorithm = make(Model(), gamma=0.99, tau=0.005, actor_lr=3e-4, critic_lr=3e-4, **settings)
        obs, action, reward, next_obs, terminal = batches.cheetah_transitions()
        columns = (obs, action, reward[:, None], next_obs, terminal[:, None])

        def run(updates: int) -> None:
            for _ in range(updates):
                losses = algorithm.learn(*(torch.from_numpy(part) for part in columns))
                for loss in losses or ():
                    loss.item()

        return run


def _nature() -> list[nn.Module]:
    """Return the convolutions of Mnih et al. 2015 and the layer behind them."""
    convolutions = nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)
    layers = [layer for one in convolutions for layer in (one, nn.ReLU())]
    return [*layers, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()]


def _actor_critic(trunk: nn.Module | None, policy_head: nn.Module, value_head: nn.Module, scale: float = 1.0) -> Any:
    import parl

    class Model(parl.Model):  # type: ignore[misc]  # of the other PARL
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.policy_head, self.value_head = trunk or nn.Identity(), policy_head, value_head

        def policy(self, obs: torch.Tensor) -> torch.Tensor:
            return self.policy_head(self.trunk(obs / scale))

        def value(self, obs: torch.Tensor) -> torch.Tensor:
            return self.value_head(self.trunk(obs / scale)).view(-1)

        def policy_and_value(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.policy(obs), self.value(obs)

    return Model()


def _mlp(inputs: int, hidden: list[int], outputs: int) -> nn.Sequential:
    sizes = [inputs, *hidden]
    layers = [layer for pair in zip(sizes, hidden, strict=False) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))
