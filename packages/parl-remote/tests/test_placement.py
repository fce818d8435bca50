"""The nodes that actors are placed on, and the reasons that waiting requests are given."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import parl_remote
from parl_remote._links.requests import PendingAnswer
from parl_remote._master.cluster_state import ClusterState
from parl_remote._master.cluster_tables import Instruction, ToClient, ToNode
from parl_remote._master.placement import FreeIndex, GpuShares
from parl_remote._messages import (
    LeaseAssigned,
    LeaseGranted,
    LeaseRefused,
    LeaseRequest,
    NodeJoin,
    RunningLease,
)
from parl_remote._messages.links import Heartbeat
from parl_remote._messages.overview import ExplainWaiting
from parl_remote._program.master_client import MasterClient, _waits
from parl_remote._resources import Placement, Resources
from parl_remote.testing import LoopbackCluster

GIB = 2**30


@pytest.mark.parametrize(
    ("needs", "timeout_s", "text"),
    [
        (Resources(cpu=2), 30.0, "Actor waits for 2 CPU, up to 30 s"),
        (Resources(cpu=2), None, "Actor waits for 2 CPU, as long as it takes"),
        (Resources(), 0.0, "Actor waits for a node"),
    ],
)
def test_the_warning_of_a_wait_names_what_it_waits_for(needs: Resources, timeout_s: float | None, text: str) -> None:
    assert _waits("Actor", needs, timeout_s) == text


class Cluster:
    """The master's bookkeeping with one client, asked in few words."""

    def __init__(self, **nodes: Resources) -> None:
        ids = itertools.count(1)
        self.state = ClusterState(
            cluster_id="test", new_lease_id=lambda: f"lease{next(ids)}", started=0.0, liveness_limit_s=15.0
        )
        self.state.client_joined("c", "train.py", 7)
        self.numbers = itertools.count(1)
        self.homes: dict[str, str] = {}
        self.gpus: dict[str, tuple[str, ...]] = {}
        for name, resources in nodes.items():
            self.join(name, resources)

    def join(self, name: str, resources: Resources, *leases: RunningLease, host: str = "host") -> None:
        joined = NodeJoin(name, host, (f"{name}:1",), "/run", resources, leases, name=name)
        self.note(self.state.node_joined(joined, 0.0))

    def beat(self, name: str, host_memory: int) -> None:
        """Have a node tell how much memory its host has."""
        self.state.node_alive(name, Heartbeat(1, 0.0, host_memory, host_memory), 0.0)

    def note(self, instructions: list[Instruction]) -> list[LeaseGranted | LeaseRefused]:
        answers = []
        for one in instructions:
            if isinstance(one, ToNode) and isinstance(one.message, LeaseAssigned):
                self.homes[one.message.lease_id] = one.node_id
                self.gpus[one.message.lease_id] = one.message.gpus
            elif isinstance(one, ToClient) and isinstance(one.message, LeaseGranted | LeaseRefused):
                answers.append(one.message)
        return answers

    def ask(self, class_name: str = "Actor", timeout_s: float | None = None, **need: Any) -> str | None:
        """The lease, None if it waits; raises what it is refused with."""
        extra = {name: need.pop(name) for name in ("placement", "node") if name in need}
        request = LeaseRequest(next(self.numbers), Resources(**need), timeout_s, class_name, **extra)
        for answer in self.note(self.state.lease_requested("c", request, 0.0)):
            if answer.request_id == request.request_id:
                if isinstance(answer, LeaseRefused):
                    raise LookupError(answer.reason)
                return answer.lease_id
        return None

    def free(self, lease_id: str) -> list[str]:
        """The leases that are given now because this one is back."""
        answers = self.note(self.state.lease_released("c", lease_id))
        return [answer.lease_id for answer in answers if isinstance(answer, LeaseGranted)]

    def why(self, number: int = -1) -> str:
        """Return the reason that the latest waiting request is given."""
        asked = ExplainWaiting(1, next(self.numbers) - 1 if number < 0 else number)
        return self.state.view.explain_waiting("c", asked, 0.0).reason


def test_spread_takes_the_node_with_the_most_left_and_pack_the_one_with_the_least_that_is_enough() -> None:
    for placement, expected in ((Placement.SPREAD, "large"), (Placement.PACK, "small")):
        cluster = Cluster(small=Resources(cpu=2), middle=Resources(cpu=4), large=Resources(cpu=8))
        lease = cluster.ask(cpu=2, placement=placement)
        assert lease is not None
        assert cluster.homes[lease] == expected


def test_a_refusal_names_what_was_asked_for_also_if_no_amount_was() -> None:
    with pytest.raises(LookupError, match=r"asked for a node; the cluster has nothing on 0 nodes"):
        Cluster().ask(timeout_s=0.0)


