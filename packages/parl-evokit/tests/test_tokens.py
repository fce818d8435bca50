"""A reward counts for a token that was issued here, has not been changed, and has not expired; secrets stay secret."""

import base64
import contextlib
import copy
import errno
import os
import pickle
import re
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from parl_evokit import (
    EvolutionError,
    InvalidReward,
    InvalidToken,
    LogWriter,
    RecordError,
    Refusal,
    SamplingInfo,
    SecretError,
    Tokens,
    read_log,
)
from parl_evokit import tokens as tokens_module
from parl_evokit._records import Record
from parl_evokit.cli import main
from parl_evokit.log._frames import scan
from parl_evokit.tokens import create_secret, rotate_secret

ONE, TWO = bytes(range(32)), bytes(range(32, 64))
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "evokit" / "tokens.md"
INFO = SamplingInfo([123456789, 987654321], 7, 0x12345678)


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(clock: Clock) -> Tokens:
    return Tokens([ONE, TWO], lifetime_s=100, clock=clock)


def refusal(tokens: Tokens, token: object) -> Refusal:
    with pytest.raises(InvalidToken) as caught:
        tokens.redeem(token)  # type: ignore[arg-type]  # what comes from outside
    reason = caught.value.reason
    assert isinstance(reason, Refusal)
    return reason


def test_the_pages_vectors_hold(tokens: Tokens, clock: Clock) -> None:
    rows = re.findall(r"\| `([\w-]{56})` \| `([0-9a-f]{84})` \|", PAGE.read_text(encoding="utf-8"))
    control = SamplingInfo([0, 0], 7, 0x12345678, identity=42)
    expected = [tokens.issue(INFO), tokens.issue(control), Tokens([TWO], lifetime_s=100, clock=clock).issue(INFO)]
    assert [token for token, _ in rows] == expected
    for (token, data), info in zip(rows, (INFO, control, INFO), strict=True):
        assert base64.urlsafe_b64decode(token).hex() == data
        assert tokens.redeem(token) == info


def test_samples_without_noise_get_identities_of_their_own(tokens: Tokens) -> None:
    control, other = SamplingInfo([0, 0], 7, 1), SamplingInfo([], 7, 1)
    first, second = tokens.issue(control), tokens.issue(other)
    assert tokens.redeem(first).identity == control.identity != other.identity == tokens.redeem(second).identity
    assert tokens.issue(control) == first


