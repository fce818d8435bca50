"""The actors of a run: calls out, answers in, and others in the place of those that are lost.

    crew.submit(Call) ──> actor of that group ──> crew.arrivals() ──> Arrival: an answer, or that the call has failed

What fails is the loop's to ask for again: in the place of an actor that ended or did not answer in time another one is
being made, to which calls go as soon as it is there, and an environment that raised will be made anew. The answers of
the others come in meanwhile. A group that fails too often in a row ends the run with its last error.
"""

import contextlib
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, Self

from parl_core import logger
from parl_core.actors import ActorFuture, ActorHandle, wait_any
from parl_core.errors import CheckpointError, LostActor

__all__ = ["Arrival", "Call", "Crew"]

CLOSE_TIMEOUT_S = 5.0
"""How long actors may take in all to close their environments, before they are ended."""

OUTSIDE = 10
"""How many losses for which the environments are not to blame count as much as one other failure."""


class Call(NamedTuple):
    """A call of a method, for a group of environments."""

    group: int
    method: str
    args: tuple[Any, ...] = ()
    tag: Any = None
    """What the caller wants to have back with the answer."""


class Arrival(NamedTuple):
    """What became of a call."""

    call: Call
    answer: Any
    failed: bool


class _Hiring(Future[ActorHandle]):
    """An actor in the making, in a thread of its own: it can take as long as the start and the imports of a Python."""

    def __init__(self, hire: Callable[[], ActorHandle]) -> None:
        super().__init__()
        self._reader, self._writer = os.pipe()
        threading.Thread(target=self._make, args=(hire,), name="hire an actor", daemon=True).start()

    def fileno(self) -> int:
        """Readable when the actor is there: some futures are waited for in this way."""
        return self._reader

    def take(self) -> ActorHandle:
        """Wait for the actor; to be called once."""
        try:
            return self.result()
        finally:
            os.close(self._reader)

    def dismiss(self) -> None:
        """End the actor as soon as it is there, without waiting."""
        self.add_done_callback(_dismiss)

    def _make(self, hire: Callable[[], ActorHandle]) -> None:
        try:
            self.set_result(hire())
        except BaseException as error:  # any: raised where the actor is taken
            self.set_exception(error)
        finally:
            os.close(self._writer)


def _dismiss(hiring: Future[ActorHandle]) -> None:
    with contextlib.suppress(BaseException):  # where it was not made, or its system was closed first, nothing is left
        assert isinstance(hiring, _Hiring)
        hiring.take().kill()


class _Member:
    """An actor, or the one that is being made in its place; calls wait for that one, without a future."""

    def __init__(self, handle: ActorHandle) -> None:
        self.handle: ActorHandle | None = handle
        self.hiring: _Hiring | None = None
        self.loss: tuple[Call, LostActor] | None = None  # what the one before was busy with, and what became of it
        self.calls: deque[tuple[Call, ActorFuture | None]] = deque()
        self.since = time.monotonic()  # when the oldest of them began, as far as can be seen from here

    def submit(self, call: Call) -> None:
        if not self.calls:
            self.since = time.monotonic()
        future = None if self.handle is None else self.handle.submit(call.method, *call.args)
        self.calls.append((call, future))

    def begin(self, handle: ActorHandle) -> None:
        """Give what has waited to the actor that is there now."""
        self.handle, waited, self.calls = handle, self.calls, deque()
        for call, _ in waited:
            self.submit(call)

    def answered(self) -> tuple[Call, ActorFuture] | None:
        """The oldest call, if its answer is there."""
        if not self.calls:
            return None
        call, future = self.calls[0]
        if future is None or not future.done():
            return None
        self.calls.popleft()
        self.since = time.monotonic()
        return call, future

    def next_event(self) -> ActorFuture:
        """What to wait for, with calls under way."""
        found = self.hiring or self.calls[0][1]
        assert found is not None
        return found


