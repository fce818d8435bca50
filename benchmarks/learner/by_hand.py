"""Algorithms written by hand in eager PyTorch, as fast as possible.

Parameters are plain tensors, without modules around them; gradients are asked for by name, so that nothing accumulates;
Adam is one call of PyTorch's fused kernel for all parameters, and a target network one call of its foreach kernel. The
layers of two critics are one batched product.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import batches
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

Run = Callable[[int], None]


class Adam:
    """Adam as one fused kernel for all parameters."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, eps: float = 1e-8) -> None:
        self._parameters = list(parameters)
        self._means = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._steps = [torch.zeros((), device=parameter.device) for parameter in self._parameters]
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


def layers(*sizes: int, device: str) -> list[Tensor]:
    """Return weights and biases of dense layers, drawn as `torch.nn.Linear` does."""
    drawn = [torch.nn.Linear(inputs, outputs, device=device) for inputs, outputs in pairwise(sizes)]
    return [part.detach().requires_grad_() for layer in drawn for part in (layer.weight, layer.bias)]


def twin_layers(*sizes: int, device: str) -> list[Tensor]:
    """Return weights `[2, inputs, outputs]` and biases `[2, 1, outputs]` of two networks of dense layers."""
    first, second = layers(*sizes, device=device), layers(*sizes, device=device)
    found = []
    for one, other in zip(first, second, strict=True):
        both = torch.stack((one.detach(), other.detach()))
        found.append((both.mT.contiguous() if both.dim() == 3 else both[:, None]).requires_grad_())
    return found


def chain(p: Sequence[Tensor], x: Tensor) -> Tensor:
    """Return the output of two hidden layers and a linear one."""
    hidden = torch.relu_(F.linear(x, p[0], p[1]))
    return F.linear(torch.relu_(F.linear(hidden, p[2], p[3])), p[4], p[5])


def twins(p: Sequence[Tensor], obs: Tensor, action: Tensor) -> Tensor:
    """Return the values `[2, rows]` of two critics."""
    x = torch.cat((obs, action), dim=1).expand(2, -1, -1)
    hidden = torch.relu_(torch.baddbmm(p[1], x, p[0]))
    hidden = torch.relu_(torch.baddbmm(p[3], hidden, p[2]))
    return torch.baddbmm(p[5], hidden, p[4])[:, :, 0]