@pytest.mark.parametrize("bit", range(0, 42 * 8, 3))
def test_a_token_of_which_a_bit_is_changed_is_refused(tokens: Tokens, bit: int) -> None:
    data = bytearray(base64.urlsafe_b64decode(tokens.issue(INFO)))
    data[bit // 8] ^= 1 << bit % 8
    reason = refusal(tokens, base64.urlsafe_b64encode(data).decode())
    expected = Refusal.MALFORMED if bit < 16 else Refusal.UNKNOWN_SECRET if bit < 48 else Refusal.FORGED
    if bit == 8:  # the flag, which the hash covers
        expected = Refusal.FORGED
    assert reason is expected
    assert tokens.refused == {expected: 1}


@pytest.mark.parametrize("text", ["", "x", "A" * 55, "A" * 57, "=" * 56, "é" * 56, " " * 56, None, 5, b"A" * 56, []])
def test_what_is_no_token_is_refused_as_such(tokens: Tokens, text: object) -> None:
    assert refusal(tokens, text) is Refusal.MALFORMED


def test_a_token_expires(tokens: Tokens, clock: Clock) -> None:
    token = tokens.issue(INFO)
    clock.now += 100
    assert tokens.redeem(token) == INFO
    clock.now += 0.9  # within the second that the token names
    assert tokens.redeem(token) == INFO
    clock.now += 0.1
    assert refusal(tokens, token) is Refusal.EXPIRED


def test_a_token_of_any_moment_lives_as_long_as_it_should(tokens: Tokens, clock: Clock) -> None:
    clock.now += 0.7
    token = tokens.issue(INFO)
    clock.now += 100
    assert tokens.redeem(token) == INFO


def test_after_a_rotation_tokens_under_way_are_good_until_their_secret_is_dropped(tmp_path: Path) -> None:
    path = create_secret(tmp_path / "keys" / "secret")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    token = Tokens.load(path).issue(INFO)
    rotate_secret(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    both = Tokens.load(environment={"EVOKIT_SECRET_FILE": str(path)})
    assert both.redeem(token) == INFO
    assert both.issue(INFO)[2:8] != token[2:8]
    rotate_secret(path)
    assert refusal(Tokens.load(path), token) is Refusal.UNKNOWN_SECRET


def test_secrets_come_from_the_environment(tmp_path: Path) -> None:
    found = Tokens.load(environment={"EVOKIT_SECRET": f"evokit1-{ONE.hex()}, evokit1-{TWO.hex()}"})
    assert Tokens([ONE]).redeem(found.issue(INFO)) == INFO
    alone = {"EVOKIT_SECRET_FILE": "", "EVOKIT_SECRET": f"evokit1-{ONE.hex()}"}
    assert Tokens.load(environment=alone).redeem(Tokens([ONE]).issue(INFO)) == INFO
    for nothing in ({}, {"EVOKIT_SECRET_FILE": ""}):
        with pytest.raises(SecretError, match="there is no secret"):
            Tokens.load(environment=nothing)
    no_secrets: Any = (ONE, ["a" * 32], "a" * 32, [b"short"], [])
    for wrong in no_secrets:
        with pytest.raises(SecretError, match="one or more secrets of 32 bytes"):
            Tokens(wrong)
    with pytest.raises(SecretError, match="secret 1 is not evokit1-"):
        Tokens.load(environment={"EVOKIT_SECRET": "swordfish"})


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = create_secret(tmp_path / "secret")
    path.chmod(0o640)
    with pytest.raises(SecretError, match="chmod 600"):
        Tokens.load(path)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(SecretError, match="symbolic link"):
        Tokens.load(tmp_path / "link")


def test_a_secret_is_never_in_a_models_or_a_logs_directory(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "log") as log:
        log.sampled(INFO)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "solver.json").write_text("{}")
    for place in ("log", "model", "log/below", "model/below/it"):
        with pytest.raises(SecretError, match="a model or a log"):
            create_secret(tmp_path / place / "secret")
    inside = create_secret(tmp_path / "new" / "secret")
    with pytest.raises(SecretError, match="directory of the log"):
        LogWriter(tmp_path / "new", tokens=Tokens.load(inside))


def test_a_directory_that_cannot_be_looked_into_is_an_error_of_the_secret(tmp_path: Path) -> None:
    there = tmp_path / ("a" * 300) / "secret"  # the system refuses the name, as it does a directory of others
    for call in (Tokens.load, create_secret, rotate_secret):
        with pytest.raises(SecretError, match="cannot be"):
            call(there)


def test_a_token_may_be_good_for_ever(clock: Clock) -> None:
    tokens = Tokens([ONE], lifetime_s=float("inf"), clock=clock)
    token = tokens.issue(INFO)
    clock.now = 4_000_000_000.0
    assert tokens.redeem(token) == INFO


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (SamplingInfo([5, 6], 2**31), "model_iter_id must be from 0 to 2"),
        (SamplingInfo([], 1, 7, 2**62), "identity must be from 2 to 2"),
        (SamplingInfo([5, 6], 1, 2**32), "fingerprint must be from 0 to 2"),
    ],
)
def test_no_token_is_issued_for_a_sample_that_no_log_holds(tokens: Tokens, info: SamplingInfo, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        tokens.issue(info)


def test_a_log_with_tokens_takes_rewards_for_tokens_only(tmp_path: Path, tokens: Tokens) -> None:
    with LogWriter(tmp_path, tokens=tokens) as log:
        info = SamplingInfo([5, 6], 7, 0x12345678)
        token = log.sampled(info)
        log.reward(token, 2.5)
        for bad in (info, token[:-1] + ("A" if token[-1] != "A" else "B")):
            with pytest.raises(InvalidToken):
                log.reward(bad, 1.0)
    assert tokens.refused == {Refusal.MALFORMED: 1, Refusal.FORGED: 1}
    contents = read_log(tmp_path)
    assert (contents.infos, contents.rewards, contents.pending) == ([info], [2.5], 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e39, 10**400, "3", None, "nan"])
