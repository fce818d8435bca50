"""The way from a vector environment to one of its groups: calls of an actor, and for steps memory that both ends see.

    CallLink     every step is a call: actions in the message, arrays in the answer; between hosts, and in this process
    SharedLink   the group's actor stays in one call, `EnvGroup.serve`, and each step is a byte there and a byte back

Both promise the same: what is begun is finished by the next `finish`, in which every error of the group is raised. An
exception such as Ctrl-C may end any of this anywhere: the next `begin` settles what was in progress.
"""

import contextlib
from typing import Any

import numpy as np

from parl_core.actors import ActorFuture, ActorHandle
from parl_core.env._steps import Answer, GroupSpaces, GroupStep, Rows, StepMemory, can_share

__all__ = ["CallLink", "SharedLink", "link_to"]

# How often a silent actor is asked for elsewhere: one that is stopped, not ended, does not close its pipe.
_LOOK_S = 1.0


class CallLink:
    """Steps by calls.

    Args:
        group: an actor that holds an `EnvGroup`.
    """

    def __init__(self, group: ActorHandle) -> None:
        self._group = group
        self._answer: ActorFuture | None = None

    @property
    def reuses_arrays(self) -> bool:
        """True if a step's arrays are overwritten by the next one."""
        return False

    def begin(self, method: str, *arguments: Any) -> None:
        """Send a call of a method."""
        self._answer = self._group.submit(method, *arguments)

    def begin_step(self, actions: Any) -> None:
        """Have all environments stepped; an array `[count, *act]`, or a list."""
        self.begin("step", _sent(actions))

    def finish(self, timeout_s: float | None = None) -> Any:
        """Wait for the answer of the call.

        Raises:
            TimeoutError: it did not come in time.
            Exception: what the method raised, or that the actor was lost.
        """
        answer, self._answer = self._answer, None
        assert answer is not None, "finish follows begin"
        return answer.result(timeout_s)

    def finish_step(self) -> GroupStep:
        """Wait for the step that was begun; errors as in `finish`."""
        step: GroupStep = self.finish()
        return step

    def step(self, actions: Any) -> GroupStep:
        """Begin a step and finish it, for a group that is alone; errors as in `finish`."""
        step: GroupStep = self._group.call("step", _sent(actions))
        return step

    def begin_close(self) -> None:
        """Send the call that closes the environments; it comes after a step that is still running."""
        self.begin("close")

    def begin_end(self) -> None:
        """Tell the actor to end without waiting for it, where its system can do so."""
        getattr(self._group, "begin_close", lambda: None)()

    def close(self) -> None:
        """End the actor."""
        self._group.close()


class SharedLink(CallLink):
    """Steps by bytes, with the arrays in memory that both ends see. Whatever does not fit there goes by calls.

    Args:
        group: an actor that holds an `EnvGroup` to which the memory is attached.
        memory: this end of it.
    """

    def __init__(self, group: ActorHandle, memory: StepMemory) -> None:
        super().__init__(group)
        self._memory = memory
        self._serving: ActorFuture | None = None
        self._called = False  # from before a call until its answer was taken
        _, rewards, terminated, truncated, *_ = memory.arrays
        self._step = GroupStep(memory.arrays.observations, rewards, terminated, truncated, [], [])

    @property
    def reuses_arrays(self) -> bool:
        """True if a step's arrays are overwritten by the next one."""
        return True

    def step(self, actions: Any) -> GroupStep:
        """See `CallLink.step`."""
        self.begin_step(actions)
        return self.finish_step()

    def begin(self, method: str, *arguments: Any) -> None:
        """Send a call of a method, once the actor has left the call in which it serves."""
        self._leave()
        super().begin(method, *arguments)

    def begin_step(self, actions: Any) -> None:
        """See `CallLink.begin_step`."""
        self._called = True
        try:
            self._called = self._memory.call(actions)
        except OSError:
            self._called = True  # the actor is gone or closed, which its call says better
        if not self._called:
            super().begin_step(actions)
        elif self._serving is None:
            self._serving = self._group.submit("serve")

    def finish_step(self) -> GroupStep:
        """See `CallLink.finish_step`."""
        if not self._called:
            return super().finish_step()
        while (answer := self._next_byte()) == Answer.PARKED:  # it had gone before the call came, and must come back
            self._end_of_serving()
            self._serving = self._group.submit("serve")
        self._called = False
        if answer == Answer.STEPPED:
            return self._step
        if answer == Answer.ENDED:
            return self._step._replace(endings=self._memory.endings())
        endings, infos = self._end_of_serving()
        return self._step._replace(endings=endings, infos=infos)

    def begin_close(self) -> None:
        """See `CallLink.begin_close`."""
        with contextlib.suppress(OSError):  # an actor that is gone cannot be asked
            self._memory.ask_to_leave()
        super().begin("close")

    def close(self) -> None:
        """End the actor, and let the memory go."""
        super().close()
        self._memory.close()
        self._called, self._serving = False, None

    def _leave(self) -> None:
        """Have the actor leave the call in which it serves, and forget calls and answers that no call waited for.

        Those of an interrupted step may or may not have been written and read. Calls run in order, so the actor serves
        no more when it answers this one, and both pipes are empty then.
        """
        if self._called or self._serving is not None:
            with contextlib.suppress(Exception):  # any: an actor that is lost says so in the call that follows
                self._memory.ask_to_leave()
                self._group.call("stop_serving")
            self._memory.forget()
            self._called, self._serving = False, None

    def _end_of_serving(self) -> Any:
        serving, self._serving = self._serving, None
        assert serving is not None, "only who serves can stop it"
        return serving.result()

    def _next_byte(self) -> bytes:
        """The actor's next byte, none at all if there will be none: then its call says why."""
        answer = self._memory.wait_for_answer(_LOOK_S)
        while answer is None:
            # Asked before the last look: what a call has written before it ended is there to be read then.
            has_ended = self._serving is None or self._serving.done()
            answer = self._memory.wait_for_answer(0.0 if has_ended else _LOOK_S)
            if has_ended:
                return answer or b""
        return answer


def _sent(actions: Any) -> Any:
    return Rows(actions) if isinstance(actions, np.ndarray) else actions


def link_to(group: ActorHandle, count: int, spaces: GroupSpaces) -> CallLink:
    """Return the faster of the ways that lead to a group whose environments are open."""
    if not can_share(spaces):
        return CallLink(group)
    try:
        memory = StepMemory.create(spaces, count)
    except OSError:  # no descriptors or no memory left; messages need neither
        return CallLink(group)
    try:
        if group.call("attach", memory.ticket, spaces):
            memory.keep_own_ends()
            return SharedLink(group, memory)
    except BaseException:
        memory.close()
        raise
    memory.close()
    return CallLink(group)