def copies(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return a target network."""
    return [parameter.detach().clone() for parameter in parameters]


_OBS, _ACT, _TAU, _GAMMA = batches.CHEETAH_OBS, batches.CHEETAH_ACT, 0.005, 0.99
_HIDDEN = batches.CHEETAH_HIDDEN
_LOG_STD_LEAST, _LOG_STD_MOST = -20.0, 2.0


class OnDevice:
    """Base of the handwritten algorithms, with the device of their tensors."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device

    def _tensors(self, arrays: Iterable[NDArray[Any]]) -> list[Tensor]:
        if self._device == "cpu":
            return [torch.from_numpy(array) for array in arrays]
        return [torch.from_numpy(array).to(self._device, non_blocking=True) for array in arrays]


class Floor(OnDevice):
    """Algorithms with networks without convolutions, where the overhead of a library is most visible."""

    def dqn(self) -> Run:
        q = layers(batches.OBS_DIM, batches.DQN_HIDDEN, batches.DQN_HIDDEN, batches.ACT_DIM, device=self._device)
        target, adam, batch = copies(q), Adam(q, lr=1e-3), batches.transitions()

        def run(updates: int) -> None:
            for step in range(updates):
                obs, action, reward, next_obs, terminal = self._tensors(batch)
                with torch.no_grad():
                    best = chain(target, next_obs).amax(1)
                    value = torch.addcmul(reward, 1.0 - terminal, best, value=0.99)
                loss = F.mse_loss(chain(q, obs).gather(1, action[:, None])[:, 0], value)
                adam.step(torch.autograd.grad(loss, q))
                loss.item()
                if step % batches.SYNC_EVERY == 0:
                    with torch.no_grad():
                        torch._foreach_copy_(target, q)

        return run

    def ppo(self) -> Run:
        policy = layers(batches.OBS_DIM, batches.PPO_HIDDEN, batches.PPO_HIDDEN, batches.ACT_DIM, device=self._device)
        critic = layers(batches.OBS_DIM, batches.PPO_HIDDEN, batches.PPO_HIDDEN, 1, device=self._device)
        parameters = [*policy, *critic]
        adam, columns = Adam(parameters, lr=2.5e-4, eps=1e-5), batches.vector_rollout()

        def output(p: list[Tensor], obs: Tensor) -> Tensor:
            hidden = torch.tanh(F.linear(obs, p[0], p[1]))
            return F.linear(torch.tanh(F.linear(hidden, p[2], p[3])), p[4], p[5])

        def run(_: int) -> None:
            tensors = self._tensors(columns.values())
            for _ in range(batches.EPOCHS):
                order = torch.randperm(batches.ROLLOUT, device=self._device)
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
                    with torch.no_grad():  # the metrics that the libraries report
                        (ratio - 1.0 - log_ratio).mean()
                        ((ratio - 1.0).abs() > 0.2).float().mean()

        return run

    def sac(self) -> Run:
        return self._soft_actor_critic(fixed=False)

    def sac_fixed(self) -> Run:
        return self._soft_actor_critic(fixed=True)

    def _soft_actor_critic(self, *, fixed: bool) -> Run:
        actor, critic = (
            layers(_OBS, *_HIDDEN, 2 * _ACT, device=self._device),
            twin_layers(_OBS + _ACT, *_HIDDEN, 1, device=self._device),
        )
        target = copies(critic)
        log_alpha = torch.tensor(math.log(0.2), device=self._device, requires_grad=not fixed)
        adam, adam_critic, adam_alpha = Adam(actor, lr=3e-4), Adam(critic, lr=3e-4), Adam([log_alpha], lr=3e-4)
        batch = batches.cheetah_transitions()

        def sampled(obs: Tensor) -> tuple[Tensor, Tensor]:
            mean, log_std = chain(actor, obs).chunk(2, dim=1)
            log_std = log_std.clamp(_LOG_STD_LEAST, _LOG_STD_MOST)
            noise = torch.randn_like(mean)
            before = torch.addcmul(mean, log_std.exp(), noise)
            squashing = 2.0 * (math.log(2.0) - before - F.softplus(-2.0 * before))
            log_p = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi) - squashing
            return torch.tanh(before), log_p.sum(1)

        def run(updates: int) -> None:
            for _ in range(updates):
                obs, action, reward, next_obs, terminal = self._tensors(batch)
                with torch.no_grad():
                    alpha = log_alpha.exp()
                    next_action, log_p = sampled(next_obs)
                    best = twins(target, next_obs, next_action).amin(0) - alpha * log_p
                    value = torch.addcmul(reward, 1.0 - terminal, best, value=_GAMMA)
                error = (twins(critic, obs, action) - value).square().mean(1).sum()
                adam_critic.step(torch.autograd.grad(error, critic))
                new_action, log_p = sampled(obs)
                loss = (alpha * log_p - twins(critic, obs, new_action).amin(0)).mean()
                adam.step(torch.autograd.grad(loss, actor))
                if not fixed:
                    entropy = -(log_alpha * (log_p.detach() - _ACT).mean())
                    adam_alpha.step(torch.autograd.grad(entropy, [log_alpha]))
                torch._foreach_lerp_(target, [part.detach() for part in critic], _TAU)
                error.item(), loss.item()

        return run

    def td3(self) -> Run:
        actor, critic = (
            layers(_OBS, *_HIDDEN, _ACT, device=self._device),
            twin_layers(_OBS + _ACT, *_HIDDEN, 1, device=self._device),
        )
        target, target_actor = copies(critic), copies(actor)
        adam, adam_critic = Adam(actor, lr=1e-3), Adam(critic, lr=1e-3)
        batch = batches.cheetah_transitions()

        def run(updates: int) -> None:
            for step in range(updates):
                obs, action, reward, next_obs, terminal = self._tensors(batch)
                with torch.no_grad():
                    noise = torch.randn_like(action).mul_(0.2).clamp_(-0.5, 0.5)
                    next_action = torch.tanh(chain(target_actor, next_obs)).add_(noise).clamp_(-1.0, 1.0)
                    best = twins(target, next_obs, next_action).amin(0)
                    value = torch.addcmul(reward, 1.0 - terminal, best, value=_GAMMA)
                error = (twins(critic, obs, action) - value).square().mean(1).sum()
                adam_critic.step(torch.autograd.grad(error, critic))
                error.item()
                if step % 2:
                    loss = -self._first_of(critic, obs, torch.tanh(chain(actor, obs))).mean()
                    adam.step(torch.autograd.grad(loss, actor))
                    with torch.no_grad():
                        torch._foreach_lerp_(target + target_actor, critic + actor, _TAU)
                    loss.item()

        return run

    @staticmethod
    def _first_of(critic: Sequence[Tensor], obs: Tensor, action: Tensor) -> Tensor:
        hidden = torch.cat((obs, action), dim=1)
        for layer in range(0, 4, 2):
            hidden = torch.relu_(torch.addmm(critic[layer + 1][0], hidden, critic[layer][0]))
        return torch.addmm(critic[5][0], hidden, critic[4][0])

    def ddpg(self) -> Run:
        actor, critic = (
            layers(_OBS, *_HIDDEN, _ACT, device=self._device),
            layers(_OBS + _ACT, *_HIDDEN, 1, device=self._device),
        )
        target, target_actor = copies(critic), copies(actor)
        adam, adam_critic = Adam(actor, lr=1e-3), Adam(critic, lr=1e-3)
        batch = batches.cheetah_transitions()

        def run(updates: int) -> None:
            for _ in range(updates):
                obs, action, reward, next_obs, terminal = self._tensors(batch)
                with torch.no_grad():
                    next_action = torch.tanh(chain(target_actor, next_obs))
                    best = chain(target, torch.cat((next_obs, next_action), dim=1))[:, 0]
                    value = torch.addcmul(reward, 1.0 - terminal, best, value=_GAMMA)
                error = F.mse_loss(chain(critic, torch.cat((obs, action), dim=1))[:, 0], value)
                adam_critic.step(torch.autograd.grad(error, critic))
                loss = -chain(critic, torch.cat((obs, torch.tanh(chain(actor, obs))), dim=1)).mean()
                adam.step(torch.autograd.grad(loss, actor))
                with torch.no_grad():
                    torch._foreach_lerp_(target + target_actor, critic + actor, _TAU)
                error.item(), loss.item()

        return run


