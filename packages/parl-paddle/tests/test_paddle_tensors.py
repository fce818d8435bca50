"""Numpy to tensors and back; the choice of the device."""

import numpy as np
import paddle
import pytest

from parl_core.errors import HyperparameterError
from parl_paddle._tensors import device_name, resolve_device, to_array, to_tensor

CPU = "cpu"
HAS_GPU = paddle.device.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0


def test_a_tensor_has_memory_of_its_own() -> None:
    array = np.zeros(3, np.float32)
    tensor = to_tensor(array, CPU)
    array[0] = 5.0
    assert tensor[0] == 0.0


def test_floats_become_the_dtype_asked_for_and_others_stay() -> None:
    assert to_tensor(np.zeros(3), CPU).dtype == paddle.float32
    assert to_tensor(np.zeros(3, np.float32), CPU, paddle.float64).dtype == paddle.float64
    assert to_tensor(np.zeros(3, np.uint8), CPU).dtype == paddle.uint8
    assert to_tensor(np.zeros(3, bool), CPU).dtype == paddle.bool
    assert to_tensor([1, 2], CPU).dtype == paddle.int64


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_whole_numbers_of_every_width_keep_their_values(dtype: type[np.integer]) -> None:
    values = np.array([0, 1, min(np.iinfo(dtype).max, 2**40)], dtype)
    np.testing.assert_array_equal(to_tensor(values, CPU).numpy(), values)


@pytest.mark.parametrize("make", [lambda a: a[::-1], lambda a: a[:, ::-1], np.transpose, lambda a: a[1:, ::2]])
def test_views_of_any_strides_keep_their_values(make: "np.ufunc") -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(to_tensor(make(array), CPU).numpy(), make(array))


def test_a_read_only_array_is_copied_without_a_warning() -> None:
    array = np.arange(3, dtype=np.float32)
    array.flags.writeable = False
    tensor = to_tensor(array, CPU)
    tensor[0] = 9.0
    assert array[0] == 0.0


def test_an_array_of_a_tensor_is_a_copy() -> None:
    tensor = paddle.zeros([3])
    array = to_array(tensor)
    tensor[0] = 5.0
    assert array[0] == 0.0


def test_bfloat16_comes_back_as_float32() -> None:
    assert to_array(paddle.ones([2], dtype="bfloat16")).dtype == np.float32


def test_a_device_is_named_by_its_place() -> None:
    assert device_name(paddle.CPUPlace()) == device_name(paddle.ones([1]).place) == "cpu"


def test_auto_is_the_environment_s_device_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARL_DEVICE", "cpu")
    assert resolve_device("auto") == CPU
    monkeypatch.setenv("PARL_DEVICE", "cuda:99")
    with pytest.raises(HyperparameterError, match=r"'cuda:99' is not there: this paddle sees \d+ CUDA devices"):
        resolve_device("auto")


def test_auto_without_the_environment_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARL_DEVICE", raising=False)
    assert resolve_device("auto") == ("gpu:0" if HAS_GPU else "cpu")


@pytest.mark.parametrize("name", ["gpu:99", "cuda:99"])
def test_both_names_of_a_gpu_are_known(name: str) -> None:
    with pytest.raises(HyperparameterError, match="is not there"):
        resolve_device(name)


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(HyperparameterError, match="'npu9000' is unknown to paddle; use auto, cpu, cuda"):
        resolve_device("npu9000")


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device and paddlepaddle-gpu")
def test_an_array_reaches_the_gpu_with_its_values() -> None:
    array = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_array_equal(to_array(to_tensor(array, "gpu:0")), array)
