"""Tests of lazily shaped layers (`parl.layers.fc(size=...)`) that every backend must pass."""

import copy
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from conformance.adapter import Conformance, random_weights
from conformance.models import OBS_DIM, Q_SHAPES, actor_critic, q_values
from parl_core.errors import HyperparameterError, ModelContractError, WeightsMismatchError
from parl_core.layers import Constant, Normal

__all__ = ["LazyLayersConformance"]


class LazyLayersConformance(Conformance):
    """Suite of `parl.layers`."""

    def test_weights_before_the_first_batch_are_an_error_that_says_what_to_do(self) -> None:
        model = q_values(self.backend)
        with pytest.raises(ModelContractError, match=r"shape of fc1.weight is not known .* pass one through the model"):
            model.get_weights()
        with pytest.raises(ModelContractError, match=r"shape of fc1.weight is not known"):
            _ = model.parameter_names

    def test_the_first_batch_decides_the_shapes(self) -> None:
        model = q_values(self.backend)
        self._run(model)
        assert {name: array.shape for name, array in model.get_weights(portable=True).items()} == Q_SHAPES

    @pytest.mark.parametrize(
        ("kind", "network", "sizes"),
        [("PPO", "ActorCritic", (2,)), ("A2C", "ActorCritic", (2,)), ("SAC", "SquashedActorCritic", (1,))],
    )
    def test_an_agent_that_predicted_can_be_saved_with_what_acting_does_not_run(
        self, kind: str, network: str, sizes: tuple[int, ...], tmp_path: Path
    ) -> None:
        def new_agent() -> Any:
            model = getattr(self.backend.networks, network)(*sizes)
            return self.backend.Agent(getattr(self.backend.algorithms, kind)(model), seed=0)

        agent, other = new_agent(), new_agent()
        agent.predict(np.zeros(OBS_DIM, np.float32))
        agent.save(tmp_path / "agent.ckpt")
        other.restore(tmp_path / "agent.ckpt")
        for name, array in agent.get_weights().items():
            np.testing.assert_array_equal(other.get_weights()[name], array, err_msg=name)

    @pytest.mark.parametrize("first", ["original", "duplicate"])
    def test_a_copy_made_before_the_first_batch_starts_with_equal_weights(self, first: str) -> None:
        original = q_values(self.backend)
        duplicate = copy.deepcopy(original)
        for model in (original, duplicate) if first == "original" else (duplicate, original):
            self._run(model)
        for name, array in original.get_weights().items():
            np.testing.assert_array_equal(array, duplicate.get_weights()[name], err_msg=name)

    def test_two_models_start_with_different_weights(self) -> None:
        one, other = q_values(self.backend), q_values(self.backend)
        self._run(one)
        self._run(other)
        assert not np.array_equal(one.get_weights()["fc1.weight"], other.get_weights()["fc1.weight"])

    def test_the_seed_before_a_model_is_made_decides_its_weights(self) -> None:
        found = []
        for batches_before in (0, 3):
            self.adapter.seed(11)
            model = q_values(self.backend)
            for _ in range(batches_before):
                self._run(q_values(self.backend))  # draws in between do not matter
            self._run(model)
            found.append(model.get_weights())
        for name, array in found[0].items():
            np.testing.assert_array_equal(array, found[1][name], err_msg=name)

    def test_synchronising_models_without_shapes_gives_them_equal_weights(self) -> None:
        source, target = q_values(self.backend), q_values(self.backend)
        source.sync_weights_to(target)
        self._run(target)
        self._run(source)
        for name, array in source.get_weights().items():
            np.testing.assert_array_equal(array, target.get_weights()[name], err_msg=name)

    def test_synchronising_gives_a_target_without_shapes_the_weights(self) -> None:
        source, target = (
            self.model(q_values, random_weights(np.random.default_rng(1), Q_SHAPES)),
            q_values(self.backend),
        )
        source.sync_weights_to(target, decay=0.0)
        for name, array in source.get_weights().items():
            np.testing.assert_array_equal(array, target.get_weights()[name], err_msg=name)

    @pytest.mark.parametrize("ran_in_target", ["nothing", "policy", "value"])
    def test_synchronising_covers_layers_with_and_without_shapes(self, ran_in_target: str) -> None:
        source, target = actor_critic(self.backend), actor_critic(self.backend)
        obs = self._tensor(np.ones((2, OBS_DIM), np.float32))
        source.policy(obs)
        if ran_in_target != "nothing":
            getattr(target, ran_in_target)(obs)
        source.sync_weights_to(target)
        for method in ("policy", "value"):
            expected, found = (self._array(getattr(model, method)(obs)) for model in (source, target))
            np.testing.assert_array_equal(found, expected, err_msg=method)

    def test_weights_that_do_not_fit_leave_the_layers_without_shapes(self) -> None:
        model = q_values(self.backend)
        wrong = {**random_weights(np.random.default_rng(1), Q_SHAPES), "fc2.weight": np.zeros((5, 8))}
        with pytest.raises(WeightsMismatchError, match=r"fc2"):
            model.set_weights(wrong, portable=True)
        self._run(model)
        assert {name: array.shape for name, array in model.get_weights(portable=True).items()} == Q_SHAPES

    def test_the_optimizer_waits_for_the_shapes_and_then_updates_all_weights(self) -> None:
        model = q_values(self.backend)
        agent = self.backend.Agent(self.algorithm("DQN", model, lr=0.01))
        initial = copy.deepcopy(model)
        obs = np.random.default_rng(2).normal(size=(16, OBS_DIM)).astype(np.float32)
        agent.learn(obs, np.arange(16) % 3, np.ones(16), obs, np.zeros(16))
        self._run(initial)
        for name, array in initial.get_weights().items():
            assert not np.array_equal(array, model.get_weights()[name]), name

    @pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.bool_])
    def test_layers_take_whole_numbers_as_what_they_are_worth(self, dtype: type[np.generic]) -> None:
        layers: Any = self.backend.layers
        pixels = np.random.default_rng(3).integers(0, 2, (2, 3, 6, 6))
        for layer in (layers.conv_2d(num_filters=5, filter_size=3), layers.fc(size=4), layers.batch_norm()):
            expected = self._array(layer(self._tensor(pixels.astype(np.float32))))
            np.testing.assert_array_equal(self._array(layer(self._tensor(pixels.astype(dtype)))), expected)

    def test_fc_says_what_to_do_with_the_whole_numbers_of_a_discrete_space(self) -> None:
        layer: Any = cast(Any, self.backend.layers).fc(size=4)
        with pytest.raises(ModelContractError, match=r"more than 1 dimensions, got shape \[3\].*embedding"):
            layer(self._tensor(np.arange(3)))

    @pytest.mark.parametrize(
        ("shape", "axis", "expected"),
        [
            ((2, 3, 4), 0, (1, 24)),
            ((2, 3, 4), 1, (2, 12)),
            ((2, 3, 4), 2, (6, 4)),
            ((2, 3, 4), 3, (24, 1)),
            ((2, 3, 4), 5, (24, 1)),
            ((2, 3, 4), -1, (6, 4)),
            ((5,), 1, (5, 1)),
            ((5,), 2, (5, 1)),
            ((5,), -1, (1, 5)),
            ((), 0, (1, 1)),
            ((), 1, (1, 1)),
        ],
    )
    def test_flatten_counts_its_axis_as_in_a_slice_of_the_shape(
        self, shape: tuple[int, ...], axis: int, expected: tuple[int, int]
    ) -> None:
        layers: Any = self.backend.layers
        numbers = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        found = self._array(layers.flatten(self._tensor(numbers), axis))
        np.testing.assert_array_equal(found, numbers.reshape(expected))

    def test_fc_flattens_images_and_conv_2d_pads(self) -> None:
        layers: Any = self.backend.layers
        convolution = layers.conv_2d(num_filters=5, filter_size=3, stride=1, padding=1, act="relu")
        features = convolution(self._tensor(np.ones((2, 3, 6, 6), np.float32)))
        assert tuple(features.shape) == (2, 5, 6, 6)
        assert tuple(layers.fc(size=4)(features).shape) == (2, 4)

    def test_the_same_weights_and_image_give_the_convolution_worked_out_by_hand(self) -> None:
        layers: Any = self.backend.layers
        base = self.backend.Model

        class Convolution(base):  # type: ignore[valid-type,misc]  # the base is known only at run time
            def __init__(self) -> None:
                self.conv = layers.conv_2d(num_filters=1, filter_size=2, stride=2)

            def forward(self, image: Any) -> Any:
                return self.conv(image)

        model = Convolution()
        filters = np.array([[[[1.0, 2.0], [3.0, 4.0]]]])
        model.set_weights({"conv.weight": filters, "conv.bias": np.array([0.5])}, portable=True)
        image = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
        # First window: 0*1 + 1*2 + 4*3 + 5*4 + 0.5 = 34.5; each step of two columns adds 2*10, of two rows 8*10.
        expected = np.array([[34.5, 54.5], [114.5, 134.5]])
        np.testing.assert_allclose(self._array(model.forward(self._tensor(image)))[0, 0], expected, atol=1e-5)

    def test_an_unknown_activation_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(HyperparameterError, match=r"no activation 'rellu'.*relu"):
            self.backend.layers.fc(size=3, act="rellu")

    @pytest.mark.parametrize("size", [0, -1, 2.5, "3"])
    def test_a_size_that_is_no_positive_whole_number_is_refused(self, size: Any) -> None:
        with pytest.raises(HyperparameterError, match="size must be"):
            self.backend.layers.fc(size=size)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"default_initializer": -0.5}, np.full((2, 3), -0.5)),
            ({"default_initializer": lambda shape: np.arange(6.0).reshape(shape)}, np.arange(6.0).reshape(2, 3)),
            ({"default_initializer": Constant(0.25)}, np.full((2, 3), 0.25)),
            ({"default_initializer": Normal(0.0)}, np.zeros((2, 3))),
            ({"is_bias": True, "dtype": "float64"}, np.zeros((2, 3))),
        ],
        ids=["number", "function", "constant", "normal", "bias"],
    )
    def test_a_parameter_of_the_models_own_begins_with_what_was_asked_for(self, options: Any, expected: Any) -> None:
        parameter = cast(Any, self.backend.layers).create_parameter([2, 3], **options)
        found = self._array(parameter)
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == options.get("dtype", "float32")

    def test_other_parameters_begin_uniformly_within_glorots_limit_and_by_the_seed(self) -> None:
        layers: Any = self.backend.layers
        drawn = []
        for _ in range(2):
            self.adapter.seed(5)
            drawn.append(self._array(layers.create_parameter([40, 60])))
        np.testing.assert_array_equal(drawn[0], drawn[1])
        limit = np.sqrt(6.0 / 100)
        assert np.abs(drawn[0]).max() <= limit
        assert drawn[0].std() == pytest.approx(limit / np.sqrt(3.0), rel=0.05)
        normal = self._array(layers.create_parameter([40, 60], default_initializer=Normal(0.5)))
        assert (normal.mean(), normal.std()) == (pytest.approx(0.0, abs=0.05), pytest.approx(0.5, rel=0.05))
        # A filter [out, in, 3, 3] has nine times the fans of a matrix; a vector's are its length.
        assert np.abs(self._array(layers.create_parameter([4, 8, 3, 3]))).max() <= np.sqrt(6.0 / 108)
        assert np.abs(self._array(layers.create_parameter([300]))).max() <= np.sqrt(6.0 / 600)
        assert self._array(layers.create_parameter([])).shape == ()

    def test_a_parameter_of_the_models_own_is_trained_copied_and_portable(self) -> None:
        layers: Any = self.backend.layers
        base = self.backend.Model

        class Gaussian(base):  # type: ignore[valid-type,misc]  # the base is known only at run time
            def __init__(self) -> None:
                self.mean = layers.fc(size=2)
                self.log_std = layers.create_parameter([2], default_initializer=-0.5)

            def policy(self, obs: Any) -> Any:
                return self.mean(obs), layers.exp(self.log_std)

        algorithm = self.algorithm("PolicyGradient", Gaussian(), continuous_action=True, lr=0.1)
        agent, before = self.backend.Agent(algorithm), copy.deepcopy(algorithm.model)
        obs = np.random.default_rng(1).normal(size=(8, OBS_DIM)).astype(np.float32)
        agent.learn(obs, np.full((8, 2), 3.0, np.float32), np.ones(8, np.float32))
        learned = algorithm.model.get_weights(portable=True)
        assert (learned["log_std"] > -0.45).all()  # actions far from the mean want a larger deviation
        assert "log_std" in algorithm.model.parameter_names
        self._run_policy(before, obs)
        np.testing.assert_array_equal(before.get_weights()["log_std"], np.full(2, -0.5, np.float32))
        before.set_weights(learned, portable=True)
        np.testing.assert_array_equal(before.get_weights()["log_std"], learned["log_std"])

    @pytest.mark.parametrize(
        ("shape", "options", "message"),
        [
            (3, {}, r"shape must list the sizes .* got 3"),
            ([2, 0], {}, r"shape\[1\] must be at least 1, got 0"),
            ([2], {"dtype": "int64"}, r"dtype must be one of float16, float32, float64, got 'int64'"),
            ([2], {"default_initializer": float("nan")}, "default_initializer must be finite, got nan"),
            ([2], {"default_initializer": lambda _: np.zeros(3)}, r"finite numbers of shape \(2,\), got shape \(3,\)"),
            ([1], {"default_initializer": lambda _: [np.inf]}, "got numbers that are not finite"),
            ([1], {"default_initializer": lambda value, block: value}, "must be a number, one of .* raised TypeError"),
        ],
    )
    def test_parameters_that_mean_nothing_are_refused(self, shape: Any, options: Any, message: str) -> None:
        with pytest.raises(HyperparameterError, match=message):
            cast(Any, self.backend.layers).create_parameter(shape, **options)

    def _run_policy(self, model: Any, obs: Any) -> Any:
        return model.policy(self._tensor(obs))

    def _run(self, model: Any) -> Any:
        return model.value(self._tensor(np.ones((2, OBS_DIM), np.float32)))

    def _tensor(self, array: Any) -> Any:
        return self.backend.Algorithm(device="cpu")._tensor(array)

    def _array(self, tensor: Any) -> Any:
        return self.backend.Algorithm(device="cpu")._array(tensor)
