"""The key between a `RemoteManager` and the objects that dial in: the same kind as a cluster's, found in the same ways.

the file that is named, the file in PARL_KEY_FILE, the text in PARL_KEY, or
on one host and for one user: what the manager has written into the run directory, <host>-manager-<port>/
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from parl_remote.config import Environment
from parl_remote.errors import AuthenticationFailed
from parl_remote.links.identity import host_name
from parl_remote.node.run_files import ManagerRecord, ProcessRecord, RunFiles, write_record
from parl_remote.security import ClusterKey, write_private_file
from parl_remote.system.facilities import own_user
from parl_remote.transport.addresses import Address, is_this_host

__all__ = ["find_key", "given_key", "publish_key"]


def given_key(environment: Environment, key_file: str | os.PathLike[str] | None) -> ClusterKey | None:
    """The key that this program was given.

    Raises:
        AuthenticationFailed: The file is missing or not private, or holds no key.
    """
    if key_file is not None:
        return ClusterKey.from_file(Path(key_file).expanduser())
    if environment.key_file is not None:
        return ClusterKey.from_file(environment.key_file)
    if environment.key is not None:
        return ClusterKey.from_text(environment.key, source="PARL_KEY")
    return None


def publish_key(environment: Environment, host: str, port: int, key: ClusterKey) -> Path:
    """Put the key of a manager that this process is where programs of the same user find it.

    Returns:
        The directory, to be removed with `shutil.rmtree` at the end.
    """
    run_files = RunFiles(environment.run_dirs)
    for old, record in run_files.managers():
        if record.host_name == host_name() and not record.process.alive():
            shutil.rmtree(old, ignore_errors=True)  # of one that was killed
    directory = run_files.manager_directory(port)
    write_private_file(directory / "key", key.to_text() + "\n")
    write_record(directory, ManagerRecord(host, port, host_name(), ProcessRecord.of(os.getpid())))
    return directory


def find_key(address: Address, environment: Environment, key_file: str | os.PathLike[str] | None) -> ClusterKey:
    """The key for the manager at an address.

    Raises:
        AuthenticationFailed: There is none, or the file is not private to this user.
    """
    given = given_key(environment, key_file)
    if given is not None:
        return given
    for directory, record in RunFiles(environment.run_dirs).managers():
        if record.port == address.port and record.process.alive() and is_this_host(address.host):
            return ClusterKey.from_file(directory / "key")
    raise AuthenticationFailed(
        f"there is no key for {address}: no RemoteManager of yours (user {own_user()}) listens there on this host. "
        "Give both ends the same key by key_file=, PARL_KEY_FILE or PARL_KEY; `xparl start` makes one"
    )