class WithoutAutograd(OnDevice):
    """DQN and PPO with handwritten gradients: matrix products without autograd."""

    @torch.no_grad()
    def dqn(self) -> Run:
        parameters = layers(
            batches.OBS_DIM, batches.DQN_HIDDEN, batches.DQN_HIDDEN, batches.ACT_DIM, device=self._device
        )
        q = [parameter.detach() for parameter in parameters]
        target, adam, batch = copies(q), Adam(q, lr=1e-3), batches.transitions()
        rows = torch.arange(batches.DQN_BATCH, device=self._device)
        slope = 2.0 / batches.DQN_BATCH

        @torch.no_grad()
        def run(updates: int) -> None:
            for step in range(updates):
                obs, action, reward, next_obs, terminal = self._tensors(batch)
                best = chain(target, next_obs).amax(1)
                value = torch.addcmul(reward, 1.0 - terminal, best, value=_GAMMA)
                first = torch.relu_(torch.addmm(q[1], obs, q[0].t()))
                second = torch.relu_(torch.addmm(q[3], first, q[2].t()))
                values = torch.addmm(q[5], second, q[4].t())
                error = values[rows, action] - value
                at_values = torch.zeros_like(values)
                at_values[rows, action] = error * slope
                at_second = torch.ops.aten.threshold_backward(at_values @ q[4], second, 0)
                at_first = torch.ops.aten.threshold_backward(at_second @ q[2], first, 0)
                gradients = [at_first.t() @ obs, at_first.sum(0), at_second.t() @ first, at_second.sum(0)]
                adam.step([*gradients, at_values.t() @ second, at_values.sum(0)])
                error.square().mean().item()
                if step % batches.SYNC_EVERY == 0:
                    torch._foreach_copy_(target, q)

        return run

    @torch.no_grad()
    def ppo(self) -> Run:
        sizes = batches.OBS_DIM, batches.PPO_HIDDEN, batches.PPO_HIDDEN
        policy = [part.detach() for part in layers(*sizes, batches.ACT_DIM, device=self._device)]
        critic = [part.detach() for part in layers(*sizes, 1, device=self._device)]
        adam, columns = Adam([*policy, *critic], lr=2.5e-4, eps=1e-5), batches.vector_rollout()
        rows = torch.arange(batches.MINIBATCH, device=self._device)

        @torch.no_grad()
        def run(_: int) -> None:
            tensors = self._tensors(columns.values())
            for _ in range(batches.EPOCHS):
                order = torch.randperm(batches.ROLLOUT, device=self._device)
                shuffled = [tensor[order].split(batches.MINIBATCH) for tensor in tensors]
                for obs, *data in zip(*shuffled, strict=True):
                    outputs, values = tanh_chain(policy, obs), tanh_chain(critic, obs)
                    by_logits, by_value = ppo_slopes(rows, outputs[-1], values[-1][:, 0], *data)
                    gradients = [*tanh_gradients(policy, obs, outputs, by_logits)]
                    gradients += tanh_gradients(critic, obs, values, by_value[:, None])
                    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
                    torch._foreach_mul_(gradients, torch.clamp(0.5 / (norm + 1e-6), max=1.0))
                    adam.step(gradients)

        return run


