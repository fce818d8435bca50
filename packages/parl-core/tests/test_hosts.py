"""Addresses, ports and accelerators of a machine, found without connecting."""

import ipaddress
import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from parl_core import _hosts


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_the_address_is_one_of_this_machine_and_nothing_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    def dialled(*arguments: object) -> None:
        raise AssertionError(f"dialled {arguments}")

    monkeypatch.setattr(socket.socket, "connect", dialled)
    monkeypatch.setattr(socket, "getaddrinfo", dialled)
    address = _hosts.get_ip_address()
    assert ipaddress.IPv4Address(address)
    with socket.socket() as listener:  # only an address of this machine can be bound
        listener.bind((address, 0))


@pytest.mark.parametrize(
    ("addresses", "route", "expected"),
    [
        ({"lo": "127.0.0.1"}, None, "127.0.0.1"),
        ({"lo": "127.0.0.1", "eth0": "10.0.0.5", "eth1": "10.1.0.5"}, "eth1", "10.1.0.5"),
        ({"tun0": "198.18.0.1", "eth0": "10.0.0.5"}, "tun0", "10.0.0.5"),
        ({"docker0": "172.17.0.1", "wlan0": "192.168.1.2"}, None, "192.168.1.2"),
        ({"lo": "127.0.0.1", "wg0": "10.9.0.1"}, None, "10.9.0.1"),
    ],
)
def test_real_networks_come_before_tunnels_and_the_routed_one_first(
    addresses: dict[str, str], route: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(addresses)))
    monkeypatch.setattr(_hosts, "_address_of", addresses.get)
    monkeypatch.setattr(_hosts, "_default_route", lambda: route)
    assert _hosts.get_ip_address() == expected


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as listener:
        listener.bind(("", _hosts.get_free_tcp_port()))


def test_a_free_port_is_none_that_an_outgoing_connection_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(port: int) -> int:
        if next(tries) < 1:
            raise OSError("it is taken")
        return port

    tries = itertools.count()
    monkeypatch.setattr(_hosts, "_first_ephemeral_port", lambda: 20_001)
    monkeypatch.setattr(_hosts, "_bound", bound)
    assert _hosts.get_free_tcp_port() == 20_000


@pytest.mark.parametrize("listens", [True, False])
def test_a_port_that_another_socket_is_bound_to_is_not_free(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("", 0))
        if listens:
            other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(_hosts, "_FIRST_PORT", port)
        monkeypatch.setattr(_hosts, "_first_ephemeral_port", lambda: port + 1)
        assert _hosts.get_free_tcp_port() != port


def test_the_system_gives_a_free_port_where_there_is_none_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hosts, "_first_ephemeral_port", lambda: 1024)
    with socket.socket() as listener:
        listener.bind(("", _hosts.get_free_tcp_port()))


def test_a_port_that_is_listened_on_is_not_available(taken_port: int) -> None:
    assert not _hosts.is_port_available(taken_port)
    assert not _hosts.is_port_available(str(taken_port))


def test_a_range_gives_its_free_port(taken_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hosts, "is_port_available", lambda port: port == 8003)
    assert {_hosts.get_port_from_range(8000, 8003) for _ in range(20)} == {8003}


def test_a_full_range_is_an_error_and_not_an_endless_search(taken_port: int) -> None:
    with pytest.raises(OSError, match="wider range"):
        _hosts.get_port_from_range(taken_port, taken_port)
    with pytest.raises(ValueError, match="empty"):
        _hosts.get_port_from_range(9000, 8000)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, 12), ("", 0), ("-1", 0), ("0", 1), ("10", 1), ("0,1", 2), ("2, 3", 2), ("0,-1,1", 1), ("0,99", 1)],
)
def test_gpus_are_counted_as_cuda_would(
    visible: str | None, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [*(f"nvidia{i}" for i in range(12)), "nvidiactl", "nvidia-uvm"]:
        (tmp_path / name).touch()
    monkeypatch.setattr(_hosts, "Path", lambda _: tmp_path)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _hosts.get_gpu_count() == expected
    assert _hosts.is_gpu_available() == (expected > 0)
    assert not _hosts.is_xpu_available()
