"""The command line of a lesson; a notebook, which has none, takes its arguments from `COURSE_ARGUMENTS`."""

import argparse
import os
import sys

# Networks this small are slower on several threads; torch and paddle read it when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def read_arguments(about: str, backend: bool = False) -> argparse.Namespace:
    """Return the options `smoke` and `pictures`, and `backend` for lessons that need one."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--smoke", action="store_true", help="a few seconds only, to see that everything runs")
    parser.add_argument("--pictures", default="runs/course", help="folder for the pictures (default: runs/course)")
    if backend:
        parser.add_argument("--backend", default="", help="torch or paddle (default: the one that is installed)")
    in_notebook = "ipykernel" in sys.modules
    return parser.parse_args(os.environ.get("COURSE_ARGUMENTS", "").split() if in_notebook else None)
