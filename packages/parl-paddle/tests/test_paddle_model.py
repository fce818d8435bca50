"""`parl.Model` with paddle's own layers."""

import copy
import pickle
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import Tensor, nn

from parl_core.errors import WeightsMismatchError
from parl_paddle import layers
from parl_paddle.model import Model

PICKLES = "__reduce_ex__" in vars(Tensor)  # paddle 3.0 did not


class Plain(Model):
    def __init__(self) -> None:  # no super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1D(2)
        self.scale = self.create_parameter([1])

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


def test_it_is_a_layer_with_everything_that_belongs_to_one() -> None:
    model = Plain()
    assert isinstance(model, nn.Layer)
    assert model.parameter_names == ["scale", "linear.weight", "linear.bias", "norm.weight", "norm.bias"]
    assert set(model.parameter_names) < {name for name, _ in model.named_parameters()}
    assert set(model.state_dict()) == set(model.get_weights())
    assert model.to(dtype="float64").get_weights()["scale"].dtype == np.float64


def test_layers_created_before_super_init_stay() -> None:
    class Late(Model):
        def __init__(self) -> None:
            self.linear = nn.Linear(3, 2)
            super().__init__(model_id="late")

    assert Late().parameter_names == ["linear.weight", "linear.bias"]
    assert Late().get_model_id() == "late"


def test_portable_weights_have_the_shared_names_and_layouts() -> None:
    model = Plain()
    own, portable = model.get_weights(), model.get_weights(portable=True)
    np.testing.assert_array_equal(portable["linear.weight"], own["linear.weight"].T)
    np.testing.assert_array_equal(portable["norm.running_mean"], own["norm._mean"])
    np.testing.assert_array_equal(portable["norm.running_var"], own["norm._variance"])
    other = Plain()
    other.set_weights(portable, portable=True)
    for name, array in own.items():
        np.testing.assert_array_equal(other.get_weights()[name], array)


def test_weights_of_pytorch_may_have_the_counter_of_its_batch_normalisation() -> None:
    model, other = Plain(), Plain()
    portable = model.get_weights(portable=True) | {"norm.num_batches_tracked": np.array(3)}
    other.set_weights(portable, portable=True)
    np.testing.assert_array_equal(other.get_weights()["linear.weight"], model.get_weights()["linear.weight"])


def test_a_recurrent_layer_lists_each_tensor_once_under_the_shared_name() -> None:
    class Recurrent(Model):
        def __init__(self) -> None:
            self.gru = nn.GRU(3, 4)

    expected = {f"gru.{kind}_{side}_l0" for kind in ("weight", "bias") for side in ("ih", "hh")}
    assert set(Recurrent().get_weights()) == expected


def test_sync_blends_statistics() -> None:
    source, target = Lazy(), Lazy()
    source(paddle.randn([8, 3]) + 5.0)
    target(paddle.randn([8, 3]))
    old, new = target.get_weights(), source.get_weights()
    source.sync_weights_to(target, decay=0.5)
    for name, array in target.get_weights().items():
        np.testing.assert_allclose(array, 0.5 * (old[name] + new[name]), atol=1e-6, err_msg=name)


@pytest.mark.skipif(not PICKLES, reason="this paddle cannot pickle parameters")
def test_models_survive_pickling_with_and_without_shapes() -> None:
    for used in (False, True):
        model = Lazy()
        model.eval()
        if used:
            model(paddle.randn([4, 3]))
        twin = pickle.loads(pickle.dumps(model))
        inputs = paddle.randn([4, 3])
        np.testing.assert_array_equal(twin(inputs).numpy(), model(inputs).numpy())
        assert all(not parameter.stop_gradient for parameter in twin.parameters())


def test_layers_without_shapes_get_the_dtype_asked_for() -> None:
    model = Lazy().to(dtype="float64")
    assert model(paddle.randn([4, 3], dtype="float64")).dtype == paddle.float64
    assert {array.dtype for array in model.get_weights().values()} == {np.dtype(np.float64)}


def test_a_deepcopy_of_a_model_with_shapes_shares_nothing() -> None:
    model = Lazy()
    model(paddle.randn([4, 3]))
    duplicate = copy.deepcopy(model)
    with paddle.no_grad():
        for parameter in duplicate.parameters():
            parameter.add_(paddle.ones([1]))
    np.testing.assert_array_equal(model.get_weights()["fc.bias"] + 1.0, duplicate.get_weights()["fc.bias"])


def test_paddle_s_seed_decides_the_first_weights() -> None:
    def draw() -> Any:
        paddle.seed(11)
        model = Lazy()
        model(paddle.ones([1, 3]))
        return model.get_weights()["fc.weight"]

    np.testing.assert_array_equal(draw(), draw())


def test_drawing_first_weights_leaves_paddle_s_generator_alone() -> None:
    model = Lazy()
    paddle.seed(1)
    expected = paddle.randn([2]).numpy()
    paddle.seed(1)
    model(paddle.ones([4, 3]))
    np.testing.assert_array_equal(paddle.randn([2]).numpy(), expected)


def test_weights_of_another_layer_s_shape_are_refused_and_change_nothing() -> None:
    model = Lazy()
    model(paddle.ones([4, 3]))
    weights = model.get_weights()
    other = Lazy()
    with pytest.raises(WeightsMismatchError, match=r"fc\.weight \(3, 5\)"):
        other.set_weights({**weights, "fc.weight": np.zeros((3, 5))})
    assert not other.fc.shaped
    assert not other.norm.shaped


def test_bfloat16_weights_are_given_as_float32_and_taken_back() -> None:
    model = Plain().to(dtype="bfloat16")
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