def test_packed_actors_fill_one_node_before_they_begin_another_and_spread_ones_take_turns() -> None:
    nodes = {f"n{i}": Resources(cpu=3) for i in range(3)}
    packed, spread = Cluster(**nodes), Cluster(**nodes)
    for _ in range(6):
        packed.ask(cpu=1, placement=Placement.PACK)
        spread.ask(cpu=1, placement=Placement.SPREAD)
    assert sorted(packed.homes.values()) == ["n0"] * 3 + ["n1"] * 3
    assert sorted(spread.homes.values()) == ["n0", "n0", "n1", "n1", "n2", "n2"]


def test_actors_that_need_nothing_take_turns_too() -> None:
    cluster = Cluster(a=Resources(cpu=1), b=Resources(cpu=1))
    for _ in range(4):
        cluster.ask()
    assert sorted(cluster.homes.values()) == ["a", "a", "b", "b"]


def test_labels_and_memory_are_counted_like_cpus() -> None:
    cluster = Cluster(n=Resources(cpu=8, memory=4 * GIB, labels={"license": 2}))
    one = cluster.ask(cpu=1, memory=3 * GIB)
    assert one is not None
    assert cluster.ask(cpu=1, memory=2 * GIB) is None
    assert cluster.why() == "short of memory: it needs 2048 MiB memory and no node has more than 1024 MiB memory free"
    assert cluster.ask(cpu=1, labels={"license": 1.5})
    assert cluster.ask(cpu=1, labels={"license": 1}) is None
    assert cluster.why() == "short of license: it needs 1 license and no node has more than 0.5 license free"
    assert cluster.ask(cpu=1)
    assert len(cluster.free(one)) == 1


def on_one_host(memory: int, **nodes: int) -> Cluster:
    """Nodes of one host with so many GiB, each of which offers so many."""
    cluster = Cluster(**{name: Resources(cpu=8, memory=offer * GIB) for name, offer in nodes.items()})
    for name in nodes:
        cluster.beat(name, memory * GIB)
    return cluster


def test_nodes_of_one_host_give_no_more_memory_than_it_has() -> None:
    cluster = on_one_host(24, a=24, b=24)
    first = cluster.ask(cpu=1, memory=15 * GIB)
    assert first is not None
    assert cluster.ask(cpu=1, memory=15 * GIB) is None
    assert cluster.why() == "short of memory: it needs 15360 MiB memory and no node has more than 9216 MiB memory free"
    assert cluster.ask(cpu=1), "who wants no memory goes ahead"
    cluster.join("c", Resources(cpu=8, memory=24 * GIB), host="another host")
    assert set(cluster.homes.values()) == {"a", "b", "c"}
    assert cluster.ask(cpu=1, memory=9 * GIB), "the rest of both hosts is there for smaller ones"
    assert cluster.ask(cpu=1, memory=9 * GIB)
    assert cluster.ask(cpu=1, memory=GIB) is None


def test_nodes_whose_parts_of_a_host_add_up_give_all_of_them() -> None:
    for offers in ({"a": 12, "b": 12}, {"a": 8, "b": 8, "c": 8}):  # so are containers with limits
        cluster = on_one_host(24, **offers)
        for offer in offers.values():
            assert cluster.ask(cpu=1, memory=offer * GIB)
        assert len(set(cluster.homes.values())) == len(offers)
        assert cluster.ask(cpu=1, memory=GIB) is None


def test_a_node_that_was_told_to_offer_more_than_its_host_has_offers_it() -> None:
    cluster = on_one_host(24, a=100)
    assert cluster.ask(cpu=1, memory=90 * GIB)
    assert cluster.ask(cpu=1, memory=20 * GIB) is None


def test_memory_of_a_host_is_there_again_when_an_actor_or_a_node_of_it_has_ended() -> None:
    cluster = on_one_host(24, a=24, b=24)
    first = cluster.ask(cpu=1, memory=20 * GIB)
    assert first is not None
    assert cluster.ask(cpu=1, memory=20 * GIB) is None
    (second,) = cluster.free(first)
    assert cluster.ask(cpu=1, memory=20 * GIB) is None
    answers = cluster.note(cluster.state.node_lost(cluster.homes[second], "its power failed", 0.0))
    assert [type(answer) for answer in answers] == [LeaseGranted]


def test_a_request_for_one_node_is_not_starved_by_the_nodes_beside_it() -> None:
    cluster = on_one_host(24, a=24, b=24)
    small = cluster.ask(cpu=1, memory=4 * GIB, node="b")
    assert small is not None
    assert cluster.ask(cpu=1, memory=24 * GIB, node="a") is None
    assert cluster.why() == "node a has 8 CPU, 20480 MiB memory free"
    assert cluster.ask(cpu=1, memory=4 * GIB, node="b") is None, "it would take what the older one waits for"
    assert len(cluster.free(small)) == 1


