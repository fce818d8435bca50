"""One measurement of one peer in a separate process; prints JSON.

    python driver.py PEER MEASURE [--count N] [--busy]

`run.py` starts it with the peer's interpreter. A measurement in windows prints a line when it is ready, and one for
each line that it reads.
"""

import argparse
import importlib
import json
import sys
from typing import Any

import measures
from peer import NotOffered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer")
    parser.add_argument("measure", choices=[*measures.WINDOWED, *measures.MEASURES, "victim"])
    parser.add_argument("--count", type=int, default=10**8)
    parser.add_argument("--busy", action="store_true")
    chosen = parser.parse_args()
    peer = importlib.import_module(f"peers.{chosen.peer}_peer").PEER
    run = measures.Run(chosen.peer, peer, chosen.count, chosen.busy)
    answer: dict[str, Any]
    try:
        if chosen.measure in measures.WINDOWED:
            window = measures.WINDOWED[chosen.measure](run)
            print(json.dumps({"ready": True}), flush=True)
            for _ in sys.stdin:
                print(json.dumps({"values": window()}), flush=True)
            return
        function = {**measures.MEASURES, "victim": measures.victim}[chosen.measure]
        answer = {"values": function(run)}
        peer.stop()
    except NotOffered as reason:
        answer = {"not_offered": str(reason)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
