"""Tokens: the form in which a service sends a sample's identity to a client, so that the reward can be trusted.

    serve:     info ──► Tokens.issue ──► 56 characters ──► page, app or queue
    feedback:  56 characters ──► Tokens.redeem ──► info, or `InvalidToken` with the reason

A token holds the sample, the model, an expiry and a keyed hash of them; without the secret a program can neither make
nor change one. The service stores nothing about the issued tokens. The update counts a token only once, because it
records the samples that it has used. `reference/evokit/tokens.md` has the layout, and test vectors for other languages.

Secrets are lines `evokit1-<64 hexadecimal digits>`, in a file of mode 0600 or in an environment variable. The first
secret signs, and tokens of all of them are accepted: rotation puts a new line on top and drops the last.
"""

import base64
import binascii
import contextlib
import glob
import hashlib
import hmac
import os
import re
import secrets as random
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import Any

from parl_core.atomic_write import atomic_write
from parl_evokit._directories import path_of
from parl_evokit._records import SamplingInfo
from parl_evokit.errors import InvalidToken, RecordError, SecretError
from parl_evokit.noise._keys import CONTROL_KEY, identity_of_no_arm

__all__ = ["Refusal", "Tokens", "create_secret", "refusals", "rotate_secret"]

COPIED = re.compile(r"^(solver\.json|.*\.evl)$", re.MULTILINE)  # names of files in the directory of a model or a log
VARIABLE, FILE_VARIABLE = "EVOKIT_SECRET", "EVOKIT_SECRET_FILE"
PREFIX = "evokit1-"
SECRET_BYTES = 32
LINE = re.compile(rf"{PREFIX}([0-9a-f]{{{2 * SECRET_BYTES}}})")
FORMAT = 1
WITHOUT_NOISE = 1  # flag
BODY = struct.Struct("<BB4sIIIQ")
HASH_BYTES = 16
TOKEN_BYTES = BODY.size + HASH_BYTES
CHARACTERS = TOKEN_BYTES * 4 // 3
ALPHABET = re.compile(rf"[A-Za-z0-9_-]{{{CHARACTERS}}}")
HASHED, NAMED = b"evokit token 1\0", b"evokit secret 1\0"
LATEST = 2**32 - 1
WEEK_S = 7 * 24 * 3600


class Refusal(Enum):
    """The reason why a token is rejected; logs contain the value.

    Attributes:
        MALFORMED: It is not 56 characters of the alphabet, or its fields are not those of format 1.
        UNKNOWN_SECRET: It was signed with a secret that this process does not have.
        FORGED: Its hash is wrong.
        EXPIRED: Its lifetime is over.
        BAD_REWARD: The token is valid, but the reward is not a finite float32 number.
    """

    MALFORMED = 1
    UNKNOWN_SECRET = 2
    FORGED = 3
    EXPIRED = 4
    BAD_REWARD = 5


def refusals(tallies: Mapping[int, int]) -> dict[str, int]:
    """Return numbers of rejected tokens by reason, such as `forged`; the reasons of later versions are numbers."""
    names = {reason.value: reason.name.lower() for reason in Refusal}
    return {names.get(number, str(number)): count for number, count in sorted(tallies.items())}


