"""Connecting to Ray: a Ray of this machine that ends with the program, or one that runs elsewhere."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from typing import Any

from parl_remote.engines.ray.client import RayClient
from parl_remote.engines.ray.folder import Folder, copied
from parl_remote.engines.ray.library import NAMESPACE, ray
from parl_remote.errors import ClusterUnreachable

__all__ = ["open_ray"]


def open_ray(
    address: str, cpu_num: int | None, files: Sequence[str], lease_timeout_s: float | None, *, logs: bool
) -> RayClient:
    """Connect to Ray; a connection that the program has made itself is used, and left open afterwards.

    Args:
        address: "ray" for one of this machine, or "ray://host:port".
        cpu_num: CPUs that a Ray of this machine gives to actors; None for all.
        files: What `distributed_files` names.
        lease_timeout_s: How long creating an actor waits for room unless its class says otherwise.
        logs: Whether Ray shows here what actors print.

    Raises:
        ImportError: Ray is not installed.
        ClusterUnreachable: Nobody answers.
        TypeError: The patterns are no list of texts.
        ValueError: A pattern is absolute, leads upwards or matches nothing.
    """
    library = ray()
    is_here = address == "ray"
    folder: Folder | None = None
    directory: tempfile.TemporaryDirectory[str] | None = None
    if not is_here or files:
        folder, directory = copied(files, with_code=not is_here)
    is_ours = not library.is_initialized()
    try:
        if is_ours:
            _init(library, address, cpu_num, directory.name if directory is not None and not is_here else None, logs)
    except BaseException:
        if directory is not None:
            directory.cleanup()
        raise

    def close() -> None:
        if is_ours:
            library.shutdown()
        if directory is not None:
            directory.cleanup()

    return RayClient(address, lease_timeout_s=lease_timeout_s, folder=folder, on_close=close)


def _init(library: Any, address: str, cpu_num: int | None, working_dir: str | None, logs: bool) -> None:
    common = {"namespace": NAMESPACE, "log_to_driver": logs, "logging_level": logging.ERROR}
    if address == "ray":
        library.init("local", num_cpus=cpu_num, include_dashboard=False, **common)
        return
    try:
        library.init(address, runtime_env={"working_dir": working_dir}, **common)
    except (ConnectionError, TimeoutError) as error:
        hint = "a cluster that asks for a token needs RAY_AUTH_MODE=token here, and the token"
        raise ClusterUnreachable(f"nobody answers at {address}: {error}; {hint}", address=address) from error
