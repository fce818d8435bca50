"""The cost of an exported policy in bytes, start-up time and time of a decision, compared with its agent.

    hatch run torch:python benchmarks/export/run.py
    hatch run paddle:python benchmarks/export/run.py

Every figure is the minimum CPU time of several fresh processes, so that the machine's other load matters little.
`start` is what importing and loading costs above `import numpy`; `decision` is one observation, `in 64` one of a batch.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import parl
from parl_core.export import FORMATS, export

_PROGRAM = """
import json, sys, time
import numpy as np

began = time.process_time()
{load}
started = time.process_time() - began

def least(observations, calls):
    found = []
    for _ in range(20):
        began = time.process_time()
        for _ in range(calls):
            act(observations)
        found.append((time.process_time() - began) / calls)
    return min(found)

one = np.load(sys.argv[2])
act(one)
act(np.repeat(one, 64, 0))
calls = max(5, int(0.02 / max(least(one, 5), 1e-6)))
print(json.dumps([started, least(one, calls), least(np.repeat(one, 64, 0), max(1, calls // 20)) / 64]))
"""
_LOAD = {
    "numpy": "from parl_core.policy import load\nact = load(sys.argv[1])",
    "onnx": "import onnxruntime\noptions = onnxruntime.SessionOptions()\noptions.intra_op_num_threads = 1\n"
    "session = onnxruntime.InferenceSession(sys.argv[1], options, providers=['CPUExecutionProvider'])\n"
    "act = lambda rows: session.run(None, {'observation': rows})",
    "torch-export": "import torch\ntorch.set_num_threads(1)\nprogram = torch.export.load(sys.argv[1]).module()\n"
    "act = lambda rows: program(torch.from_numpy(rows))",
    "paddle-inference": "import paddle.inference\nfrom pathlib import Path\n"
    "files = {file.suffix: str(file) for file in Path(sys.argv[1]).iterdir()}\n"
    "config = paddle.inference.Config(files['.json'], files['.pdiparams'])\nconfig.disable_gpu()\n"
    "config.disable_glog_info()\npredictor = paddle.inference.create_predictor(config)\n"
    "def act(rows):\n"
    "    predictor.get_input_handle('observation').copy_from_cpu(rows)\n"
    "    predictor.run()\n"
    "    return predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()",
}


class Frames(gymnasium.Env[Any, Any]):
    """An environment with noise in place of the four frames of an Atari game, and six actions."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        """Begin an episode."""
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """Return new noise."""
        return self.observation_space.sample(), 0.0, False, False, {}


def _agents() -> Iterator[tuple[str, Any, Any]]:
    algorithms, networks = parl.algorithms, parl.networks
    yield "PPO, 4 -> 64 -> 64 -> 2", algorithms.PPO(networks.ActorCritic(2)), "CartPole-v1"
    yield "SAC, 3 -> 256 -> 256 -> 1", algorithms.SAC(networks.SquashedActorCritic(1)), "Pendulum-v1"
    yield "DQN, Atari's 4 x 84 x 84", algorithms.DQN(networks.AtariQNetwork(6)), Frames


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="number of processes per figure")
    given = parser.parse_args()
    print("| agent | format | bytes | start, ms | decision, us | in 64, us |\n| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for label, algorithm, env in _agents():
            agent = parl.Agent(algorithm, seed=0)
            one = env() if callable(env) else gymnasium.make(env)
            observation = Path(folder) / "observation.npy"
            np.save(observation, one.reset(seed=0)[0][None])
            for to, backend in FORMATS.items():
                if backend not in ("", agent.BACKEND):
                    continue
                path = Path(folder) / f"{label[:3]}-{to}"
                written = export(agent, path, env, to, observations=100)
                figures = [_measured(to, path, observation) for _ in range(given.rounds)]
                start, decision, of_many = (min(column) for column in zip(*figures, strict=True))
                row = f"{written.size:,} | {1e3 * start:.0f} | {1e6 * decision:.1f} | {1e6 * of_many:.1f}"
                print(f"| {label} | {to} | {row} |", flush=True)


def _measured(to: str, path: Path, observation: Path) -> list[float]:
    program = _PROGRAM.format(load=_LOAD[to])
    command = [sys.executable, "-c", program, str(path), str(observation)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
