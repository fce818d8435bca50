"""The first frame of a segment: which segment it is, and whose samples are in it."""

from dataclasses import dataclass

from parl_evokit.errors import RecordError
from parl_evokit.wire import BYTES, FIXED32, VARINT, read_fields, varint

__all__ = ["Header", "is_header"]

FORMAT = 1
FORMAT_TAG, SEGMENT_TAG, FINGERPRINT_TAG = 1 << 3 | VARINT, 2 << 3 | BYTES, 3 << 3 | FIXED32
HOST_TAG, PID_TAG, TIME_TAG = 4 << 3 | BYTES, 5 << 3 | VARINT, 6 << 3 | VARINT


@dataclass(frozen=True)
class Header:
    """What a segment says of itself.

    Attributes:
        segment: Its random name, 32 hexadecimal digits.
        fingerprint: Of the samples in it that do not carry one of their own.
        host: Where it was written.
        pid: By which process.
        time_us: When it was begun, in microseconds since 1970 (UTC).
    """

    segment: str
    fingerprint: int
    host: str = ""
    pid: int = 0
    time_us: int = 0

    def encode(self) -> bytes:
        """The header as a message; its first byte tells it from a record."""
        segment, host = self.segment.encode(), self.host.encode()
        return b"".join(
            (
                bytes((FORMAT_TAG, FORMAT)),
                bytes((SEGMENT_TAG,)) + varint(len(segment)) + segment,
                bytes((FINGERPRINT_TAG,)) + self.fingerprint.to_bytes(4, "little"),
                bytes((HOST_TAG,)) + varint(len(host)) + host,
                bytes((PID_TAG,)) + varint(self.pid),
                bytes((TIME_TAG,)) + varint(self.time_us),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> "Header":
        """Read what `encode` wrote.

        Raises:
            RecordError: The bytes are not a header of format 1.
        """
        fields = {number: value for number, _, value in read_fields(data)}
        segment, fingerprint, host = fields.get(2), fields.get(3), fields.get(4, b"")
        if fields.get(1) != FORMAT or not isinstance(segment, bytes) or not isinstance(fingerprint, bytes):
            raise RecordError(f"this is not the header of a log segment of format {FORMAT}")
        return cls(
            segment.decode(errors="replace"),
            int.from_bytes(fingerprint, "little"),
            host.decode(errors="replace") if isinstance(host, bytes) else "",
            _integer(fields.get(5)),
            _integer(fields.get(6)),
        )


def is_header(payload: bytes) -> bool:
    """Whether a frame's payload is a header; records begin with another field."""
    return len(payload) > 0 and payload[0] == FORMAT_TAG


def _integer(value: int | bytes | None) -> int:
    return value if isinstance(value, int) else 0
