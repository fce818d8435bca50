"""One group of environments as the learner sees it that chooses the group's actions."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from parl_core.env.group_step import Ending, GroupStep
from parl_core.nested import Observations
from parl_core.training.fragment import Task
from parl_core.training.fragment_writer import FragmentWriter

__all__ = ["Seat", "step_of", "step_state"]

_ARRAYS = ("observations", "rewards", "terminated", "truncated")


class Seat:
    """Waits for actions, or its environments are busy."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()
        """Fragments to make after the one that is being made."""
        self.writer: FragmentWriter | None = None
        self.obs: Observations = None
        """`[size, *obs]`, what actions are chosen from; None before the environments have begun."""
        self.chosen: tuple[int, Observations, NDArray[Any], dict[str, NDArray[Any]]] | None = None
        """Of the step that is under way: version of the weights, observations, actions, what else the policy said."""
        self.under_way = False

    @property
    def waits(self) -> bool:
        """Whether it waits for actions."""
        return self.writer is not None and not self.under_way and self.obs is not None

    def begin_again(self, obs: Observations) -> None:
        """Forget the fragment that was being made, because the environments were reset."""
        if self.writer is not None:
            self.writer = FragmentWriter(self.writer.task, self.writer.n_steps)
        self.obs, self.chosen, self.under_way = obs, None, False

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "tasks": list(self.tasks),
            "writer": None if self.writer is None else self.writer.get_state(),
            "obs": self.obs,
            "chosen": self.chosen,
            "under_way": self.under_way,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned."""
        self.tasks = deque(Task(*task) for task in state["tasks"])
        self.writer = None if state["writer"] is None else FragmentWriter.from_state(state["writer"])
        self.obs, self.under_way = state["obs"], state["under_way"]
        self.chosen = None if state["chosen"] is None else tuple(state["chosen"])


def step_state(step: GroupStep) -> dict[str, Any]:
    """What a checkpoint holds of an answer that was not written down yet; infos are of no use here."""
    endings = [[e.env_index, e.observation, e.episode_return, e.length] for e in step.endings]
    return {name: getattr(step, name) for name in _ARRAYS} | {"endings": endings}


def step_of(state: Mapping[str, Any]) -> GroupStep:
    """The answer that `step_state` described."""
    endings = [Ending(index, obs, {}, total, length) for index, obs, total, length in state["endings"]]
    return GroupStep(**{name: state[name] for name in _ARRAYS}, endings=endings, infos=[])
