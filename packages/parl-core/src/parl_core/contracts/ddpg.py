"""The contract of DDPG."""

from parl_core.contracts.continuous import NoisyActorCritic

__all__ = ["DDPG"]


class DDPG(NoisyActorCritic):
    """Deep deterministic policy gradient for continuous actions (Lillicrap et al. 2015, arXiv:1509.02971, algorithm 1).

        target      = reward + discount * (1 - terminal) * Q'(next_obs, mu'(next_obs))
        critic loss = mean(weights * (Q(obs, action) - target)**2)
        actor loss  = -mean(Q(obs, mu(obs)))                                   (its gradient is the paper's equation 6)
        model'      = (1 - tau) * model' + tau * model

    Deviations from the paper, as in its successors: Gaussian noise explores instead of an Ornstein-Uhlenbeck process,
    and there is neither weight decay nor batch normalisation unless the model has it.

    The model has `policy(obs)`, actions `[batch, act_dim]` in [-1, 1] (end in tanh); `value(obs, action)`, `[batch]` or
    `[batch, 1]`; `get_actor_params()`; and where actor and critic share no parameters, `get_critic_params()` is
    optional.

    Args:
        model: actor and critic; a target model is copied from it.
        gamma: discount of one step, in [0, 1]; default 0.99 (paper, section 7).
        tau: how far the target moves to the model in each step, in (0, 1]; default 0.005 (TD3's; the paper has 0.001).
        actor_lr: learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4
            (Fujimoto's later code; the paper has 1e-4).
        critic_lr: the same of the critic; default 3e-4 (the paper has 1e-3).
        optimizer: optimizers of `parl.optim` or of the framework, `{"actor": ..., "critic": ...}`, each made of the
            parameters that the model lists for it; default Adam. One keeps its own learning rate unless that is given
            here or in a call.
        hyperparas: PARL 1.x's dictionary of these settings.
        device, compile: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range, unknown, or given twice.
        ModelContractError: the model lacks one of its methods.
    """
