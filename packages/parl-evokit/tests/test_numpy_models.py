"""Models in numpy share memory with the flat vector; the perceptron is what its formula says."""

from pathlib import Path

import numpy as np
import pytest

from parl_evokit.errors import LayoutMismatch, SolverError
from parl_evokit.models import NumpyModel, mlp


def test_what_is_written_into_the_bound_vector_changes_the_model_without_a_copy() -> None:
    model = NumpyModel({"w": np.ones(3), "b": np.zeros(1)}, lambda arrays, x: x @ arrays["w"] + arrays["b"])
    flat = model.parameters()
    model.bind(flat)
    flat[:] = [1, 2, 3, 10]
    assert model.predict(np.array([1.0, 1.0, 1.0])).tolist() == [16.0]


def test_a_clone_has_parameters_of_its_own() -> None:
    model = mlp([2, 2])
    clone = model.clone()
    flat = np.zeros(6, np.float32)
    clone.bind(flat)
    assert model.parameters().any()
    assert clone.predict(np.ones(2)).tolist() == [0.5, 0.5]


def test_the_perceptron_is_its_formula() -> None:
    model = mlp([4, 20, 2], seed=5)
    views = model.layout.views(model.parameters())
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    logits = np.tanh(x @ views["w0"] + views["b0"]) @ views["w1"] + views["b1"]
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert model.predict(x) == pytest.approx(expected, abs=1e-6)
    assert model.predict(x[1]) == pytest.approx(expected[1], abs=1e-6)
    assert model.predict(x).sum(axis=1) == pytest.approx(1.0)
    assert mlp([4, 2], softmax=False, bias=False).layout.names == ("w0",)


def test_a_linear_and_a_rectified_perceptron_differ_from_the_default() -> None:
    x = np.ones(4)
    outputs = {mlp([4, 20, 2], activation=name).predict(x).tobytes() for name in ("tanh", "relu", "linear")}
    assert len(outputs) == 3
    with pytest.raises(ValueError, match="one of tanh, relu, linear, not 'sin'"):
        mlp([4, 2], activation="sin")
    with pytest.raises(LayoutMismatch, match=r"\[4\]"):
        mlp([4])


def test_first_weights_depend_on_the_seed_alone_and_have_the_documented_deviation() -> None:
    assert (mlp([4, 2], seed=1).parameters() == mlp([4, 2], seed=1).parameters()).all()
    assert not (mlp([4, 2], seed=1).parameters() == mlp([4, 2], seed=2).parameters()).all()
    weights = mlp([100, 200], bias=False).parameters()
    assert weights.std() == pytest.approx(0.1, rel=0.02)


def test_huge_logits_do_not_overflow() -> None:
    model = mlp([1, 2], bias=False)
    model.bind(np.array([1e6, -1e6], np.float32))
    assert model.predict(np.ones(1)).tolist() == [1.0, 0.0]


def test_saved_weights_load_into_the_same_model(tmp_path: Path) -> None:
    mlp([4, 20, 2], seed=1).save(tmp_path)
    model = mlp([4, 20, 2], seed=2)
    model.load(tmp_path)
    assert (model.parameters() == mlp([4, 20, 2], seed=1).parameters()).all()


def test_a_model_is_saved_into_a_directory_that_a_text_names_and_that_need_not_exist(tmp_path: Path) -> None:
    model = mlp([3, 4, 2])
    model.save(str(tmp_path / "a" / "b"))
    other = mlp([3, 4, 2])
    other.load(str(tmp_path / "a" / "b"))
    assert np.array_equal(other.parameters(), model.parameters())


def test_weights_with_any_byte_changed_are_refused_or_the_same(tmp_path: Path) -> None:
    model = mlp([2, 2])
    model.save(tmp_path)
    path, expected = tmp_path / "params.npz", model.parameters().tobytes()
    whole = path.read_bytes()
    for place in range(len(whole)):
        for change in (0x01, 0x08):  # in the head of a part, also its encryption and its compression
            path.write_bytes(whole[:place] + bytes((whole[place] ^ change,)) + whole[place + 1 :])
            found = mlp([2, 2], seed=1)
            try:
                found.load(tmp_path)
            except (LayoutMismatch, SolverError):
                continue
            assert found.parameters().tobytes() == expected, place
