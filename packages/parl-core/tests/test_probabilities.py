"""Softmax and cross entropy."""

import numpy as np
import pytest

from parl_core._policy_outputs import np_cross_entropy, np_softmax


def test_softmax_of_huge_logits_is_finite() -> None:
    assert np.allclose(np_softmax([[1000.0, 0.0], [-1000.0, -1000.0]]), [[1.0, 0.0], [0.5, 0.5]])
    assert np_softmax([0.0, np.log(3.0)]) == pytest.approx([0.25, 0.75])


def test_cross_entropy_takes_classes_or_probabilities() -> None:
    probs = np.array([[0.25, 0.75], [0.5, 0.5]])
    assert np.allclose(np_cross_entropy(probs, np.array([[1], [0]])), -np.log([[0.75], [0.5]]))
    assert np.allclose(np_cross_entropy(probs, np.eye(2)), -np.log([[0.25], [0.5]]))


def test_cross_entropy_of_an_impossible_class_is_large_not_infinite() -> None:
    loss = np_cross_entropy(np.array([[0.0, 1.0]]), np.array([[0]]))
    assert np.isfinite(loss).all()
    assert loss[0, 0] > 700
