"""Functions of `parl.layers` on small arrays, beside numpy; and on the values of a program."""

# mypy: allow-untyped-calls
# Paddle leaves its programs untyped.

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

from parl_core.errors import HyperparameterError
from parl_paddle import layers
from parl_paddle._programs import Programs

X = np.array([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]], np.float32)
Y = np.array([[2.0, 4.0, -1.0], [1.0, 5.0, 0.5]], np.float32)
PROBABILITIES = np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]], np.float32)
IMAGES = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
LABELS = np.array([[1], [2]])

CASES: list[tuple[str, Callable[..., Any], tuple[Any, ...], Any]] = [
    ("reduce_sum", lambda x: layers.reduce_sum(x, dim=1), (X,), X.sum(axis=1)),
    ("reduce_sum_of_all", layers.reduce_sum, (X,), X.sum()),
    ("reduce_mean", lambda x: layers.reduce_mean(x, dim=0, keep_dim=True), (X,), X.mean(axis=0, keepdims=True)),
    ("reduce_max", lambda x: layers.reduce_max(x, dim=1), (X,), X.max(axis=1)),
    ("reduce_min", lambda x: layers.reduce_min(x, dim=[0, 1]), (X,), X.min()),
    ("reduce_prod", lambda x: layers.reduce_prod(x, dim=0), (X,), X.prod(axis=0)),
    ("mean", layers.mean, (X,), X.mean()),
    ("argmax", lambda x: layers.argmax(x, axis=1), (X,), X.argmax(axis=1)),
    ("one_hot_of_columns", lambda x: layers.one_hot(x, 3), (LABELS,), np.eye(3)[[1, 2]]),
    ("one_hot_of_rows", lambda x: layers.one_hot(x, 3), (LABELS[:, 0],), np.eye(3)[[1, 2]]),
    ("cast", lambda x: layers.cast(x, "int64"), (X,), X.astype(np.int64)),
    ("add", layers.elementwise_add, (X, Y), X + Y),
    ("sub", layers.elementwise_sub, (X, Y), X - Y),
    ("mul", layers.elementwise_mul, (X, Y), X * Y),
    ("div", layers.elementwise_div, (X, Y), X / Y),
    ("max", layers.elementwise_max, (X, Y), np.maximum(X, Y)),
    ("min", layers.elementwise_min, (X, Y), np.minimum(X, Y)),
    ("clip", lambda x: layers.clip(x, -1.0, 1.0), (X,), X.clip(-1, 1)),
    ("square_error_cost", layers.square_error_cost, (X, Y), (X - Y) ** 2),
    ("cross_entropy", layers.cross_entropy, (PROBABILITIES, LABELS), -np.log([[0.5], [0.8]])),
    (
        "softmax_with_cross_entropy",
        layers.softmax_with_cross_entropy,
        (X, LABELS),
        np.log(np.exp(X).sum(axis=1, keepdims=True)) - np.take_along_axis(X, LABELS, 1),
    ),
    ("softmax", layers.softmax, (X,), np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)),
    ("concat", lambda x, y: layers.concat([x, y], axis=1), (X, Y), np.hstack([X, Y])),
    ("stack", lambda x, y: layers.stack([x, y], axis=1), (X, Y), np.stack([X, Y], axis=1)),
    ("flatten", layers.flatten, (IMAGES,), IMAGES.reshape(1, -1)),
    ("flatten_from_2", lambda x: layers.flatten(x, axis=2), (IMAGES,), IMAGES.reshape(2, -1)),
    ("flatten_a_vector", lambda x: layers.flatten(x[0]), (X,), X[0].reshape(-1, 1)),
    ("flatten_from_0", lambda x: layers.flatten(x, axis=0), (X,), X.reshape(1, -1)),
    ("reshape", lambda x: layers.reshape(x, [0, -1, 4]), (IMAGES,), IMAGES.reshape(1, 8, 4)),
    ("squeeze", lambda x: layers.squeeze(x, [1]), (LABELS,), LABELS[:, 0]),
    ("unsqueeze", lambda x: layers.unsqueeze(x, [0, 2]), (X,), X[None, :, None]),
    ("transpose", lambda x: layers.transpose(x, [1, 0]), (X,), X.T),
    ("gather", layers.gather, (X, np.array([1, 0, 1])), X[[1, 0, 1]]),
    ("dropout_of_a_test", lambda x: layers.dropout(x, 0.5, is_test=True), (X,), X),
    ("max_pool", lambda x: layers.pool2d(x, 2, "max", 2), (IMAGES,), IMAGES[:, :, 1::2, 1::2]),
    (
        "mean_pool",
        lambda x: layers.pool2d(x, 2, "avg", 2),
        (IMAGES,),
        IMAGES.reshape(1, 2, 2, 2, 2, 2).mean(axis=(3, 5)),
    ),
    (
        "global_pool",
        lambda x: layers.pool2d(x, pool_type="avg", global_pooling=True),
        (IMAGES,),
        IMAGES.mean(axis=(2, 3), keepdims=True),
    ),
    ("exp_log_sqrt_square_abs", lambda x: layers.log(layers.exp(layers.sqrt(layers.square(x)))), (X,), np.abs(X)),
    ("relu", layers.relu, (X,), np.maximum(X, 0)),
    ("tanh", layers.tanh, (X,), np.tanh(X)),
    ("sigmoid", layers.sigmoid, (X,), 1 / (1 + np.exp(-X))),
]
IDS = [case[0] for case in CASES]


@pytest.mark.parametrize(("name", "function", "arrays", "expected"), CASES, ids=IDS)
def test_functions_agree_with_numpy(name: str, function: Any, arrays: Any, expected: Any) -> None:
    found = function(*(paddle.to_tensor(array) for array in arrays))
    assert list(found.shape) == list(np.shape(expected))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "function", "arrays", "expected"), CASES, ids=IDS)
def test_functions_work_in_programs(name: str, function: Any, arrays: Any, expected: Any) -> None:
    programs, program = Programs(paddle.CPUPlace()), paddle.static.Program()
    fetch = []

    def build() -> None:
        with paddle.static.program_guard(program):
            inputs = [layers.data(f"x{i}", list(array.shape[1:]), str(array.dtype)) for i, array in enumerate(arrays)]
            fetch.append(function(*inputs))

    programs.build(build)
    feed = {f"x{i}": array for i, array in enumerate(arrays)}
    np.testing.assert_allclose(programs.executor.run(program, feed, fetch)[0], expected, rtol=1e-5, atol=1e-6)


def test_dropout_keeps_the_mean() -> None:
    dropped = layers.dropout(paddle.ones([20_000]), 0.25).numpy()
    assert set(np.unique(dropped)) == {np.float32(0.0), np.float32(4 / 3)}
    assert abs(dropped.mean() - 1.0) < 0.02


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got \(2,\) and \(2, 1\)"):
        layers.square_error_cost(paddle.ones([2]), paddle.ones([2, 1]))


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(HyperparameterError, match="no dtype 'float23'; there are bool, uint8"):
        layers.cast(paddle.ones([2]), "float23")


def test_an_unknown_kind_of_pooling_is_refused() -> None:
    with pytest.raises(HyperparameterError, match='pool_type must be "max" or "avg", got \'sum\''):
        layers.pool2d(paddle.to_tensor(IMAGES), 2, "sum")