class Tokens:
    """Issues and redeems tokens.

    Threads may share it. `refused` counts the tokens that `redeem`, or a log with these tokens, rejected in this
    process.

    Args:
        secrets: One or more of 32 bytes; the first signs, and tokens of all of them are accepted.
        lifetime_s: The time for which a token is valid, in seconds; 1 or more.
        clock: The present time in seconds since 1970.

    Raises:
        SecretError: There is no secret, or a secret does not have 32 bytes.
    """

    def __init__(
        self, secrets: Sequence[bytes], *, lifetime_s: float = WEEK_S, clock: Callable[[], float] = time.time
    ) -> None:
        if not secrets or not all(isinstance(secret, bytes) and len(secret) == SECRET_BYTES for secret in secrets):
            raise SecretError(f"one or more secrets of {SECRET_BYTES} bytes are needed")
        if not lifetime_s >= 1:
            raise SecretError(f"lifetime_s must be 1 or more, not {lifetime_s}")
        self._keys = _by_name(secrets)  # in one assignment, because threads share them
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._file: Path | None = None
        self._version: object = None  # version of the file when it was read
        self.refused: Counter[Refusal] = Counter()
        # by process, because a fork may copy a lock that another thread holds
        self._counting: dict[int, threading.Lock] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_counting"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _counting={})

    @classmethod
    def load(
        cls,
        path: str | PathLike[str] | None = None,
        *,
        lifetime_s: float = WEEK_S,
        environment: Mapping[str, str] | None = None,
    ) -> "Tokens":
        """Return tokens with the secrets of a file or of the environment.

        After `rotate_secret` in another process, the file is read again for the next token that is issued, and for one
        that names a secret that is not known.

        Args:
            path: File of the secrets. Default: the file that `EVOKIT_SECRET_FILE` names, else the secrets in
                `EVOKIT_SECRET`.
            lifetime_s: As for the constructor.
            environment: Environment variables. Default: those of this process.

        Raises:
            SecretError: There is no secret; the file can be read by others, belongs to another user, is a symbolic
                link, or is names of files in the directory of a model or a log.
        """
        environment = os.environ if environment is None else environment
        path = path or environment.get(FILE_VARIABLE)
        if path:
            target = path_of(path, SecretError)
            version = _version(target)
            tokens = cls(_read(target), lifetime_s=lifetime_s)
            tokens._file, tokens._version = Path(os.path.realpath(path)), version
            return tokens
        if VARIABLE not in environment:
            raise SecretError(
                f"there is no secret: pass a file (evokit secret new FILE), or set {FILE_VARIABLE} or {VARIABLE}"
            )
        return cls(_parsed(environment[VARIABLE], VARIABLE), lifetime_s=lifetime_s)

    @property
    def file(self) -> Path | None:
        """The file of the secrets; None if they were not read from a file."""
        return self._file

    def issue(self, info: SamplingInfo) -> str:
        """Return the token of a sample that is served now.

        Args:
            info: Record of the sample. A sample without noise that has no identity yet gets one.

        Raises:
            InvalidKey: The sample's key is not a valid key.
            RecordError: A number of the sample does not fit its field.
        """
        if not isinstance(info, SamplingInfo):
            raise RecordError(f"a sample must be a SamplingInfo, not of type {type(info).__name__}")
        key, flags = info.noise_key, 0
        if key == CONTROL_KEY:
            info.identity = info.identity or identity_of_no_arm(random.randbits)
            key, flags = info.identity, WITHOUT_NOISE
        secrets, signing = self._newest()
        expiry = int(min(LATEST, self._clock() + self._lifetime_s))
        info.SerializeToString()  # a sample that is in no log must not be served
        try:
            body = BODY.pack(FORMAT, flags, signing, expiry, info.model_iter_id, info.fingerprint, key)
        except struct.error as error:
            raise InvalidToken(f"{info} has no token: {error}", Refusal.MALFORMED) from error
        return base64.urlsafe_b64encode(body + self._hash(secrets[signing], body)).decode()

    def redeem(self, token: str) -> SamplingInfo:
        """Return the sample of a token that was issued and has not expired.

        Raises:
            InvalidToken: The token was not issued or has expired; `reason` is the cause, which `refused` counts.
        """
        try:
            return self._redeem(token)
        except InvalidToken as error:
            self.refuse(error.reason)
            raise

    def refuse(self, reason: Refusal) -> None:
        """Count a token that is rejected for this reason."""
        with self._counting.setdefault(os.getpid(), threading.Lock()):  # an increment of a `Counter` is not atomic
            self.refused[reason] += 1

    def _redeem(self, token: object) -> SamplingInfo:
        if not isinstance(token, str):
            kind = type(token).__name__
            raise InvalidToken(f"rewards are taken for tokens only, which are texts, not a {kind}", Refusal.MALFORMED)
        if not ALPHABET.fullmatch(token):
            raise InvalidToken(f"a token is {CHARACTERS} characters of base64url", Refusal.MALFORMED)
        try:
            data = base64.urlsafe_b64decode(token)
        except binascii.Error as error:
            raise InvalidToken(f"this is not a token: {error}", Refusal.MALFORMED) from error
        body, found = data[: BODY.size], data[BODY.size :]
        form, flags, name, expiry, model, fingerprint, key = BODY.unpack(body)
        if form != FORMAT or flags & ~WITHOUT_NOISE:
            raise InvalidToken(f"this is not a token of format {FORMAT}", Refusal.MALFORMED)
        secret = self._keys[0].get(name) or self._newest()[0].get(name)
        if secret is None:
            raise InvalidToken("the token was signed with a secret that is not known here", Refusal.UNKNOWN_SECRET)
        if not hmac.compare_digest(found, self._hash(secret, body)):
            raise InvalidToken("the token was not issued here, or was changed", Refusal.FORGED)
        late = int(self._clock()) - expiry  # the second of the expiry is part of the lifetime
        if late > 0:
            raise InvalidToken(f"the token expired {late} s ago", Refusal.EXPIRED)
        info = SamplingInfo()
        if flags & WITHOUT_NOISE:
            info.fill(CONTROL_KEY, model, fingerprint)
            info.identity = key
        else:
            info.fill(key, model, fingerprint)
        return info

    def _newest(self) -> tuple[Mapping[bytes, bytes], bytes]:
        """Return the secrets by name, and the name of the signing one, after reading a changed file."""
        if self._file is not None and (version := _version(self._file)) not in {None, self._version}:
            try:
                self._keys = _by_name(_read(self._file))
            except SecretError as error:  # the known secrets stay in use
                cause = error.__cause__  # such as too many open files: the file may be right, unless its mode is wrong
                if isinstance(cause, OSError) and not isinstance(cause, PermissionError):
                    return self._keys
            self._version = version
        return self._keys

    @staticmethod
    def _hash(secret: bytes, body: bytes) -> bytes:
        return hmac.digest(secret, HASHED + body, "sha256")[:HASH_BYTES]


