"""Write the initial model of the warehouse: the manual's network of 4 inputs, 20 hidden units and 2 probabilities.

python make_model.py ./model_warehouse/model_dir_0
"""

import sys
from pathlib import Path

from parl_evokit import mlp


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "model_warehouse/model_dir_0")
    directory.mkdir(parents=True, exist_ok=True)
    mlp([4, 20, 2], activation="linear").save(directory)
    print(f"first weights in {directory}")


if __name__ == "__main__":
    main()
