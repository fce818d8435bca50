"""Tensors as arguments, results and values of `put`; each framework's tests run where it is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import parl_remote
from parl_remote._data import serialize
from parl_remote._data.object_memory import FrameKind
from parl_remote._object_ref import freeze, thaw


def sent(value: Any, *, writable: bool = True) -> tuple[Any, int]:
    """A value as it arrives, and the bytes that went beside the pickle."""
    pickle, *buffers = serialize.dumps(value)
    arrived = [memoryview(bytearray(one) if writable else bytes(one)) for one in buffers]
    return serialize.loads(pickle, arrived), sum(map(len, buffers))


@parl_remote.remote_class
class Keeper:
    def echo(self, value: Any) -> Any:
        return value

    def total(self, value: Any) -> float:
        return float(value.sum())

    def zero(self, value: Any) -> float:
        value.zero_()
        return float(value.sum())

    def loaded(self, name: str) -> bool:
        return name in sys.modules


def test_no_framework_is_imported_for_its_tensors() -> None:
    program = """
import copyreg, sys
from parl_remote._data import serialize, tensors
import numpy
serialize.dumps({"a": numpy.ones(5)})
assert set(tensors.reducers()) - set(copyreg.dispatch_table) == {numpy.ndarray}
assert not {"torch", "paddle", "tensorflow"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)


# -- torch -------------------------------------------------------------------------------------------------------


def torch_tensors(torch: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "matrix": torch.randn(300, 400),
        "transposed": torch.randn(300, 400).t(),
        "channels last": torch.randn(4, 3, 20, 20).to(memory_format=torch.channels_last),
        "strided": torch.randn(3000, 10)[::3, 2:5],
        "expanded": torch.ones(1).expand(50, 50),
        "scalar": torch.tensor(5.0),
        "empty": torch.empty(0, 3),
        "bfloat16": torch.randn(100_000).bfloat16(),
        "float8": torch.randn(30).to(torch.float8_e4m3fn),
        "half": torch.randn(30).half(),
        "bool": torch.randn(30) > 0,
        "integers": torch.arange(20_000),
        "complex conjugate": torch.randn(30, dtype=torch.complex64).conj(),
        "of the graph": torch.randn(3, requires_grad=True) * 2,
        "leaf": torch.randn(3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.randn(200, 200)),
        "frozen parameter": torch.nn.Parameter(torch.randn(3), requires_grad=False),
        "sparse": torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (3,)),
    }


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("writable", [True, False])
def test_torch_tensors_arrive_as_they_were(writable: bool) -> None:
    torch = pytest.importorskip("torch")
    for name, tensor in torch_tensors(torch).items():
        got, _ = sent(tensor, writable=writable)
        assert type(got) is type(tensor), name
        assert (got.dtype, got.shape, got.requires_grad) == (tensor.dtype, tensor.shape, tensor.requires_grad), name
        if tensor.is_sparse:
            assert torch.equal(got.to_dense(), tensor.to_dense())
            continue
        as_bytes = [one.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8) for one in (got, tensor)]
        assert torch.equal(*as_bytes), name
        if name in {"transposed", "channels last"}:
            assert got.stride() == tensor.stride()
        with torch.no_grad():
            got.zero_()  # it is one's own


def test_a_part_of_a_large_torch_tensor_takes_no_more_than_its_elements() -> None:
    torch = pytest.importorskip("torch")
    got, beside = sent(torch.zeros(10_000, 100)[5:105])
    assert got.shape == (100, 100)
    assert beside == 40_000


def test_torch_tensors_of_modules_and_state_dicts_go_beside_the_pickle() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(300, 300)
    got, beside = sent(module)
    assert beside == 4 * 300 * 300
    assert torch.equal(got.weight, module.weight)
    state, beside = sent(module.state_dict())
    assert beside == 4 * 300 * 300
    assert list(state) == ["weight", "bias"]


def test_a_torch_tensor_that_is_sent_twice_arrives_as_one() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(5)
    first, second = sent([tensor, tensor])[0]
    assert first is second


def test_torch_tensors_with_something_of_the_users_keep_it() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(5)
    tensor.mark = "mine"
    assert sent(tensor)[0].mark == "mine"


