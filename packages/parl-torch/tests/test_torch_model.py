"""`parl.Model` with PyTorch's own layers."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from parl_core._small_networks import Parts
from parl_core.errors import WeightsMismatchError
from parl_torch import layers
from parl_torch.model import Model


class Plain(Model):
    def __init__(self) -> None:  # no super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.norm(self.linear(inputs)) * self.scale
        return output


class Lazy(Model):
    def __init__(self) -> None:
        self.fc = layers.fc(size=2)
        self.norm = layers.batch_norm()

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.norm(self.fc(inputs))
        return output


def test_it_is_an_nn_module_with_everything_that_belongs_to_one() -> None:
    model = Plain()
    assert isinstance(model, nn.Module)
    assert [name for name, _ in model.named_parameters()] == model.parameter_names
    assert set(model.state_dict()) == set(model.get_weights())
    assert model.double().get_weights()["scale"].dtype == np.float64


def test_a_batch_counter_is_among_portable_weights_and_stays_where_a_file_of_paddle_has_none() -> None:
    model, other = Plain(), Plain()
    model(torch.randn(8, 3))
    portable = model.get_weights(portable=True)
    other.set_weights(portable, portable=True)
    assert other.get_weights()["norm.num_batches_tracked"] == 1
    del portable["norm.num_batches_tracked"]
    third = Plain()
    third.set_weights(portable, portable=True)
    found = third.get_weights()
    assert found["norm.num_batches_tracked"] == 0
    np.testing.assert_array_equal(found["norm.running_mean"], portable["norm.running_mean"])


def test_portable_weights_have_the_batch_counter_that_cumulative_averages_are_computed_with() -> None:
    model, other = Plain(), Plain()
    for one in (model, other):
        one.norm.momentum = None
    model(torch.randn(8, 3))
    other.set_weights(model.get_weights(portable=True), portable=True)
    rows = torch.randn(8, 3)
    for one in (model, other):
        one(rows)
    np.testing.assert_array_equal(other.get_weights()["norm.running_mean"], model.get_weights()["norm.running_mean"])


class Layers(Model):
    def __init__(self) -> None:
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)


def test_weights_are_taken_and_given_without_a_look_at_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Layers()
    for _ in range(2):
        model.set_weights(model.get_weights())
    monkeypatch.setattr(nn.Module, "state_dict", lambda *_, **__: pytest.fail("all layers are looked through"))
    weights = {name: array + 1.0 for name, array in model.get_weights().items()}
    for array in weights.values():
        array.flags.writeable = False
    model.set_weights(weights)
    found = model.get_weights()
    for name, tensor in model.named_parameters():
        np.testing.assert_array_equal(tensor.detach(), weights[name])
        np.testing.assert_array_equal(found[name], weights[name])
        found[name][...] = 0.0  # a copy
    np.testing.assert_array_equal(model.first.bias.detach(), weights["first.bias"])


def test_lists_and_float64_are_taken_without_a_second_look_at_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Layers()
    for _ in range(2):
        before = model.get_weights()
    monkeypatch.setattr(Parts, "__init__", lambda *_, **__: pytest.fail("all layers are looked through"))
    for weights in ([2.0 * array for array in before.values()], {k: v.astype(np.float64) for k, v in before.items()}):
        model.set_weights(weights)
        expected = weights if isinstance(weights, list) else list(weights.values())
        for found, array in zip(model.get_weights().values(), expected, strict=True):
            np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "second", nn.Linear(4, 2)),
        lambda model: setattr(model.first.weight, "data", torch.ones(4, 3)),
        lambda model: setattr(model.first.weight, "data", model.first.weight.data[:2]),
        lambda model: setattr(model.first.bias, "data", model.first.bias.data[:2]),
        lambda model: model.register_buffer("more", torch.ones(2)),
        lambda model: model.double(),
    ],
    ids=["layer", "memory", "rows", "entries", "buffer", "dtype"],
)
def test_weights_of_models_that_change_are_those_they_have_then(change: Any) -> None:
    model = Layers()
    for _ in range(3):
        model.set_weights(model.get_weights())
    change(model)
    found = model.get_weights()
    assert found.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(found[name], tensor)
    model.set_weights({name: 2.0 * array for name, array in found.items()})
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(2.0 * found[name], tensor)


def test_weights_that_a_layer_computes_when_it_is_asked_are_computed_each_time() -> None:
    class Doubled(nn.Linear):
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[f"{prefix}doubled"] = 2.0 * self.bias.detach()

    model = Layers()
    model.second = Doubled(4, 2)
    for value in (1.0, 3.0, 5.0):
        nn.init.constant_(model.second.bias, value)
        np.testing.assert_array_equal(model.get_weights()["second.doubled"], [2.0 * value] * 2)


def test_weights_that_do_not_fit_are_refused_by_models_that_have_taken_some() -> None:
    model = Layers()
    for _ in range(3):
        model.set_weights(model.get_weights())
    before = model.get_weights()
    with pytest.raises(WeightsMismatchError, match=r"first\.bias has shape \(5,\), expected \(4,\)"):
        model.set_weights({**before, "first.bias": np.zeros(5, np.float32)})
    with pytest.raises(WeightsMismatchError, match=r"missing first\.bias"):
        model.set_weights({name: array for name, array in before.items() if name != "first.bias"})
    for name, array in model.get_weights().items():
        np.testing.assert_array_equal(array, before[name])
    other = copy.deepcopy(model)
    other.set_weights({name: array + 1.0 for name, array in before.items()})
    np.testing.assert_array_equal(model.get_weights()["first.bias"], before["first.bias"])
    assert pickle.loads(pickle.dumps(model)).get_weights().keys() == before.keys()


def test_sync_copies_counters_and_blends_statistics() -> None:
    source, target = Plain(), Plain()
    source(torch.randn(8, 3) + 5.0)
    old, new = target.get_weights(), source.get_weights()
    source.sync_weights_to(target, decay=0.5)
    found = target.get_weights()
    assert found["norm.num_batches_tracked"] == 1
    expected = 0.5 * (old["norm.running_mean"] + new["norm.running_mean"])
    np.testing.assert_allclose(found["norm.running_mean"], expected, atol=1e-6)


def test_models_survive_pickling_with_and_without_shapes() -> None:
    for used in (False, True):
        model = Lazy()
        if used:
            model(torch.randn(4, 3))
        twin = pickle.loads(pickle.dumps(model))
        inputs = torch.randn(4, 3)
        torch.testing.assert_close(twin(inputs), model(inputs))


def test_layers_without_shapes_move_to_the_dtype_asked_for() -> None:
    model = Lazy().double()
    assert model(torch.randn(4, 3).double()).dtype == torch.float64
    assert {array.dtype for array in model.get_weights().values()} == {np.dtype(np.float64)}


def test_a_deepcopy_of_a_model_with_shapes_shares_nothing() -> None:
    model = Lazy()
    model(torch.randn(4, 3))
    duplicate = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in duplicate.parameters():
            parameter.add_(1.0)
    np.testing.assert_array_equal(model.get_weights()["fc.bias"] + 1.0, duplicate.get_weights()["fc.bias"])


def test_bfloat16_weights_are_given_as_float32_and_taken_back() -> None:
    model = Plain().bfloat16()
    weights = model.get_weights()
    assert weights["linear.weight"].dtype == np.float32
    model.set_weights(weights)
    np.testing.assert_array_equal(model.get_weights()["linear.weight"], weights["linear.weight"])


def test_a_target_of_another_kind_is_refused() -> None:
    with pytest.raises(WeightsMismatchError, match=r"needs a parl\.Model of the same backend"):
        Plain().sync_weights_to(nn.Linear(3, 2))  # type: ignore[arg-type]  # that is the mistake


def test_implements_sees_methods_and_layers_but_not_what_is_inherited() -> None:
    class Valued(Model):
        def __init__(self) -> None:
            self.value = layers.fc(size=1)

    model = Valued()
    assert model.implements("value")
    assert not model.implements("forward")
    assert not model.implements("policy")
    assert Plain().implements("forward")


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (layers.fc(4, act="relu"), (8, 3)),
        (layers.conv_2d(4, 3, act="relu"), (8, 3, 5, 5)),
        (layers.batch_norm(act="relu"), (8, 3)),
    ],
    ids=["fc", "conv_2d", "batch_norm"],
)
def test_an_activation_in_place_leaves_the_layer_s_input_and_its_gradients_alone(
    layer: Any, shape: tuple[int, ...]
) -> None:
    inputs = torch.randn(shape, requires_grad=True)
    before = inputs.detach().clone()
    outputs = layer(inputs)
    weights = (inputs, *layer.parameters())
    found = torch.autograd.grad(outputs.square().sum(), weights)
    plain = torch.relu(layer.compute(inputs))
    torch.testing.assert_close(inputs.detach(), before, rtol=0, atol=0)
    torch.testing.assert_close(outputs, plain)
    torch.testing.assert_close(found, torch.autograd.grad(plain.square().sum(), weights))


class OfPyTorch(Model):
    def __init__(self) -> None:
        self.first = nn.LazyLinear(4)
        self.norm = nn.LazyBatchNorm1d(affine=False)
        self.last = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.last(self.norm(self.first(inputs)))
        return output


def test_pytorch_s_own_lazy_layers_take_their_shapes_from_weights() -> None:
    model, other = OfPyTorch(), OfPyTorch()
    inputs = torch.randn(8, 3)
    model(inputs)
    other.set_weights(model.get_weights(portable=True), portable=True)
    torch.testing.assert_close(other(inputs), model(inputs), rtol=0, atol=0)
    assert type(other.first) is nn.Linear
    assert other.first.in_features == 3


def test_copies_of_pytorch_s_own_lazy_layers_begin_with_equal_weights() -> None:
    model = OfPyTorch()
    twin = copy.deepcopy(model)
    state = torch.get_rng_state()
    twin(torch.randn(8, 3))
    torch.set_rng_state(state)
    torch.randn(1000)
    model(torch.randn(8, 3))
    np.testing.assert_array_equal(model.get_weights()["first.weight"], twin.get_weights()["first.weight"])
    third = copy.deepcopy(OfPyTorch())
    third.take_shapes_of(model)
    np.testing.assert_array_equal(third.get_weights()["first.weight"], model.get_weights()["first.weight"])


def test_the_first_batch_of_a_seeded_lazy_layer_draws_nothing_from_the_global_generator() -> None:
    model = copy.deepcopy(OfPyTorch())
    inputs = torch.randn(8, 3)
    before = torch.get_rng_state()
    model(inputs)
    assert torch.equal(torch.get_rng_state(), before)
