"""`@remote_class`: the same class, whose objects are made in actors.

    @remote_class               A(1)                    a proxy; the object itself is made in a process of its own
    class A: ...                A.options(n_cpu=2)(1)   the same with other options

The class stays the class that was written: its name, docstring, pickling, `isinstance` and, for type checkers, its
type. Only its `__new__` is replaced (see `remote_new`), and `options` added (see `instance_options`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, overload

from parl_remote.future import RemoteFuture
from parl_remote.instance_options import ChosenClass, offer_options
from parl_remote.options import ActorOptions
from parl_remote.program.proxy import RemoteMethod
from parl_remote.remote_new import RemoteNew, hook_of, reduce_object
from parl_remote.shipping.class_spec import ClassAttribute

if TYPE_CHECKING:
    from parl_remote.dialing.serving import Serving

__all__ = ["remote_class", "submit", "with_options"]

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


@overload
def remote_class(cls: type[T], /) -> type[T]: ...
@overload
def remote_class(
    *,
    wait: Literal[True] = True,
    n_cpu: float = 1,
    n_gpu: float = 0,
    memory: float = 0,
    max_memory: float | None = None,
    labels: Mapping[str, float] = ...,
    placement: Literal["spread", "pack"] = "spread",
    node: str = "",
    name: str = "",
    detached: bool = False,
    max_restarts: int = 0,
    max_concurrency: int | None = None,
    max_pending_calls: int | None = None,
    when_full: Literal["wait", "raise"] = "wait",
    lease_timeout_s: float | None = None,
) -> Callable[[type[T]], type[T]]: ...
@overload
def remote_class(
    *,
    wait: bool,
    n_cpu: float = 1,
    n_gpu: float = 0,
    memory: float = 0,
    max_memory: float | None = None,
    labels: Mapping[str, float] = ...,
    placement: Literal["spread", "pack"] = "spread",
    node: str = "",
    name: str = "",
    detached: bool = False,
    max_restarts: int = 0,
    max_concurrency: int | None = None,
    max_pending_calls: int | None = None,
    when_full: Literal["wait", "raise"] = "wait",
    lease_timeout_s: float | None = None,
) -> Callable[[type[Any]], Any]: ...  # what methods return then, no type checker can be told; `submit` is typed
def remote_class(cls: type[Any] | None = None, /, **options: Any) -> Any:
    """Make a class whose objects live in actors: processes of their own, on this machine or another of the cluster.

    Use it with or without parentheses. Within an actor, objects of decorated classes are actors as well, of the same
    cluster; they belong to the actor that makes them and end with it.

    Args:
        cls: The class.
        **options: See below.

    Options:
        wait: Whether a method call waits for its result (default True). With `wait=False` it returns a
            `RemoteFuture` at once and any number of calls may be outstanding, run in order.
        n_cpu: CPUs that an actor takes (default 1); fractions share one.
        n_gpu: GPUs that an actor takes (default 0).
        memory: MiB of its node's memory that are set aside for an actor (default 0).
        max_memory: MiB that the actor's process may grow by before it is ended (default: no limit).
        labels: Amounts of what the cluster's owner has named, for example `{"license": 1}` (default: none).
        placement: "spread" puts an actor on the node with the most room (default), "pack" on the fullest with enough.
        node: The only node that an actor may go to, by its name or id (default: any).
        name: What `get_actor` finds the actor by, unique in the cluster (default: none).
        detached: Whether the actor outlives the program that made it (default False).
        max_restarts: How often an actor that was lost is made again with the same arguments, -1 for as often as
            needed (default 0). Calls that were on their way raise `ActorLost`, later ones wait for the new actor.
        max_concurrency: How many calls run in the actor at once. Default: 1, in order; 1000 for a class that has
            `async def` methods, which run on an event loop in the actor. Above 1, methods of other classes run in
            threads, started in order.
        max_pending_calls: How many calls of one caller may be unanswered (default: no limit, all are kept in memory).
        when_full: What a call above `max_pending_calls` does: "wait" until there is room (default), or "raise"
            `TooManyPendingCalls`.
        lease_timeout_s: Seconds that creating an object waits for free resources (default: what `connect` was given).

    Raises:
        TypeError: An option is unknown, or what is decorated is not a class.
        ValueError: An option is out of its range.
    """
    chosen = ActorOptions.of(options)

    def decorate(decorated: type[Any]) -> type[Any]:
        if not isinstance(decorated, type):
            raise TypeError(f"@remote_class decorates classes, not {decorated!r}")
        # setattr, because a type checker rightly thinks that a class's __new__ is none of our business
        setattr(decorated, "__new__", RemoteNew(decorated, chosen))  # noqa: B010
        if "__reduce_ex__" not in decorated.__dict__:
            setattr(decorated, "__reduce_ex__", reduce_object)  # noqa: B010
        offer_options(decorated)
        if not hasattr(decorated, "as_remote"):
            setattr(decorated, "as_remote", ServeAttribute())  # noqa: B010
        return decorated

    return decorate if cls is None else decorate(cls)


class ServeAttribute(ClassAttribute):
    """The method `as_remote` of objects; a class that has one of that name keeps its own."""

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self

        def as_remote(*args: Any, **kwargs: Any) -> Serving:
            """Serve this object to the program that has a `RemoteManager` there; see `parl_remote.as_remote`."""
            from parl_remote.dialing.serving import as_remote  # it imports the actor's side, which few programs need

            return as_remote(instance, *args, **kwargs)

        return as_remote


def with_options(cls: type[T], /, **options: Any) -> type[T]:
    """The same remote class with other options, for the objects that are made through the returned callable.

    `Actor.options(...)` is the same; this function is for classes with an `options` of their own and for type
    checkers, which know nothing of an attribute that a decorator adds.

    Example:
        `fast = with_options(Actor, wait=False); actor = fast(1)`

    Raises:
        TypeError: The class is not decorated, or an option is unknown.
        ValueError: An option is out of its range.
    """
    hook = hook_of(cls)
    return cast("type[T]", ChosenClass(hook, hook.options.changed(options)))


def submit(method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> RemoteFuture[R]:
    """Call a remote object's method without waiting, whatever its class's `wait` says; typed as the method is.

    Example:
        `futures = [submit(actor.run, n) for actor in actors]`

    Raises:
        TypeError: It is not a method of a remote object.
        SerializationError: An argument cannot be sent.
    """
    if not isinstance(method, RemoteMethod):
        raise TypeError(f"submit takes a method of a remote object, not {method!r}")
    return method.submit(*args, **kwargs)