def test_actors_take_and_give_torch_tensors(connect: Callable[..., None]) -> None:
    torch = pytest.importorskip("torch")
    connect(cpu_num=1)
    keeper = Keeper()
    tensor = torch.randn(1000, 300)
    assert torch.equal(keeper.echo(tensor), tensor)
    assert torch.equal(keeper.echo({"a": [tensor.bfloat16()]})["a"][0], tensor.bfloat16())


@pytest.mark.slow
def test_torch_tensors_of_put_are_shared_until_a_write(connect: Callable[..., None]) -> None:
    torch = pytest.importorskip("torch")
    connect(cpu_num=2)
    first, second = Keeper(), Keeper()
    ref = parl_remote.put(torch.ones(100_000))
    assert first.zero(ref) == 0.0
    assert second.total(ref) == 100_000.0
    assert float(ref.get().sum()) == 100_000.0
    frames, kinds = freeze({"t": torch.ones(10), "a": np.ones(10)}, [])
    assert sorted(kinds) == [FrameKind.READ_ONLY, FrameKind.READ_ONLY, FrameKind.OWN_COPY]
    assert float(thaw([memoryview(frame) for frame in frames], kinds)["t"].sum()) == 10.0


# -- paddle ------------------------------------------------------------------------------------------------------


def paddle_tensors(paddle: Any) -> dict[str, Any]:
    return {
        "matrix": paddle.rand([300, 400]),
        "transposed": paddle.rand([300, 400]).t(),
        "scalar": paddle.to_tensor(5.0),
        "empty": paddle.zeros([0, 3]),
        "bfloat16": paddle.rand([100_000]).astype("bfloat16"),
        "bool": paddle.ones([3], "bool"),
        "complex": paddle.to_tensor([1 + 2j]),
        "integers": paddle.arange(5),
        "with gradient": paddle.to_tensor([1.0], stop_gradient=False),
        "parameter": paddle.create_parameter([30, 300], "float32"),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("writable", [True, False])
def test_paddle_tensors_arrive_as_they_were(writable: bool) -> None:
    paddle = pytest.importorskip("paddle")
    for name, tensor in paddle_tensors(paddle).items():
        got, _ = sent(tensor, writable=writable)
        assert type(got) is type(tensor), name
        assert (got.dtype, list(got.shape), got.stop_gradient) == (
            tensor.dtype,
            list(tensor.shape),
            tensor.stop_gradient,
        ), name
        np.testing.assert_array_equal(got.numpy(), tensor.numpy())


@pytest.mark.filterwarnings("ignore")
def test_paddle_tensors_of_state_dicts_go_beside_the_pickle() -> None:
    paddle = pytest.importorskip("paddle")
    state, beside = sent(dict(paddle.nn.Linear(300, 300).state_dict()))
    assert beside == 4 * 300 * 300
    assert list(state) == ["weight", "bias"]


@pytest.mark.filterwarnings("ignore")
def test_actors_take_and_give_paddle_tensors(connect: Callable[..., None]) -> None:
    paddle = pytest.importorskip("paddle")
    connect(cpu_num=1)
    keeper = Keeper()
    tensor = paddle.rand([1000, 300])
    np.testing.assert_array_equal(keeper.echo(tensor).numpy(), tensor.numpy())
    assert keeper.total(parl_remote.put(paddle.ones([100_000]))) == 100_000.0


# -- TensorFlow --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_actors_take_and_give_tensorflow_tensors(connect: Callable[..., None]) -> None:
    tf = pytest.importorskip("tensorflow")
    connect(cpu_num=1)
    keeper = Keeper()
    for dtype in ("float32", "bfloat16", "int64", "bool"):
        tensor = tf.cast(tf.random.uniform([300, 400], maxval=2.0), dtype)
        got = keeper.echo(tensor)
        assert got.dtype == tensor.dtype
        assert bool(tf.reduce_all(got == tensor))
    assert bool(tf.reduce_all(keeper.echo(tf.constant(["a", "b"])) == tf.constant(["a", "b"])))
    got, beside = sent({"w": tf.ones([300, 400])})
    assert beside == 4 * 300 * 400
    assert float(tf.reduce_sum(parl_remote.put(tf.ones([100_000])).get())) == 100_000.0
    variable = tf.Variable([1.0, 2.0])
    assert keeper.echo(variable.numpy()).tolist() == [1.0, 2.0]