def tanh_chain(p: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """Return the outputs of two hidden layers and a linear one."""
    first = torch.addmm(p[1], x, p[0].t()).tanh_()
    second = torch.addmm(p[3], first, p[2].t()).tanh_()
    return [first, second, torch.addmm(p[5], second, p[4].t())]


def tanh_gradients(p: Sequence[Tensor], x: Tensor, outputs: Sequence[Tensor], by_output: Tensor) -> list[Tensor]:
    """Return the gradients by the parameters of `tanh_chain`, given the gradient by its output."""
    first, second, _ = outputs
    at_second = torch.ops.aten.tanh_backward(by_output @ p[4], second)
    at_first = torch.ops.aten.tanh_backward(at_second @ p[2], first)
    found = [at_first.t() @ x, at_first.sum(0), at_second.t() @ first, at_second.sum(0)]
    return [*found, by_output.t() @ second, by_output.sum(0)]


def ppo_slopes(
    rows: Tensor,
    logits: Tensor,
    value: Tensor,
    action: Tensor,
    value_old: Tensor,
    target: Tensor,
    log_prob_old: Tensor,
    advantage: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the loss of `Floor.ppo` by logits and values, and compute the reported metrics."""
    std, mean = torch.std_mean(advantage)
    scaled = (advantage - mean) / (std + 1e-8)
    log_p = torch.log_softmax(logits, dim=1)
    p = log_p.exp()
    log_ratio = log_p[rows, action] - log_prob_old
    ratio = log_ratio.exp()
    gain, clipped = ratio * scaled, ratio.clamp(0.8, 1.2) * scaled
    by_log_prob = torch.where(gain <= clipped, gain, 0.0) / len(rows)
    information = log_p * p
    entropy = -information.sum(1, keepdim=True)
    by_logits = torch.addcmul(information, p, entropy).mul_(0.01 / len(rows)).addcmul_(p, by_log_prob[:, None])
    by_logits[rows, action] -= by_log_prob
    error, near = value - target, value_old + (value - value_old).clamp(-0.2, 0.2) - target
    squares, nearer = error.square(), near.square()
    by_value = torch.where(squares >= nearer, error, 0.0) * (0.5 / len(rows))
    value_loss = torch.maximum(squares, nearer).mean()
    0.25 * value_loss - torch.minimum(gain, clipped).mean() - 0.01 * entropy.mean()
    (ratio - 1.0 - log_ratio).mean()
    ((ratio - 1.0).abs() > 0.2).float().mean()
    return by_logits, by_value
