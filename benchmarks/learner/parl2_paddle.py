"""PARL 2.2.1 on PaddlePaddle, called like in its examples: numpy in, `learn` on tensors, the loss as a number out.

It is measured only where `import parl` finds it (see `other_parl.py`).
"""

from collections.abc import Callable
from typing import Any

import batches
import numpy as np
import paddle
from other_parl import OtherParl
from paddle import Tensor, nn

Run = Callable[[int], None]


class Parl2(OtherParl):
    """PARL 2.2.1's algorithms; its SAC has only a fixed temperature."""

    def dqn(self) -> Run:
        network = _mlp(batches.OBS_DIM, [batches.DQN_HIDDEN] * 2, batches.ACT_DIM)
        return self._dqn(network, batches.transitions())

    def dqn_cnn(self) -> Run:
        network = nn.Sequential(*_nature(), nn.Linear(512, batches.ATARI_ACTIONS))
        return self._dqn(network, batches.frame_transitions(), scale=255.0)

    def _dqn(self, network: nn.Layer, columns: batches.Columns, scale: float = 1.0) -> Run:
        import parl
        from parl.algorithms import DQN

        class Model(parl.Model):  # type: ignore[misc]  # of the other PARL
            def __init__(self) -> None:
                super().__init__()
                self.network = network

            def forward(self, obs: Tensor) -> Tensor:
                return self.network(obs / scale)

        algorithm = DQN(Model(), gamma=0.99, lr=1e-3)
        obs, action, reward, next_obs, terminal = columns

        def run(updates: int) -> None:
            for step in range(updates):
                tensors = [paddle.to_tensor(part.astype(np.float32)) for part in (obs, next_obs)]
                column = [paddle.to_tensor(part[:, None]) for part in (action, reward, terminal)]
                float(algorithm.learn(tensors[0], column[0], column[1], tensors[1], column[2]))
                if step % batches.SYNC_EVERY == 0:
                    algorithm.sync_target()

        return run

    def impala_cnn(self) -> Run:
        import parl
        from parl.algorithms import IMPALA

        class Model(parl.Model):  # type: ignore[misc]  # of the other PARL
            def __init__(self) -> None:
                super().__init__()
                self.trunk = nn.Sequential(*_nature())
                self.policy_head, self.value_head = nn.Linear(512, batches.ATARI_ACTIONS), nn.Linear(512, 1)

            def policy(self, obs: Tensor) -> Tensor:
                return self.policy_head(self.trunk(obs / 255.0))

            def value(self, obs: Tensor) -> Tensor:
                return self.value_head(self.trunk(obs / 255.0)).squeeze(1)

        algorithm = IMPALA(
            Model(),
            sample_batch_steps=batches.A2C_STEPS,
            gamma=0.99,
            vf_loss_coeff=0.5,
            clip_rho_threshold=1.0,
            clip_pg_rho_threshold=1.0,
        )
        obs, action, logits, reward, done = batches.fragments()

        learn: Any = algorithm.learn  # of PARL 2.2.1, not ours

        def run(updates: int) -> None:
            for _ in range(updates):
                columns = (obs.astype(np.float32), action, logits, reward, done)
                losses, _ = learn(*(paddle.to_tensor(part) for part in columns), 1e-3, -0.01)
                float(losses.total_loss)

        return run

    def sac_fixed(self) -> Run:
        import parl
        from parl.algorithms import SAC

        width, hidden = batches.CHEETAH_OBS + batches.CHEETAH_ACT, list(batches.CHEETAH_HIDDEN)

        class Model(parl.Model):  # type: ignore[misc]  # of the other PARL
            def __init__(self) -> None:
                super().__init__()
                self.actor_model = _mlp(batches.CHEETAH_OBS, hidden, 2 * batches.CHEETAH_ACT)
                self.critic_model = nn.LayerList([_mlp(width, hidden, 1) for _ in range(2)])

            def policy(self, obs: Tensor) -> tuple[Tensor, Tensor]:
                mean, log_std = self.actor_model(obs).chunk(2, axis=1)
                return mean, log_std.clip(-20.0, 2.0)

            def value(self, obs: Tensor, action: Tensor) -> tuple[Tensor, ...]:
                both = paddle.concat([obs, action], 1)
                return tuple(critic(both) for critic in self.critic_model)

            def get_actor_params(self) -> Any:
                return self.actor_model.parameters()

            def get_critic_params(self) -> Any:
                return self.critic_model.parameters()

        algorithm = SAC(Model(), gamma=0.99, tau=0.005, alpha=0.2, actor_lr=3e-4, critic_lr=3e-4)
        obs, action, reward, next_obs, terminal = batches.cheetah_transitions()
        columns = (obs, action, reward[:, None], next_obs, terminal[:, None])

        def run(updates: int) -> None:
            for _ in range(updates):
                for loss in algorithm.learn(*(paddle.to_tensor(part) for part in columns)):
                    float(loss)

        return run


def _nature() -> list[nn.Layer]:
    """Return the convolutions of Mnih et al. 2015 and the layer behind them."""
    convolutions = nn.Conv2D(4, 32, 8, 4), nn.Conv2D(32, 64, 4, 2), nn.Conv2D(64, 64, 3, 1)
    layers = [layer for one in convolutions for layer in (one, nn.ReLU())]
    return [*layers, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()]


def _mlp(inputs: int, hidden: list[int], outputs: int) -> nn.Sequential:
    sizes = [inputs, *hidden]
    layers = [layer for pair in zip(sizes, hidden, strict=False) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))
