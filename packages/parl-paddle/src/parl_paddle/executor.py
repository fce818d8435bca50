"""Runs the programs of one agent, with what they are fed checked before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle

from parl_core.errors import ModelContractError
from parl_paddle.each_run import EachRun, is_recording
from parl_paddle.feeds import Inputs
from parl_paddle.programs import static_graphs

__all__ = ["ProgramExecutor"]

static: Any = paddle.static  # paddle's types of it are incomplete


class ProgramExecutor(paddle.static.Executor):
    """`paddle.static.Executor` of one agent: runs in the agent's scope and can be called from eager code.

    Args:
        place: where programs run, such as `paddle.CPUPlace()`.
        scope: holds what the programs need.
        each_run: what Python does around the runs of programs, by their identity.
    """

    def __init__(self, place: Any, scope: Any, each_run: Mapping[int, EachRun]) -> None:
        super().__init__(place)
        self._agent_scope = scope
        self._each_run = each_run
        self._inputs: dict[int, Inputs] = {}

    def initialise(self, startup: Any) -> None:
        """Run a startup program."""
        with static_graphs():
            super().run(startup, scope=self._agent_scope)

    def run(  # type: ignore[override]  # paddle's overloads tell the result by return_numpy
        self, program: Any = None, feed: Mapping[str, Any] | None = None, fetch_list: Any = None, **options: Any
    ) -> Any:
        """Run `program` with the arrays in `feed`; returns what `fetch_list` names as a list of numpy arrays.

        Takes the arguments of `paddle.static.Executor.run`; `scope` is the agent's unless given. Numbers in `feed` are
        converted to the dtypes of the program's inputs where no more than precision is lost.

        Raises:
            ModelContractError: called while `build_program` is still building, or the program uses weights that are not
                this agent's.
            ValueError: there is no program; an input is missing or does not fit; a value to fetch is of another
                program.
        """
        if is_recording():
            raise ModelContractError("programs run once build_program() has returned; inside, it only describes them")
        if program is None:
            raise ValueError("no program to run; give one that build_program() has built, such as self.learn_program")
        inputs = self._inputs_of(program, options)
        fed: Any = feed if inputs is None else inputs.accept(feed)
        options.setdefault("scope", self._agent_scope)
        each_run = self._each_run.get(id(program))
        with static_graphs():  # for both hooks as well, so that no other thread runs in between
            if each_run is not None:
                each_run.before()
            try:
                fetched = super().run(program, feed=fed, fetch_list=fetch_list, **options)
            except KeyError as error:  # all that paddle says of it; rates of its optimizers need not be fed
                missing = repr(error.args[0]) if inputs is None else inputs.describe(error.args[0])
                raise ValueError(
                    f"feed lacks {missing}; it has {', '.join(map(repr, fed or ())) or 'nothing'}"
                ) from None
            if each_run is not None:
                each_run.after()
        if len(fetched) != len(fetch_list or ()):  # paddle returns nothing for what it does not know
            raise ValueError("fetch_list has a value of another program than the one that was run")
        return fetched

    def _inputs_of(self, program: Any, options: Mapping[str, Any]) -> Inputs | None:
        found = self._inputs.get(id(program))
        if found is not None and not found.outdated:
            return found
        if not isinstance(program, static.Program) or options.get("scope") is not None:
            return None  # compiled ones, and those that the caller looks after
        self._require_own(program)
        found = self._inputs[id(program)] = Inputs(program)
        return found

    def _require_own(self, program: Any) -> None:
        foreign = [
            value.name
            for value in program.global_block().all_parameters()
            if self._agent_scope.find_var(value.name) is None
        ]
        if foreign:
            raise ModelContractError(
                f"this program uses {', '.join(foreign[:3])}{' ...' if foreign[3:] else ''}, which this agent's "
                "build_program() did not build; run it with the executor of the agent that built it"
            )
