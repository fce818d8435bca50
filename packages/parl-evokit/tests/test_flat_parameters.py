"""Named arrays and one flat vector share memory, and what does not fit is refused by name."""

import numpy as np
import pytest

from parl_evokit._params import ParameterLayout
from parl_evokit.errors import LayoutMismatch

ARRAYS = {
    "fc1.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fc1.bias": np.array([7.0, 8.0, 9.0]),
    "scale": np.array(10, np.float16),
    "empty": np.zeros((0, 4), np.float32),
}


def test_arrays_follow_each_other_in_the_order_given_each_in_c_order() -> None:
    layout = ParameterLayout.of(ARRAYS)
    assert layout.size == 10
    assert layout.flatten(ARRAYS).tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10]
    transposed = {"a": np.arange(6).reshape(2, 3).T}
    assert ParameterLayout.of(transposed).flatten(transposed).tolist() == [0, 3, 1, 4, 2, 5]


def test_views_share_the_memory_of_the_vector() -> None:
    layout = ParameterLayout.of(ARRAYS)
    flat = layout.flatten(ARRAYS)
    views = layout.views(flat)
    assert list(views) == list(ARRAYS)
    assert {name: view.shape for name, view in views.items()} == {name: a.shape for name, a in ARRAYS.items()}
    flat[4] = 44.0
    assert views["fc1.weight"][1, 1] == 44.0
    views["scale"][...] = 5.0
    assert flat[9] == 5.0


def test_views_of_a_read_only_vector_are_read_only() -> None:
    layout = ParameterLayout.of(ARRAYS)
    flat = layout.flatten(ARRAYS)
    flat.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        layout.views(flat)["fc1.bias"][0] = 1.0


def test_arrays_may_be_given_in_another_order_than_the_layouts() -> None:
    layout = ParameterLayout.of(ARRAYS)
    backwards = dict(reversed(ARRAYS.items()))
    assert layout.flatten(backwards).tolist() == layout.flatten(ARRAYS).tolist()


def test_a_missing_an_unknown_and_a_misshapen_array_are_named() -> None:
    layout = ParameterLayout(("a", "b"), ((2,), (3,)))
    with pytest.raises(LayoutMismatch, match=r"missing \['b'\], unknown \['c'\]"):
        layout.flatten({"a": np.zeros(2), "c": np.zeros(3)})
    with pytest.raises(LayoutMismatch, match=r"'b' has shape \(3,\), the array given for it \(3, 1\)"):
        layout.flatten({"a": np.zeros(2), "b": np.zeros((3, 1))})
    with pytest.raises(LayoutMismatch, match="'a' must hold real numbers, not complex128"):
        layout.flatten({"a": np.zeros(2, complex), "b": np.zeros(3)})


@pytest.mark.parametrize("vector", [np.zeros(4, np.float32), np.zeros(5), np.zeros(10, np.float32)[::2]])
def test_a_vector_of_another_length_type_or_stride_is_refused(vector: np.ndarray) -> None:
    with pytest.raises(LayoutMismatch, match=r"shape \(5,\)"):
        ParameterLayout(("a", "b"), ((2,), (3,))).views(vector)


def test_a_layout_needs_one_name_for_each_shape() -> None:
    with pytest.raises(LayoutMismatch, match="a came twice"):
        ParameterLayout(("a", "a"), ((1,), (1,)))
    with pytest.raises(LayoutMismatch, match="1 names were given, but 2 shapes"):
        ParameterLayout(("a",), ((1,), (1,)))
