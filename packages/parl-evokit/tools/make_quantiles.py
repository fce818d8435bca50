"""Compute the normal quantiles of noise specification v1, from nothing but exact integers and decimal arithmetic.

Entry i of the table is the standard normal quantile of (i + 1/2) / 65536, divided by the root mean square of all 65536
(so that the variance is 1 in spite of the cut tails), in units of 2**-12, rounded to the nearest integer. The table is
odd-symmetric, so the file holds the upper half only: entries 32768 to 65535 as little-endian int16.

    python tools/make_quantiles.py             compare the shipped file with what this script computes
    python tools/make_quantiles.py --write     write it

No floating-point function decides a digit: floats give a first guess, which two Newton steps in 60-digit decimals
improve to far beyond what rounding needs; how close any entry comes to a rounding tie is checked at the end.
"""

import argparse
import hashlib
import statistics
import sys
from array import array
from decimal import ROUND_HALF_EVEN, Decimal, getcontext
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "src" / "parl_evokit" / "noise" / "quantiles_v1.i2"
ENTRIES = 65536
UNIT = 4096
DIGITS = 60

getcontext().prec = DIGITS
TINY = Decimal(10) ** -(DIGITS - 5)


def arctan_inverse(x: int) -> Decimal:
    """arctan(1/x) by its power series."""
    power = total = Decimal(1) / x
    k = 1
    while abs(power) > TINY:
        power /= -x * x
        k += 2
        total += power / k
    return total


PI = 4 * (4 * arctan_inverse(5) - arctan_inverse(239))
ROOT_TWO_PI = (2 * PI).sqrt()


def density_and_distance(x: Decimal) -> tuple[Decimal, Decimal]:
    """The normal density at x, and the probability between 0 and x: density * (x + x**3/3 + x**5/15 + ...)."""
    density = (-x * x / 2).exp() / ROOT_TWO_PI
    square = x * x
    term = total = x
    k = 1
    while term > TINY:
        k += 2
        term = term * square / k
        total += term
    return density, density * total


def quantile(numerator: int, denominator: int) -> Decimal:
    """The x > 0 below which the probability is numerator / denominator."""
    x = Decimal(statistics.NormalDist().inv_cdf(numerator / denominator))
    wanted = Decimal(numerator) / denominator - Decimal("0.5")
    for _ in range(2):
        density, distance = density_and_distance(x)
        step = (wanted - distance) / density
        x += step
    # Newton's error is about the square of its last step, which must leave the 40th decimal untouched.
    if abs(step) > Decimal("1e-24"):
        raise ArithmeticError(f"Newton's iteration did not settle at {numerator}/{denominator}: last step {step}")
    return x


def upper_half() -> "array[int]":
    """The 32768 positive entries of the table."""
    exact = [quantile(2 * i + 1, 2 * ENTRIES) for i in range(ENTRIES // 2, ENTRIES)]
    root_mean_square = (sum((x * x for x in exact), Decimal(0)) / len(exact)).sqrt()
    entries = array("h")
    nearest_tie = Decimal(1)
    for x in exact:
        scaled = UNIT * x / root_mean_square
        entries.append(int(scaled.to_integral_value(rounding=ROUND_HALF_EVEN)))
        nearest_tie = min(nearest_tie, abs(scaled % 1 - Decimal("0.5")))
    sys.stdout.write(f"nearest approach to a rounding tie: {nearest_tie:.3e} (errors are below 1e-40)\n")
    return entries


def main() -> int:
    """Compute the table; compare it with the shipped file, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the file instead of comparing with it")
    write = parser.parse_args().write
    entries = upper_half()
    if sys.byteorder == "big":
        entries.byteswap()
    data = entries.tobytes()
    sys.stdout.write(f"sha256 {hashlib.sha256(data).hexdigest()}\n")
    if write:
        TARGET.write_bytes(data)
    elif TARGET.read_bytes() != data:
        sys.stdout.write(f"{TARGET} differs\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