def test_a_reward_that_is_none_is_refused_by_name_and_its_token_stays_good(
    tmp_path: Path, tokens: Tokens, bad: object
) -> None:
    with LogWriter(tmp_path, tokens=tokens) as log:
        token = log.sampled(INFO)
        with pytest.raises((RecordError, InvalidReward), match=r"a reward must (be|fit) a"):
            log.reward(token, bad)  # type: ignore[arg-type]
        log.reward(token, 1.0)
    assert read_log(tmp_path).rewards == [1.0]
    assert tokens.refused == {Refusal.BAD_REWARD: 1}


def test_threads_count_every_refused_token(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread may be interrupted between reading a count and writing it."""
    both, own = threading.Barrier(2), threading.local()
    shown = Refusal.__hash__

    def hashed(reason: Refusal) -> int:
        own.calls = getattr(own, "calls", 0) + 1
        if own.calls == 2:  # the first is that of reading, this one that of writing
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)
        return shown(reason)

    with pytest.raises(InvalidToken):
        tokens.redeem("x" * 56)
    monkeypatch.setattr(Refusal, "__hash__", hashed)
    with ThreadPoolExecutor(2) as pool:
        errors = [work.exception() for work in [pool.submit(tokens.redeem, "x" * 56) for _ in range(2)]]
    monkeypatch.undo()
    assert all(isinstance(error, InvalidToken) for error in errors)
    assert tokens.refused == {Refusal.MALFORMED: 3}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork copies locks")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_refuses_tokens_while_its_parent_counts_one(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: list[int] = []
    shown = Refusal.__hash__

    def hashed(reason: Refusal) -> int:
        monkeypatch.undo()
        child = os.fork()  # the thread that counts goes on in the parent only
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            with contextlib.suppress(InvalidToken):
                tokens.redeem("x" * 56)
            os._exit(0)
        statuses.append(os.waitpid(child, 0)[1])
        return shown(reason)

    monkeypatch.setattr(Refusal, "__hash__", hashed)
    with pytest.raises(InvalidToken):
        tokens.redeem("x" * 56)
    assert statuses == [0]
    assert tokens.refused == {Refusal.MALFORMED: 1}


def test_tokens_can_be_sent_to_another_process(tokens: Tokens) -> None:
    with pytest.raises(InvalidToken):
        tokens.redeem("x" * 56)
    again = pickle.loads(pickle.dumps(tokens))
    with pytest.raises(InvalidToken):
        again.redeem("x" * 56)
    assert again.refused == {Refusal.MALFORMED: 2}
    assert again.redeem(tokens.issue(SamplingInfo([1, 2], 3, 4))).key == [1, 2]


def test_refused_tokens_are_tallied_in_few_records(tmp_path: Path, tokens: Tokens) -> None:
    with LogWriter(tmp_path, tokens=tokens) as log:
        for _ in range(1000):
            with pytest.raises(InvalidToken):
                log.reward("A" * 56, 1.0)
    (segment,) = tmp_path.glob("*.evl")
    records = [Record.decode(payload) for payload in scan(segment.read_bytes()).payloads[2:]]
    assert sum(record.refused[Refusal.MALFORMED.value] for record in records) == 1000
    assert len(records) < 100


def test_a_forked_child_does_not_write_its_parents_tally_once_more(
    tmp_path: Path, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = LogWriter(tmp_path, tokens=tokens)
    for _ in range(10):
        with pytest.raises(InvalidToken):
            parent.reward("A" * 56, 1.0)
    child = copy.copy(parent)  # as a fork makes one
    child._descriptor, child._refused = os.dup(parent._descriptor or 0), parent._refused.copy()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 4711)
        with pytest.raises(InvalidToken):
            child.reward("A" * 56, 1.0)
        child.close()
    parent.close()
    assert read_log(tmp_path).refused == {Refusal.MALFORMED.value: 11}


def test_a_log_without_tokens_says_what_a_token_needs(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log, pytest.raises(RecordError, match="no tokens"):
        log.reward("A" * 56, 1.0)


ROTATES_AND_DIES = """
import os, signal, sys
from parl_evokit.tokens import rotate_secret

os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
rotate_secret(sys.argv[1])
"""


def test_the_next_rotation_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    path = create_secret(tmp_path / "[1] secret")
    before = path.read_text()
    other = tmp_path / ".other.0.tmp"
    other.touch()
    killed = subprocess.run([sys.executable, "-c", ROTATES_AND_DIES, path], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_text() == before
    assert len(list(tmp_path.iterdir())) == 3
    rotate_secret(path)
    assert {*tmp_path.iterdir()} == {path, other}


def test_the_command_makes_and_rotates_secrets(tmp_path: Path) -> None:
    path = str(tmp_path / "secret")
    assert CliRunner().invoke(main, ["secret", "new", path]).exit_code == 0
    again = CliRunner().invoke(main, ["secret", "new", path])
    assert again.exit_code == 2
    assert again.stderr.count("\n") == 1
    assert CliRunner().invoke(main, ["secret", "rotate", path, "--keep", "3"]).exit_code == 0
    assert len(Path(path).read_text(encoding="ascii").split()) == 2


def test_secrets_are_checked(tmp_path: Path) -> None:
    for secrets, life in (([], 5.0), ([b"short"], 5.0), ([ONE], 0.0), ([ONE], float("nan"))):
        with pytest.raises(EvolutionError):
            Tokens(secrets, lifetime_s=life)


def test_a_process_that_runs_on_takes_tokens_of_a_rotated_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = create_secret(tmp_path / "secret")
    collector, issued = Tokens.load(path), Tokens.load(path).issue(SamplingInfo([1, 2], 3, 4))
    rotate_secret(path)
    assert collector.redeem(Tokens.load(path).issue(SamplingInfo([1, 2], 3, 4))).key == [1, 2]
    assert collector.redeem(issued).key == [1, 2]
    monkeypatch.setattr(tokens_module, "_read", lambda _: pytest.fail("the file has not changed"))
    for _ in range(3):
        with pytest.raises(InvalidToken) as caught:
            collector.redeem(Tokens([bytes(32)]).issue(SamplingInfo([1, 2], 3, 4)))
        assert caught.value.reason is Refusal.UNKNOWN_SECRET


def test_a_process_that_only_issues_tokens_signs_with_the_newest_secret(tmp_path: Path) -> None:
    """Its tokens would be refused after the rotation that drops the secret that it has read."""
    path = create_secret(tmp_path / "secret")
    server = Tokens.load(path)
    for _ in range(3):
        rotate_secret(path)
        assert Tokens.load(path).redeem(server.issue(INFO)) == INFO
    path.chmod(0o644)
    token = server.issue(INFO)  # with the secret that it knows, as long as the file cannot be used
    path.chmod(0o600)
    assert Tokens.load(path).redeem(token) == INFO


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_a_rotated_secret_that_came_with_a_wrong_mode_is_read_once_that_is_right(tmp_path: Path) -> None:
    path = create_secret(tmp_path / "secret")
    collector = Tokens.load(path)
    rotate_secret(path)
    token = Tokens.load(path).issue(SamplingInfo([1, 2], 3, 4))
    path.chmod(0o644)
    with pytest.raises(InvalidToken):
        collector.redeem(token)
    path.chmod(0o600)
    assert collector.redeem(token).key == [1, 2]


def test_a_rotated_secret_is_read_once_the_process_has_files_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = create_secret(tmp_path / "secret")
    collector = Tokens.load(path)
    rotate_secret(path)
    token = Tokens.load(path).issue(SamplingInfo([1, 2], 3, 4))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert refusal(collector, token) is Refusal.UNKNOWN_SECRET
    assert collector.redeem(token).key == [1, 2]
