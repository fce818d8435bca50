"""DQN and PPO by hand in eager PyTorch, as fast as a hand can write them.

Parameters are plain tensors, without modules around them; gradients are asked for by name, so that nothing accumulates;
Adam is one call of PyTorch's fused kernel for all parameters, and a target network one call of its foreach kernel.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import batches
import torch
from torch import Tensor
from torch.nn import functional as F

Run = Callable[[int], None]


class Adam:
    """One fused kernel for all parameters."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, eps: float = 1e-8) -> None:
        self._parameters = list(parameters)
        self._means = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._steps = [torch.zeros(()) for _ in self._parameters]
        self._lr, self._eps = lr, eps

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        torch._foreach_add_(self._steps, 1)
        torch._fused_adam_(
            self._parameters,
            list(gradients),
            self._means,
            self._squares,
            [],
            self._steps,
            lr=self._lr,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )


def layers(*sizes: int) -> list[Tensor]:
    """Return weights and biases of dense layers, drawn as `torch.nn.Linear` does."""
    drawn = [torch.nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)]
    return [part.detach().requires_grad_() for layer in drawn for part in (layer.weight, layer.bias)]


class Floor:
    """Only for the small networks, where what a library adds shows most."""

    def dqn(self) -> Run:
        q = layers(batches.OBS_DIM, batches.DQN_HIDDEN, batches.DQN_HIDDEN, batches.ACT_DIM)
        target = [parameter.detach().clone() for parameter in q]
        adam, batch = Adam(q, lr=1e-3), batches.transitions()

        def values(p: list[Tensor], obs: Tensor) -> Tensor:
            hidden = torch.relu_(F.linear(obs, p[0], p[1]))
            return F.linear(torch.relu_(F.linear(hidden, p[2], p[3])), p[4], p[5])

        def run(updates: int) -> None:
            for step in range(updates):
                obs, action, reward, next_obs, terminal = map(torch.from_numpy, batch)
                with torch.no_grad():
                    best = values(target, next_obs).amax(1)
                    value = torch.addcmul(reward, 1.0 - terminal, best, value=0.99)
                loss = F.mse_loss(values(q, obs).gather(1, action[:, None])[:, 0], value)
                adam.step(torch.autograd.grad(loss, q))
                loss.item()
                if step % batches.SYNC_EVERY == 0:
                    with torch.no_grad():
                        torch._foreach_copy_(target, q)

        return run

    def ppo(self) -> Run:
        policy = layers(batches.OBS_DIM, batches.PPO_HIDDEN, batches.PPO_HIDDEN, batches.ACT_DIM)
        critic = layers(batches.OBS_DIM, batches.PPO_HIDDEN, batches.PPO_HIDDEN, 1)
        parameters = [*policy, *critic]
        adam, columns = Adam(parameters, lr=2.5e-4, eps=1e-5), batches.vector_rollout()

        def output(p: list[Tensor], obs: Tensor) -> Tensor:
            hidden = torch.tanh(F.linear(obs, p[0], p[1]))
            return F.linear(torch.tanh(F.linear(hidden, p[2], p[3])), p[4], p[5])

        def run(_: int) -> None:
            tensors = [torch.from_numpy(array) for array in columns.values()]
            for _ in range(batches.EPOCHS):
                order = torch.randperm(batches.ROLLOUT)
                shuffled = [tensor[order].split(batches.MINIBATCH) for tensor in tensors]
                for obs, action, value_old, target, log_prob_old, advantage in zip(*shuffled, strict=True):
                    std, mean = torch.std_mean(advantage)
                    scaled = (advantage - mean) / (std + 1e-8)
                    log_p = torch.log_softmax(output(policy, obs), dim=1)
                    log_ratio = log_p.gather(1, action[:, None])[:, 0] - log_prob_old
                    ratio = log_ratio.exp()
                    gain = torch.min(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled).mean()
                    value = output(critic, obs)[:, 0]
                    near = value_old + (value - value_old).clamp(-0.2, 0.2)
                    error = torch.max((value - target).square(), (near - target).square()).mean()
                    entropy = -(log_p.exp() * log_p).sum() / batches.MINIBATCH
                    loss = 0.25 * error - gain - 0.01 * entropy
                    gradients = torch.autograd.grad(loss, parameters)
                    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
                    torch._foreach_mul_(gradients, torch.clamp(0.5 / (norm + 1e-6), max=1.0))
                    adam.step(gradients)
                    with torch.no_grad():  # the figures that the libraries report
                        (ratio - 1.0 - log_ratio).mean()
                        ((ratio - 1.0).abs() > 0.2).float().mean()

        return run
