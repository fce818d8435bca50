"""Properties of this machine, defined in `parl_core._hosts`."""

from parl_core._hosts import (
    get_free_tcp_port,
    get_gpu_count,
    get_ip_address,
    get_port_from_range,
    is_gpu_available,
    is_port_available,
    is_xpu_available,
)

__all__ = [
    "get_free_tcp_port",
    "get_gpu_count",
    "get_ip_address",
    "get_port_from_range",
    "is_gpu_available",
    "is_port_available",
    "is_xpu_available",
]
