"""Tests of the Decision Transformer, its network and acting with it that every backend must pass."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest

from conformance.adapter import FLOAT32, Conformance, Precision, assert_weights_close, random_weights
from conformance.complex_step import gradient, layers
from conformance.models import ACT_DIM, OBS_DIM, WINDOW_SHAPES, of_windows
from conformance.reference import Adam, clip_by_global_norm
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Weights
from parl_core.offline import OfflineDataset
from parl_core.schedules import piecewise
from parl_core.training.offline import OfflineSettings, evaluate_with_target_return, train_offline

__all__ = ["DecisionTransformerConformance"]

_BATCH, _CONTEXT, _LR, _DECAY, _LIMIT = 5, 4, 0.01, 0.1, 0.05
_TINY = {"hidden": 8, "layers": 2, "heads": 2, "max_timestep": 6, "dropout": 0.0}


class DecisionTransformerConformance(Conformance):
    """Suite of DecisionTransformer and of the backend's TrajectoryTransformer."""

    def transformer(self, **sizes: Any) -> Any:
        """The backend's `TrajectoryTransformer`; a subclass gives it."""
        raise NotImplementedError

    def test_three_updates_agree_with_the_reference(self, precision: Precision) -> None:
        rng = np.random.default_rng(1)
        weights = random_weights(rng, WINDOW_SHAPES)
        settings = {"learning_rate": _LR, "warmup_steps": 2, "weight_decay": _DECAY, "max_grad_norm": _LIMIT}
        agent = self.backend.Agent(
            self.algorithm("DecisionTransformer", self.model(of_windows, weights, precision), **settings)
        )
        adam = Adam(_LR)
        for update in range(3):
            batch = _windows(rng)
            inputs = np.concatenate([batch["obs"], batch["return_to_go"], batch["timestep"][..., None]], axis=2)

            def loss(w: Weights, x: Any = inputs, b: Any = batch) -> Any:
                counted = b["mask"][..., None]
                return (((layers(w, ("fc1", "fc2"), x) - b["action"]) ** 2) * counted).sum() / (counted.sum() * ACT_DIM)

            expected = loss(weights)
            rate = _LR * min((update + 1) / 2, 1.0)
            gradients = clip_by_global_norm(gradient(loss, weights, ("fc",)), _LIMIT)
            stepped = adam.update(weights, gradients, rate)
            weights = {name: array - rate * _DECAY * weights[name] for name, array in stepped.items()}
            found = agent.learn(**_cast(batch, precision))
            assert found == pytest.approx(expected.real, abs=precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)

    def test_a_schedule_times_the_warm_up_decides_the_learning_rate_of_each_update(self) -> None:
        rng = np.random.default_rng(6)
        weights = random_weights(rng, WINDOW_SHAPES)
        batches = [_cast(_windows(rng), FLOAT32) for _ in range(3)]
        scheduled, told = (
            self.backend.Agent(
                self.algorithm(
                    "DecisionTransformer", self.model(of_windows, weights), warmup_steps=2, learning_rate=rate
                )
            )
            for rate in (piecewise([(0, 0.1), (2, 0.02)]), 1.0)
        )
        for rate, batch in zip((0.05, 0.1, 0.02), batches, strict=True):
            scheduled.learn(**batch)
            told.learn(**batch, learning_rate=rate)
        assert_weights_close(scheduled.get_weights(), told.get_weights(), 0.0)

    def test_the_network_agrees_with_the_reference_in_its_gradients_too(self, precision: Precision) -> None:
        rng = np.random.default_rng(2)
        model = self.transformer(obs_dim=OBS_DIM, act_dim=ACT_DIM, **_TINY)
        if precision is not FLOAT32:
            model = self.adapter.double(model)
        shapes = {name: array.shape for name, array in model.get_weights(portable=True).items()}
        weights = random_weights(rng, shapes)
        model.set_weights(weights, portable=True)
        batch = _windows(rng)
        agent = self.backend.Agent(
            self.algorithm("DecisionTransformer", model, learning_rate=_LR, warmup_steps=1, weight_decay=0.0)
        )

        predicted = agent.run(agent.alg.predict, *_cast(batch, precision).values())
        np.testing.assert_allclose(predicted, _transformer(weights, **batch)[:, -1], atol=10 * precision.tolerance)

        def loss(w: Weights) -> Any:
            counted = batch["mask"][..., None]
            return (((_transformer(w, **batch) - batch["action"]) ** 2) * counted).sum() / (counted.sum() * ACT_DIM)

        found = agent.learn(**_cast(batch, precision))
        assert found == pytest.approx(loss(weights), abs=10 * precision.tolerance)
        # Of some layers at both ends and in the middle: by those of the others it would have to pass as well.
        names = ("embed_return", "blocks.0.query_key_value", "blocks.1.norm2", "head")
        reached = gradient(loss, weights, names)
        after = agent.alg.model.get_weights(portable=True)
        for name, slope in reached.items():
            large = np.abs(slope) > 1e-4  # where Adam's first step is the sign of the gradient
            np.testing.assert_allclose((weights[name] - after[name])[large], _LR * np.sign(slope)[large], rtol=1e-3)

    def test_an_action_does_not_depend_on_what_comes_after_nor_on_padding(self) -> None:
        rng = np.random.default_rng(3)
        model = self.transformer(obs_dim=OBS_DIM, act_dim=ACT_DIM, **_TINY)
        agent = self.backend.Agent(self.algorithm("DecisionTransformer", model))
        agent.eval()
        batch = _cast(_windows(rng), FLOAT32)
        before = agent.run(model.forward, *batch.values())
        changed = {name: array.copy() for name, array in batch.items()}
        changed["obs"][:, 2:] += 1.0  # later observations
        changed["action"][:, 1:] += 1.0  # the action of step 1 itself, and later ones
        changed["return_to_go"][:, 2:] += 1.0
        after = agent.run(model.forward, *changed.values())
        there = batch["mask"][:, 1] > 0
        np.testing.assert_allclose(after[there, 1], before[there, 1], atol=1e-6)
        assert np.abs(after[:, 2] - before[:, 2]).max() > 1e-4
        padded = {name: array.copy() for name, array in batch.items()}
        gone = batch["mask"] == 0
        assert gone.any()
        for name in ("obs", "action", "return_to_go"):
            padded[name][gone] = 7.0
        np.testing.assert_allclose(agent.run(model.forward, *padded.values())[:, -1], before[:, -1], atol=1e-6)

    @pytest.mark.slow
    def test_it_learns_to_reach_the_return_that_is_asked_for(self) -> None:
        rng = np.random.default_rng(4)
        model = self.transformer(obs_dim=2, act_dim=1, hidden=16, layers=1, max_timestep=8, dropout=0.0)
        algorithm = self.algorithm(
            "DecisionTransformer", model, learning_rate=0.01, warmup_steps=10, context=3, return_scale=4.0
        )
        agent = self.backend.Agent(algorithm, obs_ndim=1)
        train_offline(agent, _logged(rng), OfflineSettings(updates=250, batch_size=64), seed=5)
        reached = [evaluate_with_target_return(agent, Push, target, episodes=4).mean for target in (-2.0, 2.0)]
        assert reached[0] == pytest.approx(-2.0, abs=0.8)
        assert reached[1] == pytest.approx(2.0, abs=0.8)

    def test_discrete_actions_are_learned_as_one_hot_rows_and_played_by_their_largest_number(self) -> None:
        rng = np.random.default_rng(7)
        model = self.transformer(obs_dim=2, act_dim=2, hidden=16, layers=1, max_timestep=4, dropout=0.0)
        algorithm = self.algorithm(
            "DecisionTransformer", model, learning_rate=0.01, warmup_steps=10, context=3, return_scale=4.0
        )
        agent = self.backend.Agent(algorithm, obs_ndim=1)
        train_offline(agent, _one_hot(_logged(rng)), OfflineSettings(updates=100, batch_size=64), seed=5)
        reached = [evaluate_with_target_return(agent, Choice, target, episodes=2).mean for target in (-4.0, 4.0)]
        assert reached == [-4.0, 4.0]

    def test_a_model_for_other_actions_than_the_environment_has_is_refused(self) -> None:
        model = self.transformer(obs_dim=2, act_dim=3, **_TINY)
        agent = self.backend.Agent(self.algorithm("DecisionTransformer", model, context=3))
        with pytest.raises(HyperparameterError, match=r"Discrete\(2.*predicts 3: make it with act_dim=2"):
            evaluate_with_target_return(agent, Choice, 1.0, episodes=1)

    def test_episodes_longer_than_the_model_was_made_for_are_refused(self) -> None:
        model = self.transformer(obs_dim=2, act_dim=1, **_TINY | {"max_timestep": 3})
        agent = self.backend.Agent(self.algorithm("DecisionTransformer", model, context=2))
        message = "has an episode of 4 steps, the model was made for at most max_timestep=3"
        with pytest.raises(HyperparameterError, match=message):
            train_offline(agent, _logged(np.random.default_rng(1)), OfflineSettings(updates=1, batch_size=8))
        with pytest.raises(HyperparameterError, match=f"Push.* {message}"):
            evaluate_with_target_return(agent, Push, 1.0, episodes=1)
        window = {"obs": np.zeros((1, 1, 2)), "action": np.zeros((1, 1, 1)), "return_to_go": np.zeros((1, 1, 1))}
        with pytest.raises(HyperparameterError, match=message):
            agent.learn(**window, timestep=np.array([[3]]), mask=np.ones((1, 1)))

    @pytest.mark.parametrize(
        ("name", "wrong", "message"),
        [
            ("obs", np.nan, r"obs\[3, 0\] must be finite, got nan in row 2"),
            ("action", np.nan, r"action must lie in \[-1, 1\], got nan"),
            ("action", 2.0, r"action must lie in \[-1, 1\], got .*2\.0"),
            ("mask", 0.5, "mask must be 1 for a step and 0 for padding"),
            ("timestep", -1, "timestep must be at least 0, got -1"),
        ],
    )
    def test_numbers_that_no_window_has_are_refused(self, name: str, wrong: float, message: str) -> None:
        agent = self.backend.Agent(self.algorithm("DecisionTransformer", of_windows(self.backend)))
        batch = _cast(_windows(np.random.default_rng(1)), FLOAT32)
        batch[name][2, 3] = wrong
        with pytest.raises(ValueError, match=message):
            agent.learn(**batch)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("learning_rate", 0.0),
            ("warmup_steps", 0),
            ("weight_decay", -1.0),
            ("context", 0),
            ("return_scale", 0.0),
            ("max_grad_norm", 0.0),
        ],
    )
    def test_settings_out_of_range_are_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(HyperparameterError, match=name):
            self.algorithm("DecisionTransformer", of_windows(self.backend), **{name: value})

    def test_an_infinite_limit_lifts_that_of_gradients(self) -> None:
        algorithm = self.algorithm("DecisionTransformer", of_windows(self.backend), max_grad_norm=math.inf)
        loss = self.backend.Agent(algorithm).learn(**_cast(_windows(np.random.default_rng(1)), FLOAT32))
        assert math.isfinite(loss)

    def test_windows_of_different_length_or_without_a_step_are_refused(self) -> None:
        agent = self.backend.Agent(self.algorithm("DecisionTransformer", of_windows(self.backend)))
        batch = _cast(_windows(np.random.default_rng(1)), FLOAT32)
        with pytest.raises(ValueError, match=r"same K, got obs \(5, 4, 4\), action \(5, 3, 3\)"):
            agent.learn(**batch | {"action": batch["action"][:, 1:]})
        with pytest.raises(ValueError, match="every window is padding"):
            agent.learn(**batch | {"mask": 0 * batch["mask"]})
        with pytest.raises(ValueError, match="timestep must hold whole numbers"):
            agent.learn(**batch | {"timestep": batch["timestep"] + 0.5})

    def test_a_model_of_parl_2_is_told_what_is_different_here(self) -> None:
        class OfParl2(self.backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
            def forward(self, states: Any, actions: Any, rewards: Any, returns: Any, timesteps: Any) -> Any:
                raise NotImplementedError

            def get_action(self, *columns: Any) -> Any:
                raise NotImplementedError

        with pytest.raises(
            ModelContractError, match=r"PARL 2\.x.*forward\(obs, action, return_to_go, timestep, mask\)"
        ):
            self.algorithm("DecisionTransformer", OfParl2())

    def test_a_width_that_the_heads_do_not_divide_is_refused(self) -> None:
        with pytest.raises(HyperparameterError, match="hidden must be a multiple of heads=3, got 8"):
            self.transformer(obs_dim=2, act_dim=1, hidden=8, heads=3)


class Push(gymnasium.Env[Any, Any]):
    """Four steps; the reward is the action, so an episode can reach any return in [-4, 4]."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        del options
        super().reset(seed=seed)
        self.t = 0
        return np.array([0.0, 1.0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.array([self.t / 4, 1.0], np.float32), float(action[0]), self.t == 4, False, {}


class Choice(Push):
    """The same, to be pushed to the left or to the right."""

    action_space = gymnasium.spaces.Discrete(2)  # type: ignore[assignment]  # of another kind

    def step(self, action: Any) -> Any:
        return super().step([2.0 * action - 1.0])


def _logged(rng: np.random.Generator, episodes: int = 300) -> OfflineDataset:
    """Episodes of Push, each with one action throughout."""
    action = np.repeat(rng.uniform(-1.0, 1.0, (episodes, 1)), 4, axis=0)
    t = np.tile(np.arange(4), episodes)
    obs, after = (np.stack([(t + i) / 4, np.ones_like(t)], axis=1) for i in (0, 1))
    arrays = {"obs": obs, "action": action, "reward": action[:, 0], "next_obs": after, "terminal": t == 3}
    return OfflineDataset.from_arrays(arrays)


def _one_hot(logged: OfflineDataset) -> OfflineDataset:
    """The same episodes, of the nearest choices."""
    right = (logged.action > 0).astype(np.float32)
    columns = {name: getattr(logged, name) for name in ("obs", "next_obs", "terminal")}
    return OfflineDataset.from_arrays(
        {**columns, "action": np.concatenate([1.0 - right, right], axis=1), "reward": 2.0 * right[:, 0] - 1.0}
    )


def _windows(rng: np.random.Generator) -> dict[str, Any]:
    lengths = np.array([_CONTEXT, _CONTEXT, 3, 2, 1])
    mask = (np.arange(_CONTEXT) >= _CONTEXT - lengths[:, None]).astype(float)
    timestep = np.where(mask > 0, np.cumsum(mask, axis=1) - 1, 0).astype(np.int64)
    shape = (_BATCH, _CONTEXT)
    return {
        "obs": rng.normal(size=(*shape, OBS_DIM)) * mask[..., None],
        "action": rng.uniform(-1.0, 1.0, (*shape, ACT_DIM)) * mask[..., None],
        "return_to_go": rng.normal(size=(*shape, 1)) * mask[..., None],
        "timestep": timestep,
        "mask": mask,
    }


def _cast(batch: dict[str, Any], precision: Precision) -> dict[str, Any]:
    return {name: array if array.dtype.kind == "i" else array.astype(precision.dtype) for name, array in batch.items()}


def _transformer(w: Weights, obs: Any, action: Any, return_to_go: Any, timestep: Any, mask: Any) -> Any:
    batch, steps = mask.shape
    when = w["embed_timestep.weight"][timestep]
    parts = [(return_to_go, "embed_return"), (obs, "embed_obs"), (action, "embed_action")]
    tokens = np.stack([_linear(w, name, values) + when for values, name in parts], axis=2).reshape(batch, 3 * steps, -1)
    tokens = _norm(w, "norm", tokens)
    there = np.repeat(mask > 0, 3, axis=1)
    visible = (np.tril(np.ones((3 * steps, 3 * steps), bool)) & there[:, None, :]) | np.eye(3 * steps, dtype=bool)
    heads = _TINY["heads"]
    for index in range(int(_TINY["layers"])):
        block = f"blocks.{index}."
        split = _linear(w, block + "query_key_value", _norm(w, block + "norm1", tokens))
        query, key, value = split.reshape(batch, 3 * steps, 3, heads, -1).transpose(2, 0, 3, 1, 4)
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
        raised = np.where(visible[:, None], np.exp(scores), 0.0)
        seen = (raised / raised.sum(axis=-1, keepdims=True)) @ value
        tokens = tokens + _linear(w, block + "project", seen.swapaxes(1, 2).reshape(tokens.shape))
        wide = _linear(w, block + "widen", _norm(w, block + "norm2", tokens))
        wide = 0.5 * wide * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (wide + 0.044715 * wide**3)))
        tokens = tokens + _linear(w, block + "narrow", wide)
    of_obs = _norm(w, "last_norm", tokens).reshape(batch, steps, 3, -1)[:, :, 1]
    return np.tanh(_linear(w, "head", of_obs))


def _linear(w: Weights, name: str, values: Any) -> Any:
    return values @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _norm(w: Weights, name: str, values: Any) -> Any:
    centred = values - values.mean(axis=-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return centred / spread * w[f"{name}.weight"] + w[f"{name}.bias"]
