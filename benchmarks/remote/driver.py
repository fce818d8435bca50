"""One measurement of one peer in a process of its own; prints JSON.

    python driver.py PEER MEASURE [--count N] [--busy]

`run.py` starts it, with the interpreter that has the peer.
"""

import argparse
import importlib
import json
from typing import Any

import measures
from peer import NotOffered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer")
    parser.add_argument("measure", choices=[*measures.MEASURES, "victim"])
    parser.add_argument("--count", type=int, default=10**8)
    parser.add_argument("--busy", action="store_true")
    chosen = parser.parse_args()
    peer = importlib.import_module(f"peers.{chosen.peer}_peer").PEER
    function = {**measures.MEASURES, "victim": measures.victim}[chosen.measure]
    try:
        answer: dict[str, Any] = {"values": function(measures.Run(chosen.peer, peer, chosen.count, chosen.busy))}
        peer.stop()
    except NotOffered as reason:
        answer = {"not_offered": str(reason)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
