"""The contracts of MAPPO and IPPO: PPO for several agents, with critics of the global state or of the agents' inputs.

joint observations ──> policy: logits of each agent ──> actions `[batch, agents]`
                  └──> value:  one number per agent, in units of PopArt ──> denormalised ──> GAE of each agent
"""

from collections.abc import Mapping
from math import sqrt
from typing import Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from parl_core._nested import holds_tensors
from parl_core.checks import check_fraction, check_positive, for_team_of
from parl_core.contracts._base import RolloutSettings, Scheduled
from parl_core.contracts.actions import ActionKind, check_mask, check_possible, mask_of
from parl_core.contracts.batches import Rollout, TeamRollout, learns_from
from parl_core.contracts.ppo import PPO
from parl_core.errors import ModelContractError
from parl_core.model import Model

__all__ = ["IPPO", "MAPPO", "PopArt"]


class PopArt:
    """Running mean and deviation of a critic's targets, which normalise the units in which it learns.

    PopArt (van Hasselt et al. 2016, arXiv:1602.07714, section 2): targets are shifted and scaled to mean 0 and
    deviation 1, and when these change, the critic's last layer is adjusted so that its values stay the same. Averages
    decay exponentially and are corrected for their start at zero.

    Args:
        beta: The share of the averages that an update keeps, in [0, 1].
        eps: Smallest deviation.
    """

    def __init__(self, beta: float = 0.99, eps: float = 1e-2) -> None:
        self._beta, self._eps = check_fraction("beta", beta), check_positive("eps", eps)
        self._sums = np.zeros(3)  # decayed sums: of weights, of targets, of their squares

    @property
    def has_targets(self) -> bool:
        """Return whether there was an update."""
        return bool(self._sums[0])

    @property
    def mean(self) -> float:
        """Return the mean of the targets; 0 before the first update."""
        return float(self._sums[1] / self._sums[0]) if self._sums[0] else 0.0

    @property
    def std(self) -> float:
        """Return the deviation of the targets; 1 before the first update."""
        if not self._sums[0]:
            return 1.0
        return max(sqrt(max(self._sums[2] / self._sums[0] - self.mean**2, 0.0)), self._eps)

    def update(self, targets: NDArray[Any]) -> tuple[float, float]:
        """Add targets to the statistics, and return the change from the old units to the new ones.

        Returns:
            (scale, shift): `new = scale * old + shift`.
        """
        mean, std = self.mean, self.std
        found = targets.astype(np.float64)
        self._sums = self._beta * self._sums + (1.0 - self._beta) * np.array([1.0, found.mean(), (found**2).mean()])
        return std / self.std, (mean - self.mean) / self.std

    def normalised(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values in the critic's units."""
        return ((values - self.mean) / self.std).astype(values.dtype)

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"sums": self._sums.tolist()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned."""
        self._sums = np.array(state["sums"], np.float64)


class MAPPO(PPO):
    """Multi-agent PPO (Yu et al. 2022, arXiv:2103.01955): a policy of each agent, and a critic of the global state.

        ratio = exp(log pi(a|o) - log pi_old(a|o))
        policy loss = -mean(min(ratio * adv, clip(ratio, 1 - clip, 1 + clip) * adv))
        value loss = mean(max(h(v - R), h(v_old + clip(v - v_old, -clip, clip) - R)))
        loss = policy loss + value_loss_coef * value loss - entropy_coef * entropy

    with means over agents that acted, h(e) = e**2 / 2 up to huber_delta and huber_delta (|e| - huber_delta / 2) beyond,
    values and returns in PopArt's units, and advantages, of each agent by its own rewards, normalised over the rollout.

    Deviations from the paper, or its code: PopArt's averages take each rollout once, not each minibatch; the old value
    of the clipped loss is in the present units; the first rollout's units are adopted without a change of the critic,
    because otherwise its values would be far off for many rollouts, each of which moves them by clip_param at most.

    It acts on joint observations (`parl_core.env.joint.JointEnv`) `[batch, ...]` by name. The model has
    `policy(obs)`, logits `[batch, agents, act_dim]`, or for continuous actions the pair (mean, std); and `value(obs)`,
    `[batch, agents, 1]`; for PopArt `value_head` is its last linear layer. The model decides whether agents share
    weights: `parl.networks.for_team(..., "central")` makes one, with `groups=` and `memory=`. Where continuous actions
    of some agents have fewer numbers, its `action_kind` marks the padding (`ActionKind.used`).

    Args:
        model: Policy and value networks.
        clip_param: Clip range of ratio and value, above 0; default 0.2 (paper, table 7).
        value_loss_coef: The weight of the value loss; default 1 (paper).
        entropy_coef: The weight of the entropy bonus, at least 0; default 0.01 (paper).
        initial_lr: Learning rate of Adam; default 7e-4 (paper, MPE).
        huber_delta: The error from which the value loss is linear; default 10 (paper).
        eps: Adam's epsilon; default 1e-5 (paper).
        max_grad_norm: Limit of the gradients' global norm, `math.inf` for none; default 10 (paper).
        use_popart: Whether values and returns are normalised by PopArt; default True.
        use_value_active_masks: Whether agents that have left are excluded from the value loss; the policy's loss always
            excludes them.
        use_clipped_value_loss: Whether the value's step is clipped; default True.
        continuous_action: Whether the policy is a Gaussian; default: that of the model (`action_kind`), else False.
        optimizer: As in `PPO`.
        device: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range.
        ModelContractError: The model lacks `policy` or `value`, or with PopArt a `value_head`.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        **PPO.DEFAULTS,
        "clip_param": 0.2,
        "value_loss_coef": 1.0,
        "initial_lr": 7e-4,
        "max_grad_norm": 10.0,
        "norm_adv": False,
    }
    TEAM: ClassVar[str | None] = "central"
    CENTRAL: ClassVar[bool] = True
    """True if the critic gets the global state."""

    def __init__(
        self,
        model: Model,
        clip_param: Scheduled | None = None,
        value_loss_coef: float | None = None,
        entropy_coef: Scheduled | None = None,
        initial_lr: Scheduled | None = None,
        huber_delta: float = 10.0,
        eps: float | None = None,
        max_grad_norm: float | None = None,
        use_popart: bool = True,
        use_value_active_masks: bool = True,
        *,
        use_clipped_value_loss: bool = True,
        continuous_action: bool | None = None,
        optimizer: Any = None,
        device: str = "auto",
    ) -> None:
        self.huber_delta = check_positive("huber_delta", huber_delta)
        self.use_popart, self.use_value_active_masks = bool(use_popart), bool(use_value_active_masks)
        super().__init__(
            model,
            clip_param,
            value_loss_coef,
            entropy_coef,
            initial_lr,
            eps,
            max_grad_norm,
            use_clipped_value_loss,
            continuous_action=continuous_action,
            optimizer=optimizer,
            device=device,
        )
        # The model's kind is that of joint actions; a row of the policy belongs to one agent.
        self._used = self.actions.used_array() if self.continuous_action else None
        self.actions = ActionKind(continuous=self.continuous_action)
        self.popart = PopArt()
        if self.use_popart and not hasattr(model, "value_head"):
            raise ModelContractError(
                f"{type(model).__name__} has no value_head, the critic's last layer, which PopArt "
                "rescales: call it self.value_head, or give use_popart=False; or make a model by "
                f"{for_team_of(str(self.TEAM))}"
            )

    def predict(self, obs: Any, action_mask: Any = None) -> Any:
        """Return the most likely actions, int64 `[batch, agents]`, or means `[batch, agents, act_dim]`."""
        with self._no_gradients():
            output = self._run(self.model.policy, self._seen_by_actors(obs))
            return self._by_agent(self._policy(output, obs, action_mask).mode(), output)

    def sample(self, obs: Any, action_mask: Any = None, *, deterministic: bool | None = None) -> Any:
        """Draw actions.

        Args:
            obs: Joint observations.
            action_mask: bool `[batch, agents, act_dim]`, True where an action is possible.
            deterministic: An argument of PARL 2.x; refused.

        Returns:
            (value, action as in `predict`, log-probability, entropy), `[batch, agents]` except for actions; values in
            the units of rewards.

        Raises:
            TypeError: `deterministic` is given, or the observations are not joint ones.
        """
        if deterministic is not None:
            raise TypeError(
                "sample(cent_obs, obs, deterministic=True) of PARL 2.x becomes predict(joint_obs), "
                "deterministic=False becomes sample(joint_obs)"
            )
        with self._no_gradients():
            output, value = self._policy_and_value(obs)
            policy = self._policy(output, obs, action_mask)
            action = policy.sample()
            found = (self._in_rewards(value), action, policy.logp(action), policy.entropy())
            return tuple(self._by_agent(part, output) for part in found)

    def value(self, obs: Any) -> Any:
        """Return values `[batch, agents]` in the units of rewards."""
        with self._no_gradients():
            value = self._run(self.model.value, self._seen_by_critics(obs))
            return self._in_rewards(value.reshape([value.shape[0], -1]))

    @learns_from(
        TeamRollout,
        names=("obs", "action", "value", "return_", "log_prob", "advantage"),
        settings=("lr",),
        keywords=("clip", "entropy_coef", "action_mask", "active"),
    )
    def learn(
        self, batch: Rollout, lr: float | None = None, *, clip: float | None = None, entropy_coef: float | None = None
    ) -> Any:
        """Take one step on a minibatch, with the given advantages; PopArt's averages do not change.

        Args:
            batch: Tensors; values and returns in the units of rewards.
            lr: Learning rate of this step; default the constructor's.
            clip: Clip range of this step; default the constructor's.
            entropy_coef: The weight of the entropy bonus in this step; default: the constructor's.

        Returns:
            (value_loss, policy_loss, entropy), detached scalars, the first in PopArt's units.
        """
        mean, std = self.popart.mean, self.popart.std
        units = {name: (getattr(batch, name) - mean) / std for name in ("value", "return_")}
        figures = self.learn_minibatch(batch.made(**{**batch.__dict__, **units}), lr, clip, entropy_coef)
        return figures["value_loss"], figures["policy_loss"], figures["entropy"]

    def learn_rollout(
        self, batch: Rollout, *, rng: np.random.Generator, **settings: Unpack[RolloutSettings]
    ) -> dict[str, float]:
        """Learn several epochs from one rollout, as `PPO.learn_rollout` does.

        Args:
            batch: The rollout, a `TeamRollout` of arrays; values and returns in the units of rewards.
            rng: The generator that draws the permutations.
            settings: As in `PPO.learn_rollout`, whose 10 epochs are the paper's for MPE; `minibatch_size` counts steps
                of the team; default: all of them (paper: 1 minibatch).

        Returns:
            As `PPO.learn_rollout`; value_loss is in PopArt's units.

        Raises:
            ModelContractError: With PopArt, `value_head` is not one linear layer with a bias.
        """
        if holds_tensors(batch.action):
            raise ValueError(f"{type(self).__name__}.learn_rollout takes arrays, got tensors: learn takes those")
        batch = self.check_batch(batch)
        active = batch.active != 0
        return_, value = batch.return_, batch.value
        if self.use_popart:
            has_targets = self.popart.has_targets
            if not has_targets:
                self._check_head()
            scale, shift = self.popart.update(return_[active] if active.any() else return_)
            if has_targets:  # without earlier updates, the initial values are as good in the new units
                self._rescale(scale, shift)
                value = self.popart.normalised(value)
            return_ = self.popart.normalised(return_)
        acted = batch.advantage[active] if active.any() else batch.advantage
        advantage = (batch.advantage - acted.mean()) / (acted.std() + 1e-5)
        if settings.get("minibatch_size") is None:
            settings["minibatch_size"] = len(batch)
        batch = batch.made(**{**batch.__dict__, "return_": return_, "value": value, "advantage": advantage})
        return super().learn_rollout(batch, rng=rng, **settings)

    def check_batch(self, batch: Rollout) -> Rollout:
        """Return a batch of arrays with actions and masks that fit the policy, and with `active` if it was left out.

        Raises:
            ValueError: Actions or masks do not fit.
        """
        batch = self._fitted(batch)
        action = np.asarray(batch.action)
        dimensions = 3 if self.continuous_action else 2
        if action.ndim != dimensions or action.dtype.kind not in ("fiu" if self.continuous_action else "iu"):
            wanted = "[n, agents, act_dim]" if self.continuous_action else "[n, agents] of whole numbers"
            raise ValueError(f"action must have shape {wanted}, got {action.dtype} {action.shape}")
        mask = None if self.continuous_action else mask_of(batch.obs, batch.action_mask)
        if mask is not None:
            mask = check_mask(mask)
            check_possible(action.reshape(-1), mask.reshape(-1, mask.shape[-1]))
        return batch.made(**{**batch.__dict__, "action": action, "action_mask": mask})

    def check_policy(self, obs: Any) -> None:
        """Reject a policy for continuous actions that does not return valid Gaussians, as `PPO` does."""
        whole = self._one_pass or self.remembers  # the critics use the memory as well
        super().check_policy(self._seen_by_critics(obs) if whole else self._seen_by_actors(obs))

    def _fitted(self, batch: Rollout) -> TeamRollout:
        return TeamRollout.of(super()._fitted(batch), batch.advantage)

    def _policy_and_value(self, obs: Any) -> tuple[Any, Any]:
        """Return the policy's output, and values `[batch * agents]` in PopArt's units."""
        if self._one_pass:
            output, value = self._run(self.model.policy_and_value, self._seen_by_critics(obs))
        else:
            output = self._run(self.model.policy, self._seen_by_actors(obs))
            value = self._run(self.model.value, self._seen_by_critics(obs))
        return output, value.reshape([-1])

    def _policy(self, output: Any, obs: Any, mask: Any) -> Any:
        """Return the distribution of the actions of all agents, one row each."""
        mask = mask_of(obs, mask)
        if isinstance(output, tuple):
            rows: Any = tuple(_rows(part) if len(part.shape) == 3 else part for part in output)
        else:
            rows = _rows(output)
        if self._used is not None:  # some agents have actions with fewer numbers
            rows = (*rows, _rows(output[0].detach() * 0.0 + self._tensor(self._used)))
        return self._distribution(rows, self.actions, None if mask is None or self.continuous_action else _rows(mask))

    def _by_agent(self, rows: Any, output: Any) -> Any:
        """Return rows of all agents as `[batch, agents, ...]`."""
        agents = (output[0] if isinstance(output, tuple) else output).shape[1]
        return rows.reshape([-1, agents, *rows.shape[1:]])

    def _in_rewards(self, value: Any) -> Any:
        return value * self.popart.std + self.popart.mean if self.use_popart else value

    def _seen_by_actors(self, obs: Any) -> Any:
        return _without_state(obs)

    def _seen_by_critics(self, obs: Any) -> Any:
        return obs if self.CENTRAL else _without_state(obs)

    def _check_head(self) -> None:
        """Refuse a head whose values would change with the units: all that `_rescale` finds has to be last layers."""
        sizes = {name: a.size for name, a in self.model.get_weights().items() if name.startswith("value_head.")}
        biases = [size for name, size in sizes.items() if name.endswith("bias")]
        if len(set(biases)) != 1 or len(sizes) != 2 * len(biases):
            raise ModelContractError(
                f"value_head of {type(self.model).__name__} has the parameters {', '.join(sizes) or 'none'}: PopArt "
                "rescales the critic's last layer, a linear one with a bias; call that one alone self.value_head, or "
                "give use_popart=False"
            )

    def _rescale(self, scale: float, shift: float) -> None:
        """Rescale the critic's last layers, so that values in rewards' units stay the same."""
        weights = self.model.get_weights()
        for name, array in weights.items():
            if name.startswith("value_head."):
                weights[name] = (array * scale + (shift if name.endswith("bias") else 0.0)).astype(array.dtype)
        self.model.set_weights(weights)


class IPPO(MAPPO):
    """Independent PPO (de Witt et al. 2020, arXiv:2011.09533): `MAPPO` whose critics get only their agents' inputs.

    Arguments, losses and loop are MAPPO's; the models' `value` gets joint observations without the global state.
    `parl.networks.for_team(..., "independent")` makes one.
    """

    TEAM: ClassVar[str | None] = "independent"
    CENTRAL: ClassVar[bool] = False


def _rows(array: Any) -> Any:
    """Return `[batch, agents, ...]` as one row per agent."""
    return array.reshape([-1, *array.shape[2:]])


def _without_state(obs: Any) -> Any:
    if not isinstance(obs, Mapping):
        raise TypeError(
            "MAPPO and IPPO act on joint observations, dictionaries with obs and state as parl.env.JointEnv gives, got "
            f"{type(obs).__name__}: sample(cent_obs, obs) of PARL 2.x becomes sample(joint_obs)"
        )
    return {name: part for name, part in obs.items() if name != "state"}
