"""Gradients of critics of actions, and of actors by them, without autograd; DDPG and TD3 share them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from parl_core.contracts.batches import Transitions
from parl_torch._chains import Fork, LossReader, Network, Networks
from parl_torch.losses.value import squared_error

__all__ = ["actor_slopes", "critic_networks", "critic_slopes"]


def critic_networks(algorithm: Any) -> Networks:
    """Return the networks of the critics' loss."""
    model, target = algorithm.model, algorithm.target_model
    critics = Network(model, ("value",), True, of_actions=True)
    return critics, Network(target, ("policy",), False), Network(target, ("value",), False, of_actions=True)


def critic_slopes(critics: Fork, batch: Transitions, gamma: float, v_t: Tensor) -> LossReader:
    """Compute the gradients of the critics' mean(weights * (target - value)**2).

    Args:
        critics: One critic, or several with equal targets.
        batch: Tensors.
        gamma: Discount of one step where the batch has none.
        v_t: Values `[batch]` that the target is bootstrapped from.
    """
    rows, weights, r_t = batch.obs.shape[0], batch.weights, batch.reward
    going_on = 1.0 - batch.terminal.to(r_t.dtype)
    target = torch.addcmul(r_t, going_on * (gamma if batch.discount is None else batch.discount), v_t)
    kept = critics.forward(torch.cat((batch.obs, batch.action), dim=1))
    errors = [target - values[-1].reshape(-1) for values in kept[1]]
    each = -2.0 / rows if weights is None else weights * (-2.0 / rows)
    critics.backward(kept, [(error * each).unsqueeze(1) for error in errors])

    def figures() -> tuple[Tensor, dict[str, Tensor]]:
        found = torch.stack(errors)
        loss = sum((squared_error(error, weights) for error in found), start=found.new_zeros(()))
        return loss, {"td_error": found.mean(0)}

    return figures


def actor_slopes(_: Any, networks: Sequence[Fork], batch: Transitions) -> LossReader:
    """Compute the gradients of the actor's -mean(value of its actions); the networks are the actor's and a critic's."""
    actor, (critic,) = networks[0], networks[1].heads
    rows, width = batch.obs.shape
    kept = actor.forward(batch.obs)
    values = critic.forward(torch.cat((batch.obs, kept[1][0][-1]), dim=1))
    slope = critic.backward(values, values[-1].new_full((rows, 1), -1.0 / rows), onward=width)
    actor.backward(kept, (slope,))
    return lambda: (-values[-1].mean(), {})
