"""Numpy to tensors and back; the choice of the device."""

import numpy as np
import pytest
import torch

from parl_core.errors import HyperparameterError
from parl_torch._tensors import resolve_device, to_array, to_tensor

CPU = torch.device("cpu")


def test_a_float32_array_is_not_copied() -> None:
    array = np.zeros(3, np.float32)
    tensor = to_tensor(array, CPU)
    array[0] = 5.0
    assert tensor[0] == 5.0


def test_floats_become_the_dtype_asked_for_and_others_stay() -> None:
    assert to_tensor(np.zeros(3), CPU).dtype == torch.float32
    assert to_tensor(np.zeros(3, np.float32), CPU, torch.float64).dtype == torch.float64
    assert to_tensor(np.zeros(3, np.uint8), CPU).dtype == torch.uint8
    assert to_tensor(np.zeros(3, bool), CPU).dtype == torch.bool
    assert to_tensor([1, 2], CPU).dtype == torch.int64


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
    tensor = torch.zeros(3, requires_grad=True)
    array = to_array(tensor)
    with torch.no_grad():
        tensor[0] = 5.0
    assert array[0] == 0.0


def test_bfloat16_comes_back_as_float32() -> None:
    assert to_array(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32


def test_auto_is_the_environment_s_device_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARL_DEVICE", "cpu")
    assert resolve_device("auto") == CPU
    monkeypatch.setenv("PARL_DEVICE", "cuda:99")
    with pytest.raises(HyperparameterError, match=r"'cuda:99' is not there: this PyTorch sees \d+ CUDA devices"):
        resolve_device("auto")


def test_auto_without_the_environment_is_cuda_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARL_DEVICE", raising=False)
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["gpu:99", "cuda:99"])
def test_paddle_s_name_of_a_gpu_means_cuda(name: str) -> None:
    with pytest.raises(HyperparameterError, match="is not there"):
        resolve_device(name)


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(HyperparameterError, match="'npu9000' is unknown to PyTorch; use auto, cpu, cuda"):
        resolve_device("npu9000")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_array_reaches_cuda_with_its_values() -> None:
    array = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_array_equal(to_array(to_tensor(array, torch.device("cuda"))), array)
