"""Compute the test vectors of noise specification v1 in plain integers, apart from the package's own fast code.

    python tools/make_vectors.py             compare the shipped vectors with what this script computes
    python tools/make_vectors.py --write     write them

Everything but the quantile file is written out here once more, so that an error in the package's arrays does not find
its way into the vectors. A client in another language passes when it gives the same numbers.
"""

import argparse
import hashlib
import json
import struct
import sys
import zlib
from array import array
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "parl_evokit" / "noise"
TARGET = PACKAGE / "vectors_v1.json"
MASK = 2**64 - 1


def quantiles() -> list[int]:
    """The table that ships with the package, both halves."""
    upper = list(struct.unpack("<32768h", (PACKAGE / "quantiles_v1.i2").read_bytes()))
    return [-x for x in reversed(upper)] + upper


QUANTILES = quantiles()


def philox(counter: int, seed: int, stream: int) -> list[int]:
    """Philox4x64-10 of a counter below 2**64."""
    c, k = [counter, 0, 0, 0], [seed, stream]
    for _ in range(10):
        high_0, low_0 = divmod(0xD2E7470EE14C6C93 * c[0], 2**64)
        high_2, low_2 = divmod(0xCA5A826395121157 * c[2], 2**64)
        c = [high_2 ^ c[1] ^ k[0], low_2, high_0 ^ c[3] ^ k[1], low_0]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return c


