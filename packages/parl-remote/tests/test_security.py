"""Keys and private files: only our own, only private ones, and nothing of them is ever shown."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from parl_remote._security import ClusterKey, make_private_dir, read_private_file, write_private_file
from parl_remote.errors import AuthenticationFailed

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def test_a_key_survives_as_text() -> None:
    key = ClusterKey.generate()
    assert ClusterKey.from_text(f"  {key.to_text()}\n", source="here") == key
    assert key != ClusterKey.generate()


def test_a_key_does_not_show_itself() -> None:
    key = ClusterKey.generate()
    assert key.secret.hex() not in repr(key)
    assert str(key.secret) not in repr(key)


@pytest.mark.parametrize("text", ["", "parl1-", "parl1-00", "parl2-" + "0" * 64, "parl1-" + "g" * 64, "0" * 64])
def test_what_is_no_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(AuthenticationFailed, match=r"^PARL_KEY holds no cluster key") as caught:
        ClusterKey.from_text(text, source="PARL_KEY")
    assert not text.strip("parl120-") or text not in str(caught.value)


def test_secrets_for_two_purposes_or_of_two_keys_differ() -> None:
    key = ClusterKey.generate()
    assert key.derive("a") == key.derive("a")
    assert len({key.derive("a"), key.derive("b"), ClusterKey.generate().derive("a"), key.secret}) == 4


def test_a_private_file_is_written_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    before = os.umask(0)  # even a careless umask does not open it
    try:
        write_private_file(path, "one")
        write_private_file(path, "two")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_private_file(path) == "two"
    assert [one.name for one in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_file_that_others_could_read_is_refused_with_the_command_that_helps(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    write_private_file(path, "x")
    path.chmod(mode)
    with pytest.raises(AuthenticationFailed, match=rf"has mode {mode:04o}.*chmod 600"):
        read_private_file(path)


@needs_root
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_private_file(path, "x")
    os.chown(path, 12345, 12345)
    with pytest.raises(AuthenticationFailed, match="belongs to user 12345, not to you"):
        read_private_file(path)


def test_links_directories_and_pipes_are_no_key_files(tmp_path: Path) -> None:
    write_private_file(tmp_path / "key", "x")
    (tmp_path / "link").symlink_to(tmp_path / "key")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, says in (
        ("link", "is a symbolic link"),
        ("pipe", "is not a file"),
        (".", "is not a file"),
        ("missing", "cannot read"),
    ):
        with pytest.raises(AuthenticationFailed, match=says):
            read_private_file(tmp_path / name)


def test_a_private_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = make_private_dir(tmp_path / "parl")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert make_private_dir(path) == path


def test_a_directory_that_others_could_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "parl").mkdir()
    (tmp_path / "parl").chmod(0o755)
    with pytest.raises(AuthenticationFailed, match="chmod 700"):
        make_private_dir(tmp_path / "parl")


@needs_root
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "parl").mkdir(mode=0o700)
    os.chown(tmp_path / "parl", 12345, 12345)
    with pytest.raises(AuthenticationFailed, match="belongs to user 12345"):
        make_private_dir(tmp_path / "parl")


def test_a_directory_behind_a_link_is_refused(tmp_path: Path) -> None:
    make_private_dir(tmp_path / "real")
    (tmp_path / "parl").symlink_to(tmp_path / "real")
    with pytest.raises(AuthenticationFailed, match="is not a directory"):
        make_private_dir(tmp_path / "parl")