def test_a_refusal_counts_the_memory_of_one_host_once() -> None:
    cluster = on_one_host(24, a=24, b=24)
    cluster.ask(cpu=1, memory=20 * GIB)
    with pytest.raises(LookupError, match=r"the cluster has 24576 MiB memory on 2 nodes, 4096 MiB memory free"):
        cluster.ask(memory=20 * GIB, timeout_s=0)


def test_an_impossible_request_is_refused_with_the_largest_node() -> None:
    cluster = Cluster(a=Resources(cpu=2), b=Resources(cpu=4, gpu=1))
    with pytest.raises(LookupError, match="no single node is large enough: it needs 6 CPU, the largest has 4 CPU"):
        cluster.ask(cpu=6, timeout_s=0)
    with pytest.raises(LookupError, match="it needs 1 tpu, the largest has no tpu"):
        cluster.ask(labels={"tpu": 1}, timeout_s=0)
    with pytest.raises(LookupError, match=r"no single node is large enough$"):
        Cluster(a=Resources(cpu=4), b=Resources(cpu=1, gpu=1)).ask(cpu=2, gpu=1, timeout_s=0)


@parl_remote.remote_class
class Nowhere:
    pass


def test_the_wait_for_a_node_that_is_not_there_is_logged_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parl_remote._program.master_client._QUIET_WAIT_S", 1000.0)
    with LoopbackCluster(1) as cluster:
        cluster.connect()
        with pytest.raises(parl_remote.NoResources):
            parl_remote.with_options(Nowhere, node="nowhere", lease_timeout_s=0.5)()
        parl_remote.disconnect()
    assert "Nowhere waits for 1 CPU, up to 0.5 s: there is no node 'nowhere'" in caplog.text


