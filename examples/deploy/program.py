"""A program for an existing cluster, which it finds by `PARL_ADDRESS`; it prints the hosts of its actors.

PARL_ADDRESS=head:8037 python program.py --actors 8
"""

from __future__ import annotations

import argparse
import os
import platform
import random
from collections import Counter
from typing import Any

import parl


@parl.remote_class(wait=False)
class Dice:
    """Throws dice, as an example of an environment, a simulator or a search."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def throws_until_double_six(self, games: int) -> int:
        """Return the number of throws of two dice, over all games."""
        throws = 0
        for _ in range(games):
            throws += 1
            while self.random.randint(1, 6) + self.random.randint(1, 6) < 12:
                throws += 1
        return throws

    def host(self) -> str:
        """Return the name of the host that this actor runs on."""
        return platform.node()


def main() -> None:
    """Estimate a number whose exact value is 36."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", default=os.environ.get("PARL_ADDRESS"), help='"host:port"; default: PARL_ADDRESS')
    parser.add_argument("--actors", type=int, default=2, help="number of actors (default: 2)")
    parser.add_argument("--games", type=int, default=20_000, help="games per actor (default: 20000)")
    chosen = parser.parse_args()
    parl.connect(chosen.address)
    actors: list[Any] = [Dice(seed) for seed in range(chosen.actors)]
    throws = [actor.throws_until_double_six(chosen.games) for actor in actors]
    hosts = Counter(actor.host().result() for actor in actors)
    total = sum(result.result() for result in throws)
    print("actors on", ", ".join(f"{host}: {count}" for host, count in sorted(hosts.items())))
    print(f"throws until a double six: {total / (chosen.games * len(actors)):.2f} (expected: 36)")


if __name__ == "__main__":
    main()
