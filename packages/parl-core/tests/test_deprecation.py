"""`parl.utils.deprecated`: the old name works, says what to use, and where it was called."""

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parl.utils import deprecated


class Agent:
    """With a method of an older version."""

    def get_weights(self, copy: bool = True) -> list[int]:
        return [1, 2] if copy else [3]

    @deprecated(deprecated_in="1.2", removed_in="1.3", replace_function="get_weights")
    def get_params(self, copy: bool = True) -> list[int]:
        """Return all weights.

        They are copies.
        """
        return self.get_weights(copy)

    @property
    @deprecated("1.2", "1.3")
    def names(self) -> list[str]:
        return ["w"]


def test_a_call_works_and_warns_of_the_line_that_made_it() -> None:
    with pytest.warns(DeprecationWarning, match="get_params") as caught:
        assert Agent().get_params(copy=False) == [3]
    assert str(caught[0].message) == (
        "`Agent.get_params` is deprecated since version 1.2 and will be removed in 1.3; use `get_weights` instead"
    )
    assert Path(caught[0].filename) == Path(__file__)


def test_every_call_warns_unless_the_program_filters() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            Agent().get_params()
    assert len(caught) == 2


def test_without_a_replacement_none_is_named() -> None:
    with pytest.warns(DeprecationWarning, match=r"`Agent.names` is .* will be removed in 1\.3$"):
        assert Agent().names == ["w"]


def test_name_signature_and_docstring_are_kept_and_the_docstring_says_it() -> None:
    method = Agent.get_params
    assert (method.__name__, method.__module__) == ("get_params", __name__)
    assert list(inspect.signature(method).parameters) == ["self", "copy"]
    lines = inspect.getdoc(method)
    assert lines is not None
    assert lines.splitlines()[0] == "Return all weights."
    assert lines.splitlines()[-1] == (
        "Deprecated since version 1.2 and will be removed in 1.3; use `get_weights` instead."
    )


@pytest.mark.parametrize("wrong", [Agent, property(lambda self: self), staticmethod(len), 3])
def test_what_is_no_function_is_refused_with_where_to_put_it(wrong: Any) -> None:
    decorate: Callable[[Any], Any] = deprecated("1.2", "1.3")
    with pytest.raises(TypeError, match=r"@deprecated is for functions and methods, got a .*; put it on __init__"):
        decorate(wrong)


def test_it_is_where_parl_2_has_it() -> None:
    from parl.utils import deprecation

    assert deprecation.deprecated is deprecated