def test_a_request_that_waits_for_the_master_alone_is_not_said_to_wait_for_resources(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    explained: list[object] = []
    connect(cpu_num=1)
    monkeypatch.setattr(PendingAnswer, "wait", lambda *_: False)  # it answers late
    monkeypatch.setattr(MasterClient, "_explain", lambda *args: explained.append(args[-1]))
    monkeypatch.setattr(MasterClient, "_wait_no_longer_than", lambda *_: None)
    parl_remote.with_options(Nowhere, lease_timeout_s=0)()
    assert explained == []
    parl_remote.with_options(Nowhere, lease_timeout_s=30)()
    assert explained == ["Nowhere waits for 1 CPU, up to 30 s"]


def test_a_request_for_one_node_names_that_node_and_holds_back_others_only_there() -> None:
    cluster = Cluster(a=Resources(cpu=2), b=Resources(cpu=2))
    first = cluster.ask(cpu=2, node="a")
    assert first is not None
    assert cluster.homes[first] == "a"
    assert cluster.ask("Bound", cpu=2, node="a") is None
    assert cluster.why() == "node a has nothing free"
    small = cluster.ask(cpu=1)
    assert small is not None
    assert cluster.homes[small] == "b"
    (bound,) = cluster.free(first)
    assert cluster.homes[bound] == "a"
    assert cluster.ask(cpu=1, node="nowhere") is None
    assert cluster.why() == "there is no node 'nowhere'"


def test_a_waiting_request_names_the_older_one_before_it() -> None:
    cluster = Cluster(n=Resources(cpu=4))
    lease = cluster.ask(cpu=2)
    assert lease is not None
    assert cluster.ask("Large", cpu=4) is None
    assert cluster.ask("Small", cpu=1) is None
    assert cluster.why() == "it is behind Large, which asked earlier for 4 CPU"
    (status,) = [one for one in cluster.state.status(1, 3.0, detail=True, dropped=0).queue if one.class_name == "Large"]
    assert (status.owner, status.count, status.waited_s) == ("train.py (process 7)", 1, 3.0)
    assert status.reason == "short of cpu: it needs 4 CPU and no node has more than 2 CPU free"


def test_a_request_that_waits_behind_one_for_a_particular_node_names_that_one() -> None:
    cluster = Cluster(a=Resources(cpu=2))
    assert cluster.ask(cpu=1)
    assert cluster.ask("Bound", cpu=2, node="a") is None
    for where in ("", "a"):
        assert cluster.ask("Small", cpu=1, node=where) is None
        assert cluster.why() == "it is behind Bound, which asked earlier for 2 CPU on node a"


def test_large_requests_are_served_although_small_ones_keep_coming() -> None:
    cluster = Cluster(n=Resources(cpu=4))
    running = [cluster.ask(cpu=1) for _ in range(4)]
    assert cluster.ask("Large", cpu=4) is None
    for lease in running:
        assert lease is not None
        assert cluster.ask(cpu=1) is None
        given = cluster.free(lease)
    assert len(given) == 1  # the large one, as soon as all four are back


def test_a_request_for_several_kinds_is_served_although_requests_for_each_of_them_keep_coming() -> None:
    for others in ({"gpu": 1}, {"cpu": 1, "gpu": 1}, {"gpu": 0.4}):
        cluster = Cluster(n=Resources(cpu=4, gpu=1))
        running = [lease for lease in [*(cluster.ask(cpu=1) for _ in range(3)), cluster.ask(**others)] if lease]
        assert cluster.ask("Large", cpu=4, gpu=1) is None
        served: set[str] = set()
        for _ in range(8):  # each of them ends twice
            running += [lease for lease in (cluster.ask(cpu=1), cluster.ask(**others)) if lease]
            running += cluster.free(running.pop(0))
            served |= {lease.class_name for lease in cluster.state.tables.leases.values()}
        assert "Large" in served, others


def test_a_request_blocks_cpus_only_when_it_waits_for_nothing_else() -> None:
    cluster = Cluster(n=Resources(cpu=2, gpu=1, memory=GIB))
    gpu, memory, cpus = cluster.ask(gpu=1), cluster.ask(memory=GIB), [cluster.ask(cpu=1), cluster.ask(cpu=1)]
    assert gpu is not None
    assert memory is not None
    assert cluster.ask("Large", cpu=2, gpu=1, memory=GIB) is None
    assert cluster.ask(cpu=1) is None
    given = [lease for one in cpus if one is not None for lease in cluster.free(one)]
    assert len(given) == 1, "it waits for a GPU"
    assert cluster.free(gpu) == []
    assert cluster.ask(cpu=1), "it waits for memory"
    assert cluster.ask(gpu=1) is None, "the GPU is kept"
    assert cluster.why() == "it is behind Large, which asked earlier for 2 CPU, 1 GPU, 1024 MiB memory"
    assert cluster.free(memory) == []
    assert cluster.ask(cpu=1) is None


def test_fractions_of_gpus_that_lie_on_different_ones_are_no_whole_one() -> None:
    cluster = Cluster(n=Resources(cpu=8, gpu=2))
    held = [cluster.ask(gpu=0.6), cluster.ask(gpu=0.6)]
    assert [cluster.gpus[lease] for lease in held if lease] == [("0",), ("1",)]
    assert cluster.ask(gpu=0.5) is None
    assert cluster.why() == "it needs 0.5 GPU, and no single GPU has so much left"
    assert cluster.ask(cpu=1)
    small = cluster.ask(cpu=1)
    assert small is not None
    assert held[0] is not None
    (given,) = cluster.free(held[0])
    assert cluster.gpus[given] == ("0",)


def test_a_node_that_comes_back_keeps_the_gpus_of_what_it_brings() -> None:
    cluster = Cluster()
    brought = RunningLease("old", "c", Resources(gpu=1), gpus=("1",))
    cluster.join("n", Resources(cpu=2, gpu=2), brought)
    lease = cluster.ask(gpu=1)
    assert lease is not None
    assert cluster.gpus[lease] == ("0",)


amounts = st.integers(1, 10).map(lambda n: n / 10) | st.integers(1, 3).map(float)


@given(st.lists(amounts, max_size=30), st.randoms())
def test_no_gpu_is_given_beyond_what_it_has_and_all_of_it_comes_back(asked: list[float], order: Any) -> None:
    shares = GpuShares(("a", "b", "c"))
    taken: list[tuple[tuple[str, ...], float]] = []
    for amount in asked:
        if shares.has(amount):
            taken.append((shares.take(amount), amount))
        elif taken:
            shares.give(*taken.pop(order.randrange(len(taken))))
        used = {name: round(sum(min(a, 1) for names, a in taken if name in names), 3) for name in "abc"}
        assert max(used.values()) <= 1
        assert shares.free == tuple(round(1 - used[name], 3) for name in "abc")
    for names, amount in taken:
        shares.give(names, amount)
    assert shares.free == (1.0, 1.0, 1.0)


@given(st.lists(st.tuples(st.integers(0, 8), st.none() | st.integers(0, 5).map(float)), max_size=60), st.integers(0, 5))
def test_an_index_of_slots_gives_those_with_enough_in_order(moves: list[tuple[int, float | None]], need: int) -> None:
    index: FreeIndex[int] = FreeIndex()
    amounts: dict[int, float] = {}
    for node, amount in moves:
        if amount is None:
            index.remove(node)
            amounts.pop(node, None)
        else:
            index.put(node, amount)
            amounts[node] = amount
    down, up = list(index.from_most(need)), list(index.from_least(need))
    assert sorted(down) == sorted(up) == sorted(node for node, amount in amounts.items() if amount >= need)
    assert [amounts[node] for node in down] == sorted((amounts[node] for node in down), reverse=True)
    assert [amounts[node] for node in up] == sorted(amounts[node] for node in up)
    assert index.most == max(amounts.values(), default=0.0)
