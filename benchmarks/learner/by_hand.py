"""The same mathematics by hand in eager PyTorch, without a library around it."""

from collections.abc import Callable

import batches
import torch

Run = Callable[[int], None]


class Floor:
    """Only for the small networks, where what a library adds shows most."""

    def dqn(self) -> Run:
        from torch import nn
        from torch.nn import functional as F

        def network() -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(batches.OBS_DIM, batches.DQN_HIDDEN),
                nn.ReLU(),
                nn.Linear(batches.DQN_HIDDEN, batches.DQN_HIDDEN),
                nn.ReLU(),
                nn.Linear(batches.DQN_HIDDEN, batches.ACT_DIM),
            )

        q, target = network(), network()
        adam = torch.optim.Adam(q.parameters(), lr=1e-3, fused=True)
        batch = batches.transitions()

        def run(updates: int) -> None:
            for step in range(updates):
                obs, action, reward, next_obs, terminal = (torch.from_numpy(array) for array in batch)
                with torch.no_grad():
                    value = reward + 0.99 * (1.0 - terminal) * target(next_obs).amax(1)
                loss = F.mse_loss(q(obs).gather(1, action[:, None])[:, 0], value)
                adam.zero_grad()
                loss.backward()
                adam.step()
                loss.item()
                if step % batches.SYNC_EVERY == 0:
                    target.load_state_dict(q.state_dict())

        return run

    def ppo(self) -> Run:
        from torch import nn

        def network(outputs: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(batches.OBS_DIM, batches.PPO_HIDDEN),
                nn.Tanh(),
                nn.Linear(batches.PPO_HIDDEN, batches.PPO_HIDDEN),
                nn.Tanh(),
                nn.Linear(batches.PPO_HIDDEN, outputs),
            )

        policy, critic = network(batches.ACT_DIM), network(1)
        parameters = [*policy.parameters(), *critic.parameters()]
        adam = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5, fused=True)
        columns = batches.vector_rollout()

        def run(_: int) -> None:
            tensors = [torch.from_numpy(array) for array in columns.values()]
            for _ in range(batches.EPOCHS):
                order = torch.randperm(batches.ROLLOUT)
                shuffled = [tensor[order].split(batches.MINIBATCH) for tensor in tensors]
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
