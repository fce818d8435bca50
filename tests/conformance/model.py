"""Tests of `parl.Model` that every backend must pass."""

import copy
from typing import Any

import numpy as np
import pytest

from conformance.adapter import Conformance, random_weights
from conformance.models import OBS_DIM, Q_SHAPES, actor_critic, q_values
from parl_core.errors import HyperparameterError, ModelContractError, WeightsMismatchError
from parl_core.model import Weights

__all__ = ["ModelConformance"]


class ModelConformance(Conformance):
    """Suite of Model; layers without shapes have their own."""

    def test_weights_come_back_as_they_went_in(self) -> None:
        weights = _weights(1)
        found = self.model(q_values, weights).get_weights(portable=True)
        assert list(found) == list(weights)
        for name, array in weights.items():
            np.testing.assert_array_equal(found[name], array.astype(np.float32), err_msg=name)

    def test_weights_are_copies_that_later_changes_do_not_reach(self) -> None:
        model = self.model(q_values, _weights(1))
        kept = model.get_weights()
        before = copy.deepcopy(kept)
        model.set_weights(_weights(2), portable=True)
        for name, array in before.items():
            np.testing.assert_array_equal(kept[name], array, err_msg=name)

    def test_changing_the_arrays_given_does_not_change_the_model(self) -> None:
        weights = _weights(1)
        model = self.model(q_values, weights)
        expected = model.get_weights()
        for array in weights.values():
            array += 1.0
        _assert_same(model.get_weights(), expected)

    def test_a_list_in_the_same_order_is_accepted(self) -> None:
        model, other = self.model(q_values, _weights(1)), self.model(q_values, _weights(2))
        model.set_weights(list(other.get_weights().values()))
        _assert_same(model.get_weights(), other.get_weights())

    def test_a_list_of_another_length_is_refused(self) -> None:
        with pytest.raises(WeightsMismatchError, match=r"has 4 arrays \(fc1.weight, .*\), the list has 1"):
            self.model(q_values, _weights(1)).set_weights([np.zeros(3)])

    def test_a_wrong_shape_is_refused_with_the_name_and_both_shapes_and_changes_nothing(self) -> None:
        model = self.model(q_values, _weights(1))
        before = model.get_weights()
        wrong = {**_weights(2), "fc2.bias": np.zeros(5)}
        with pytest.raises(WeightsMismatchError, match=r"fc2.bias has shape \(5,\), expected \(3,\)"):
            model.set_weights(wrong, portable=True)
        _assert_same(model.get_weights(), before)

    def test_missing_and_unknown_names_are_listed(self) -> None:
        weights = _weights(1)
        weights["fc9.bias"] = weights.pop("fc2.bias")
        with pytest.raises(WeightsMismatchError, match=r"missing fc2.bias; unknown fc9.bias"):
            self.model(q_values, _weights(2)).set_weights(weights, portable=True)

    def test_parameter_names_are_the_attributes_and_the_same_for_all_instances(self) -> None:
        model = self.model(q_values, _weights(1))
        assert model.parameter_names == list(Q_SHAPES)
        assert copy.deepcopy(model).parameter_names == model.parameter_names

    def test_a_deepcopy_has_equal_weights_of_its_own_and_its_own_id(self) -> None:
        model = self.model(q_values, _weights(1))
        duplicate = copy.deepcopy(model)
        _assert_same(duplicate.get_weights(), model.get_weights())
        before = model.get_weights()
        duplicate.set_weights(_weights(2), portable=True)
        _assert_same(model.get_weights(), before)
        assert duplicate.get_model_id() != model.get_model_id()

    @pytest.mark.parametrize(
        ("old", "new"),
        [("get_params", "get_weights"), ("set_params", "set_weights"), ("sync_params_to", "sync_weights_to")],
    )
    def test_a_method_of_parl_1_names_its_successor(self, old: str, new: str) -> None:
        with pytest.raises(AttributeError, match=rf"{old}, which PARL 1.x had, is now {new}"):
            getattr(self.model(q_values, _weights(1)), old)()

    def test_every_instance_has_an_id_that_can_be_set(self) -> None:
        one, other = q_values(self.backend), q_values(self.backend)
        assert one.get_model_id() != other.get_model_id()
        one.set_model_id("mine")
        assert one.get_model_id() == one.model_id == "mine"
        one.model_id = "yours"
        assert one.get_model_id() == "yours"

    @pytest.mark.parametrize("decay", [0.0, 0.3, 1.0])
    def test_sync_blends_with_the_decay(self, decay: float) -> None:
        source, target = self.model(q_values, _weights(1)), self.model(q_values, _weights(2))
        old, new = target.get_weights(), source.get_weights()
        source.sync_weights_to(target, decay=decay)
        for name, array in target.get_weights().items():
            np.testing.assert_allclose(array, decay * old[name] + (1.0 - decay) * new[name], atol=1e-6, err_msg=name)
        _assert_same(source.get_weights(), new)

    def test_sync_includes_the_statistics_of_batch_normalisation(self) -> None:
        source, target = self._normalised(), self._normalised()
        batch = np.random.default_rng(3).normal(2.0, 3.0, size=(64, OBS_DIM)).astype(np.float32)
        self.backend.Algorithm(target, device="cpu").model.forward(self._tensor(np.zeros_like(batch)))
        source.forward(self._tensor(batch))
        found = source.get_weights()
        source.sync_weights_to(target)
        changed = [name for name, array in found.items() if "mean" in name and np.abs(array).max() > 0.01]
        assert changed, f"no running mean among {list(found)}"
        _assert_same(target.get_weights(), found)

    @pytest.mark.parametrize("decay", [-0.1, 1.1])
    def test_a_decay_outside_0_1_is_refused(self, decay: float) -> None:
        source, target = self.model(q_values, _weights(1)), self.model(q_values, _weights(2))
        with pytest.raises(HyperparameterError, match="decay must lie in"):
            source.sync_weights_to(target, decay=decay)

    def test_sync_to_itself_or_to_another_architecture_is_refused(self) -> None:
        model = self.model(q_values, _weights(1))
        with pytest.raises(WeightsMismatchError, match="another model"):
            model.sync_weights_to(model)
        with pytest.raises(WeightsMismatchError, match="weights do not fit"):
            model.sync_weights_to(actor_critic(self.backend))

    def test_super_init_may_be_called_and_takes_an_id(self) -> None:
        base = self.backend.Model

        class Explicit(base):  # type: ignore[valid-type,misc]  # the base is known only at run time
            def __init__(self, layers: Any) -> None:
                super().__init__("named")
                self.fc = layers.fc(size=2)

        assert Explicit(self.backend.layers).get_model_id() == "named"

    def _normalised(self) -> Any:
        layers = self.backend.layers
        base = self.backend.Model

        class Normalised(base):  # type: ignore[valid-type,misc]  # the base is known only at run time
            def __init__(self) -> None:
                self.norm = layers.batch_norm()
                self.fc = layers.fc(size=2)

            def forward(self, obs: Any) -> Any:
                return self.fc(self.norm(obs))

        return Normalised()

    def _tensor(self, array: Any) -> Any:
        return self.backend.Algorithm(device="cpu")._tensor(array)

    @pytest.mark.parametrize("put", [lambda a, b: [a, b], lambda a, b: (a, b), lambda a, b: {"first": a, "second": b}])
    def test_layers_in_a_plain_container_are_refused_by_name(self, put: Any) -> None:
        model = q_values(self.backend)
        layers: Any = self.backend.layers
        model.more = put(layers.fc(size=2), layers.fc(size=2))
        with pytest.raises(ModelContractError, match=r"keeps layers in the plain \w+ `more`.*nn\.\w+List"):
            self.algorithm("DQN", model)

    def test_a_plain_list_of_layers_that_are_attributes_too_is_fine(self) -> None:
        model = q_values(self.backend)
        model.in_order = [model.fc1, model.fc2]
        self.algorithm("DQN", model)

    def test_layers_shared_by_two_attributes_are_one(self) -> None:
        model = q_values(self.backend)
        model.again = model.fc1
        weights = random_weights(np.random.default_rng(1), Q_SHAPES)
        model.set_weights(weights, portable=True)
        assert set(model.get_weights(portable=True)) == set(weights)


def _weights(seed: int) -> Weights:
    return random_weights(np.random.default_rng(seed), Q_SHAPES)


def _assert_same(found: Weights, expected: Weights) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