class Crew:
    """Actors with groups of environments each.

    Args:
        hire: makes the actor of this number; the second argument has its groups, and how many actors have held each.
        groups_of: the groups of each actor.
        timeout_s: longest time for one call; None has no limit.
        max_failures: how often in a row the calls of one group may fail before the last error is raised; ten times as
            often where `LostActor.from_outside` says that the environments cannot be at fault.
    """

    def __init__(
        self,
        hire: Callable[[int, Mapping[int, int]], ActorHandle],
        groups_of: Sequence[Sequence[int]],
        timeout_s: float | None,
        max_failures: int,
    ) -> None:
        self.lost = 0
        """Actors that ended, or were ended because they did not answer in time."""
        self.failed = 0
        """Calls in which an environment raised."""
        self._hire, self._timeout_s, self._max_failures = hire, timeout_s, max_failures
        self._groups_of = groups_of
        self._actor_of = {group: actor for actor, groups in enumerate(groups_of) for group in groups}
        self._incarnations = [0] * len(groups_of)
        self._earlier = dict.fromkeys(
            sorted(self._actor_of), 0
        )  # lives of groups in the runs that this one goes on with
        self._failures: Counter[int] = Counter()
        self._losses_from_outside: Counter[int] = Counter()
        self._members: list[_Member] = []
        try:
            for actor in range(len(groups_of)):
                self._members.append(_Member(hire(actor, self._lives_with(actor))))
        except BaseException:
            self.close()
            raise

    def incarnation(self, group: int) -> tuple[int, int]:
        """The actor that has this group, and how many were in its place before."""
        actor = self._actor_of[group]
        return actor, self._incarnations[actor]

    @property
    def lives(self) -> list[int]:
        """How many actors have held each group before the one that has it now."""
        return [life + self._incarnations[self._actor_of[group]] for group, life in self._earlier.items()]

    def go_on(self, lives: Sequence[int]) -> None:
        """Go on counting the lives of groups where another run, of as many groups, has stopped."""
        for group, life in enumerate(lives):
            self._earlier[group] = life - self._incarnations[self._actor_of[group]]
        self.call_all([Call(group, "live", (group, life)) for group, life in enumerate(lives)])

    @property
    def is_busy(self) -> bool:
        """Whether answers are still to come."""
        return any(member.calls for member in self._members)

    def call(self, group: int, method: str) -> Any:
        """Call a method of the actor that has this group until it succeeds; nothing else may be under way."""
        (answer,) = self.call_all([Call(group, method)])
        return answer

    def call_all(self, calls: Sequence[Call]) -> list[Any]:
        """Make calls, each until it succeeds, and return their answers; nothing else may be under way.

        Raises:
            CheckpointError: a call raised it, which no second one would mend.
        """
        answers: list[Any] = [None] * len(calls)
        for index, call in enumerate(calls):
            self.submit(call._replace(tag=index))
        while self.is_busy:
            for call, answer, failed in self.arrivals():
                if isinstance(answer, CheckpointError):
                    raise answer
                if failed:
                    self.submit(call)
                else:
                    answers[call.tag] = answer
        return answers

    def succeeded(self, group: int) -> None:
        """Forget the failures of a group, because it has got on."""
        self._failures[group] = self._losses_from_outside[group] = 0

    def submit(self, call: Call) -> None:
        """Send a call; calls for one actor are run in order."""
        self._members[self._actor_of[call.group]].submit(call)

    def arrivals(self, timeout_s: float | None = None) -> list[Arrival]:
        """Wait for answers.

        Args:
            timeout_s: how long at most; None waits as long as it takes.

        Returns:
            at least one, unless the time has passed or nothing is under way.

        Raises:
            Exception: what a call raised, if that group has failed too often in a row; a note says which it was.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = [arrival for actor in range(len(self._members)) for arrival in self._collect(actor)]
            waiting = [member for member in self._members if member.calls]
            left = None if deadline is None else deadline - time.monotonic()
            if found or not waiting or (left is not None and left <= 0):
                return found
            limits = [left] if left is not None else []
            if self._timeout_s is not None:
                ends = [member.since + self._timeout_s for member in waiting if member.handle is not None]
                limits += [end - time.monotonic() for end in ends]
            wait_any([member.next_event() for member in waiting], max(0.0, min(limits)) if limits else None)

    def _collect(self, actor: int) -> list[Arrival]:
        """What this actor has answered; with a lost one, all that it owed has failed."""
        member = self._members[actor]
        if member.hiring is not None and member.hiring.done():
            self._welcome(actor, member.hiring)
        found: list[Arrival] = []
        while (answered := member.answered()) is not None:
            call, future = answered
            try:
                answer = future.result()
            except LostActor as error:
                return [*found, *self._replace(actor, call, error)]
            except Exception as error:  # any: the environment's
                self.failed += 1
                self._count_failure(call, error)
                found.append(Arrival(call, error, True))
            else:
                found.append(Arrival(call, answer, False))
        if (
            member.calls
            and member.handle is not None
            and self._timeout_s is not None
            and time.monotonic() - member.since > self._timeout_s
        ):
            call, _ = member.calls.popleft()
            hanging = LostActor(
                f"actor {actor} was ended because it did not answer {call.method} within timeout_s={self._timeout_s} "
                "seconds: an environment hangs, or that is too short for what is asked of the actor"
            )
            found += self._replace(actor, call, hanging)
        return found

    def _replace(self, actor: int, call: Call, error: LostActor) -> list[Arrival]:
        """Have another actor made in the place of one that was lost; `call` is the one that it was busy with."""
        member = self._members[actor]
        assert member.handle is not None
        member.handle.kill()
        owed = [call, *(owed for owed, _ in member.calls)]
        member.calls.clear()
        member.handle = None
        self._hire_another(actor, call, error)
        return [Arrival(each, error, True) for each in owed]

    def _hire_another(self, actor: int, call: Call, error: LostActor) -> None:
        self._lose(actor, call, error)
        member, lives = self._members[actor], self._lives_with(actor)
        member.loss, member.hiring = (call, error), _Hiring(lambda: self._hire(actor, lives))

    def _welcome(self, actor: int, hiring: _Hiring) -> None:
        """Let the actor begin that has been made; where it was lost meanwhile, have another one made."""
        member = self._members[actor]
        assert member.loss is not None
        call, error = member.loss
        member.hiring = None  # it is taken once, also where this ends the run
        try:
            handle = hiring.take()
        except LostActor as lost:
            self._hire_another(actor, call, lost)
        except Exception as failure:
            failure.add_note(f"in making another actor in the place of actor {actor}, which was lost: {error}")
            raise
        else:
            member.begin(handle)

    def _lose(self, actor: int, call: Call, error: LostActor) -> None:
        self.lost += 1
        self._count_failure(call, error)
        logger.warning("actor %d is replaced: %s", actor, error)
        self._incarnations[actor] += 1

    def _lives_with(self, actor: int) -> dict[int, int]:
        return {group: self._earlier[group] + self._incarnations[actor] for group in self._groups_of[actor]}

    def _count_failure(self, call: Call, error: Exception) -> None:
        outside = isinstance(error, LostActor) and error.from_outside
        counts, times = (self._losses_from_outside, OUTSIDE) if outside else (self._failures, 1)
        counts[call.group] += 1
        count, most = counts[call.group], times * self._max_failures
        if count <= most:
            return
        actor = self._actor_of[call.group]
        error.add_note(
            f"in {call.method} of actor {actor} for group {call.group} of the environments, which has failed {count} "
            f"times in a row; max_failures={self._max_failures} were allowed"
            + (f", or {most} losses of hosts" if outside else "")
        )
        raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the environments and end the actors; a second call does nothing."""
        members, self._members = self._members, []
        closing = []
        for member in members:
            if member.hiring is not None:
                member.hiring.dismiss()
            if member.handle is None:
                continue
            for _, future in reversed(member.calls):
                getattr(future, "cancel", bool)()  # what has not begun need not
            try:
                closing.append((member.handle, member.handle.submit("close")))
            except Exception:  # any: an actor that is gone needs no closing
                member.handle.kill()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for handle, future in closing:
            try:
                future.result(max(0.0, deadline - time.monotonic()))
            except Exception:  # any: it hangs, is lost, or its environments' own close raised
                handle.kill()
            handle.close()