def create_secret(path: str | PathLike[str]) -> Path:
    """Write a new secret into a new file of mode 0600.

    Raises:
        SecretError: There is a file of that name, it would be names of files in the directory of a model or a log, or
            it cannot be written.
    """
    target = path_of(path, SecretError)
    if os.path.lexists(target):
        raise SecretError(f"{target} exists already: rotate it, or use another name")
    return _write(target, [random.token_bytes(SECRET_BYTES)])


def rotate_secret(path: str | PathLike[str], *, keep: int = 1) -> Path:
    """Add a new secret at the front of a file, so that it signs from now on.

    Args:
        path: File of the secrets.
        keep: Number of earlier secrets to keep, so that their tokens are still accepted; 0 or more.

    Raises:
        SecretError: See `Tokens.load`, or the file cannot be written.
    """
    if keep < 0:
        raise SecretError(f"keep must be 0 or more, not {keep}")
    target = path_of(path, SecretError)
    return _write(target, [random.token_bytes(SECRET_BYTES), *_read(target)[:keep]])


def _by_name(secrets: Sequence[bytes]) -> tuple[dict[bytes, bytes], bytes]:
    """Return secrets by their names, and the name of the signing one."""
    return {_name(secret): secret for secret in reversed(secrets)}, _name(secrets[0])


def _version(path: Path) -> object:
    """Return a version of a file, which changes when it is rotated or becomes readable; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode, found.st_uid


def _name(secret: bytes) -> bytes:
    """Return the four bytes by which tokens name their secret."""
    return hashlib.sha256(NAMED + secret).digest()[:4]


def _write(path: Path, secrets: Sequence[bytes]) -> Path:
    text = "".join(f"{PREFIX}{secret.hex()}\n" for secret in secrets)
    try:
        _require_own_directory(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # secrets of a rotation that was killed
            left.unlink(missing_ok=True)
        with atomic_write(path, "w", permissions=0o600) as file:
            file.write(text)
    except OSError as error:
        raise SecretError(f"{path} cannot be written: {error}") from error
    return path


def _read(path: Path) -> list[bytes]:
    try:
        _require_own_directory(path)
        if path.is_symlink():
            raise SecretError(f"{path} is a symbolic link: pass the file itself")
        found = path.stat()
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise SecretError(f"{path} cannot be read: {error}") from error
    if os.name == "posix":
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise SecretError(f"{path} can be read or written by others: chmod 600 {path}")
        if found.st_uid != os.geteuid():
            raise SecretError(f"{path} belongs to user {found.st_uid}, not to this one ({os.geteuid()})")
    return _parsed(text, str(path))


def _parsed(text: str, where: str) -> list[bytes]:
    secrets: list[bytes] = []
    for word in text.replace(",", " ").split():
        match = LINE.fullmatch(word)
        if match is None:
            raise SecretError(f"{where}: secret {len(secrets) + 1} is not {PREFIX} and {2 * SECRET_BYTES} digits")
        secrets.append(bytes.fromhex(match[1]))
    if not secrets:
        raise SecretError(f"{where} holds no secret")
    return secrets


def _require_own_directory(path: Path) -> None:
    """Reject a location from which secrets would be copied with models or logs."""
    for directory in Path(os.path.realpath(path)).parents:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if COPIED.search("\n".join(os.listdir(directory))):
                raise SecretError(
                    f"{directory} is the directory of a model or a log, which is often copied: choose one outside it"
                )
