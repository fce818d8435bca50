"""What master and workers say, in the monitor's own words. Pure."""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping

from parl_remote.death import DeathKind, DeathRecord
from parl_remote.messages.leases import ClientStatus, WaitingStatus
from parl_remote.messages.overview import ActorStatus, NodeDetail, NodePhase
from parl_remote.monitor.model import ActorInfo, DeathInfo, DriverInfo, GpuInfo, NodeInfo, WaitingInfo

__all__ = ["actor_info", "death_info", "driver_info", "node_info", "waiting_info"]

_WANTED = frozenset({DeathKind.KILLED_BY_USER, DeathKind.DRAINED})


def node_info(node: NodeDetail, address: str, late_s: float) -> NodeInfo:
    """A worker.

    Args:
        node: What the master says of it.
        address: Where it is reached.
        late_s: After how long without a sign of life it is called silent.
    """
    state = {NodePhase.UP: "alive", NodePhase.DRAINING: "draining", NodePhase.DRAINED: "drained"}[node.phase]
    known = node.memory_total > 0
    seen = {gpu.name: GpuInfo(gpu.name, gpu.model, gpu.busy, gpu.memory_used, gpu.memory_total) for gpu in node.gpu_use}
    return NodeInfo(
        node_id=node.node_id,
        name=node.name or node.node_id,
        address=address,
        state="silent" if node.silent_s > late_s else state,
        cpus=node.total.cpu,
        cpus_used=round(node.total.cpu - node.free.cpu, 3),
        gpus=node.total.gpu,
        gpus_used=round(node.total.gpu - node.free.gpu, 3),
        cpu_busy=node.cpu_busy if known else None,
        load=node.load,
        memory_total=node.memory_total if known else None,
        memory_used=node.memory_total - node.memory_free if known else None,
        actors=node.actors,
        silent_s=node.silent_s,
        devices=tuple(seen.get(name, GpuInfo(name)) for name in node.gpus),
        labels=tuple(f"{name}={amount:g}" for name, amount in node.total.labels.items()),
    )


def actor_info(actor: ActorStatus, at: float) -> ActorInfo:
    """An actor that lives, at that time."""
    numbers = actor.numbers
    has_process = numbers.pid > 0
    return ActorInfo(
        actor_id=actor.lease_id,
        class_name=actor.class_name or "actor",
        name=actor.name,
        state=numbers.phase.value,
        node_id=actor.node_id,
        node_name=actor.node or actor.node_id,
        owner_id=actor.client_id,
        owner_name=actor.owner,
        pid=numbers.pid,
        started_at=at - actor.age_s,
        detached=actor.detached,
        resources=_resources(actor),
        calls=numbers.calls if has_process else None,
        calls_per_s=numbers.calls_per_s if has_process else None,
        busy=numbers.busy if has_process else None,
        queued=numbers.queued if has_process else None,
        running=numbers.busy_with,
        running_s=max(0.0, at - numbers.busy_since) if numbers.busy_with else None,
        errors=numbers.errors if has_process else None,
        last_error=numbers.last_error,
        cpu=numbers.cpu if has_process else None,
        memory=numbers.memory or None,
        memory_limit=numbers.memory_limit,
        restarts=actor.restarts,
    )


def driver_info(client: ClientStatus, hosts: Mapping[str, str], at: float) -> DriverInfo:
    """A program; its host has a name if a node of the cluster runs there."""
    return DriverInfo(
        client_id=client.client_id,
        name=client.name,
        pid=client.pid,
        host=hosts.get(client.host_id, ""),
        actors=client.leases,
        waiting=client.waiting,
        since=at - client.age_s,
    )


def waiting_info(waiting: WaitingStatus) -> WaitingInfo:
    """Actors of one program that wait for the same."""
    return WaitingInfo(
        class_name=waiting.class_name or "actor",
        owner_id=waiting.client_id,
        owner_name=waiting.owner,
        asked=str(waiting.resources),
        reason=waiting.reason,
        since_s=waiting.waited_s,
        count=waiting.count,
    )


def death_info(death: DeathRecord, names: Mapping[str, str]) -> DeathInfo:
    """An actor that was lost."""
    cause = death.cause
    end = cause.memory[-1].at if cause.memory else 0.0
    return DeathInfo(
        actor_id=death.lease_id,
        class_name=death.class_name or "actor",
        name=death.name,
        node_name=cause.node or names.get(death.node_id, death.node_id),
        node_id=death.node_id,
        owner_name=death.owner,
        at=cause.at,
        kind=cause.kind.value,
        expected=cause.kind in _WANTED or not cause.kind.is_loss,
        text=cause.describe(),
        exit_code=cause.exit_code,
        signal=_signal(cause.signal),
        last_call=cause.last_call,
        log_tail=cause.log_tail,
        memory_curve=tuple((round(end - one.at, 3), one.resident) for one in cause.memory),
        memory_limit=cause.memory_limit,
        memory_peak=cause.memory_peak or None,
    )


def _resources(actor: ActorStatus) -> str:
    text = str(actor.resources)
    return f"{text} (GPU {', '.join(actor.gpus)})" if actor.gpus else text


def _signal(number: int | None) -> str:
    if number is None:
        return ""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