def computed_units(seed: int, stream: int, coordinates: range) -> list[int]:
    """Noise without a table."""
    units = []
    for c in coordinates:
        block, place = divmod(c, 16)
        word = philox(block + 1, seed, stream)[place // 4]
        units.append(QUANTILES[(word >> (16 * (place % 4))) & 0xFFFF])
    return units


def splitmix(key: int, n: int) -> int:
    """The (n + 1)-th number after `key`."""
    z = (key + (n + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def cached_units(table: list[int], pair: int, coordinates: range) -> list[int]:
    """Noise from a table, by windows."""
    block = 2**16
    while block > len(table) // 4:
        block //= 2
    units = []
    for c in coordinates:
        start = splitmix(pair, c // block) % (len(table) - block + 1)
        units.append(table[start + c % block])
    return units


def signed(units: list[int], key: int) -> list[int]:
    """Noise of the odd half of a pair has the opposite sign."""
    return [-unit for unit in units] if key % 2 else units


def single(value: float) -> float:
    """Round to float32."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def perturbed(units: list[int], std: float, first: int) -> list[float]:
    """Parameters (c + 1) / 64 plus noise. Rounding by way of float64 gives what float32 gives."""
    scale = single(std) / 4096
    return [single((first + i + 1) / 64 + single(unit * scale)) for i, unit in enumerate(units)]


def units_digest(units: list[int]) -> str:
    """SHA-256 over the units as little-endian 16-bit integers."""
    return hashlib.sha256(struct.pack(f"<{len(units)}h", *units)).hexdigest()


CASES: list[dict[str, Any]] = [
    {"seed": 18, "cache_size": 0, "key": 2, "start": 0, "count": 40},
    {"seed": 18, "cache_size": 0, "key": 3, "start": 0, "count": 40},
    {"seed": 1024, "cache_size": 0, "key": 0x2A5F_1234_89AB_CDEE, "start": 5, "count": 100},
    {"seed": 2**64 - 1, "cache_size": 0, "key": 2**62 - 1, "start": 1_000_003, "count": 50},
    {"seed": 1024, "cache_size": 0, "key": 0x0123_4567_89AB_CDEF, "start": 0, "count": 5000},
    {"seed": 18, "cache_size": 64, "key": 2, "start": 0, "count": 40},
    {"seed": 18, "cache_size": 64, "key": 3, "start": 0, "count": 40},
    {"seed": 1024, "cache_size": 4096, "key": 0x2A5F_1234_89AB_CDEE, "start": 1000, "count": 3000},
    {"seed": 1024, "cache_size": 10000, "key": 0x0123_4567_89AB_CDEF, "start": 999_990, "count": 40},
]


def vectors() -> dict[str, Any]:
    """All test vectors."""
    tables: dict[tuple[int, int], list[int]] = {}
    noise = []
    for case in CASES:
        seed, size, key = case["seed"], case["cache_size"], case["key"]
        coordinates = range(case["start"], case["start"] + case["count"])
        if size:
            table = tables.setdefault((seed, size), computed_units(seed, 0, range(size)))
            units = signed(cached_units(table, key >> 1, coordinates), key)
        else:
            units = signed(computed_units(seed, key >> 1, coordinates), key)
        vector = perturbed(units, 0.3, case["start"])
        noise.append(
            case
            | {
                "seed": str(seed),
                "key": str(key),
                "key_halves": [key >> 31, key & (2**31 - 1)],
                "units": units[:40],
                "units_sha256": units_digest(units),
                "perturbed": vector[:8],
                "perturbed_sha256": hashlib.sha256(struct.pack(f"<{len(vector)}f", *vector)).hexdigest(),
            }
        )
    return {
        "specification": 1,
        "comment": (
            "64-bit integers are decimal strings; cache_size 0: no table; units: the first 40 at most; "
            "perturbed: parameters (c + 1) / 64 with std 0.3, the first 8"
        ),
        "philox4x64_10": [
            {"counter": 1, "key": ["18", "1"], "words": [f"{word:016x}" for word in philox(1, 18, 1)]},
            {
                "counter": 77,
                "key": ["1024", str(2**61 - 1)],
                "words": [f"{w:016x}" for w in philox(77, 1024, 2**61 - 1)],
            },
        ],
        "splitmix64": [
            {"key": "1", "n": 0, "value": f"{splitmix(1, 0):016x}"},
            {"key": str(2**61 - 1), "n": 61, "value": f"{splitmix(2**61 - 1, 61):016x}"},
        ],
        "windows": [windows(key, size) for key, size in ((2, 64), (0x2A5F_1234_89AB_CDEE, 4096), (2**62 - 1, 10**6))],
        "noise": noise,
        "weighted_sum": weighted_sum(),
        "fingerprint": fingerprint(1024, "gaussian", 100_000, ["w0", "b0"], [[4, 20], [20]]),
        "records": [record(*case) for case in RECORDS],
        "segment": segment(),
    }


def windows(key: int, cache_size: int) -> dict[str, Any]:
    """Return the positions at which the first windows of a key begin in a table."""
    block = 2**16
    while block > cache_size // 4:
        block //= 2
    starts = [splitmix(key >> 1, number) % (cache_size - block + 1) for number in range(6)]
    return {"key": str(key), "cache_size": cache_size, "block": block, "starts": starts}


def fingerprint(seed: int, sampler: str, table: int, names: list[str], shapes: list[list[int]]) -> dict[str, Any]:
    """The 32 bits that a model's samples carry."""
    head = f"evokit noise 1\nseed {seed}\nsampler {sampler}\ntable {table}\n"
    layout = hashlib.sha256(json.dumps([names, shapes], separators=(",", ":")).encode()).digest()
    value = int.from_bytes(hashlib.sha256(head.encode() + layout).digest()[:4], "little") or 1
    return {
        "seed": str(seed),
        "sampler": sampler,
        "table": table,
        "names": names,
        "shapes": shapes,
        "fingerprint": value,
    }


RECORDS: list[tuple[int, int, int, float]] = [
    (2, 0, 0, 0.0),
    (0x2A5F_1234_89AB_CDEE, 7, 0x12345678, 1.5),
    (2**62 - 1, 2**31 - 1, 2**32 - 1, -123.4375),
    (0, 300, 1, 0.10000000149011612),
]


def varint(number: int) -> bytes:
    """Groups of seven bits, lowest first."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes([number])


def record(key: int, model_iter_id: int, mark: int, reward: float) -> dict[str, Any]:
    """A sample's messages and their frame."""
    info = b"\x08" + varint(key >> 31) + b"\x08" + varint(key & (2**31 - 1)) + b"\x10" + varint(model_iter_id)
    if mark:
        info += b"\x1d" + struct.pack("<I", mark)
    message = b"\x0a" + varint(len(info)) + info + b"\x15" + struct.pack("<f", reward)
    return {
        "key": str(key),
        "model_iter_id": model_iter_id,
        "fingerprint": mark,
        "reward": reward,
        "sampling_info": info.hex(),
        "record": message.hex(),
        "frame": frame(message).hex(),
    }


def frame(payload: bytes) -> bytes:
    """A payload as it lies in a segment."""
    length = struct.pack("<H", len(payload))
    return b"\xe5\x4b" + length + struct.pack("<I", zlib.crc32(length + payload)) + payload


def segment() -> dict[str, Any]:
    """A whole segment: its header twice, and two records that take their fingerprint from it."""
    name, mark, host, pid, time_us = "s1", 0x12345678, "h", 7, 10**15
    header = b"\x08\x01\x12" + varint(len(name)) + name.encode() + b"\x1d" + struct.pack("<I", mark)
    header += b"\x22" + varint(len(host)) + host.encode() + b"\x28" + varint(pid) + b"\x30" + varint(time_us)
    samples = [(2 * 10**15, 3, 0.5), (2 * 10**15 + 1, 3, -0.5)]
    data = frame(header) * 2
    for key, model_iter_id, reward in samples:
        data += bytes.fromhex(record(key, model_iter_id, 0, reward)["frame"])
    return {
        "fingerprint": mark,
        "samples": [{"key": str(key), "model_iter_id": m, "reward": reward} for key, m, reward in samples],
        "bytes": data.hex(),
    }


def weighted_sum() -> dict[str, Any]:
    """An update's sum: 16 samples, eight of them mirrored, one twice."""
    keys = [2 * (10**15 + 7 * i) + half for i in range(5) for half in (0, 1)] + [2 * (10**9 + i) for i in range(5)]
    keys.append(keys[3])
    weights = [3 * i * i - 100 * i + 251 for i in range(16)]
    total = array("q", [0] * 200)
    for key, weight in zip(keys, weights, strict=True):
        for c, unit in enumerate(signed(computed_units(1024, key >> 1, range(200)), key)):
            total[c] += weight * unit
    return {"seed": "1024", "cache_size": 0, "keys": [str(key) for key in keys], "weights": weights, "sum": list(total)}


def main() -> int:
    """Compute the vectors; compare them with the shipped file, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the file instead of comparing with it")
    write = parser.parse_args().write
    text = (
        json.dumps(vectors(), indent=None, separators=(",", ":")).replace(',{"', ',\n{"').replace('],"', '],\n"') + "\n"
    )
    if write:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        sys.stdout.write(f"{TARGET} differs\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
