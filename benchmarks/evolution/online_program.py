"""The online program of the PARL 1.x manual: 200 rounds of separate processes, with evaluations of the model.

    python benchmarks/evolution/online_program.py [--rounds 200] [--out online_program]

`evokit init_solver`, then in each round `evokit online_sampling` and `evokit offline_update`, each in a process of its
own with the manual's options and configuration. This process evaluates every tenth model without noise in twenty
episodes, and the best of these and the last model in a hundred. It writes `<out>.json` and, with matplotlib,
`<out>.png`. Keys come from the system's randomness, so each run differs. The exit code is 1 if no evaluated model
reaches 475 in a hundred episodes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from parl_core.training.curves import draw_curve
from parl_core.training.events import Episode, Evaluation
from parl_evokit import ESAgent, mlp
from parl_evokit.environments import NamedEpisode
from parl_evokit.online import play

CONFIG = Path(__file__).parents[2] / "examples" / "evolution" / "online" / "config.prototxt"
SOLVED = 475.0


def evokit(*arguments: str) -> str:
    command = [sys.executable, "-m", "parl_evokit", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def returns_of(directory: Path, episodes: int) -> list[float]:
    agent = ESAgent()
    agent.load_config(CONFIG)
    agent.load_inference_model(directory, model=mlp([4, 20, 2], activation="linear"))
    return play(agent, NamedEpisode("cartpole"), episodes)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("online_program"))
    settings = parser.parse_args()

    with tempfile.TemporaryDirectory() as place:
        warehouse, log = Path(place) / "model_warehouse", Path(place) / "sampling_log"

        def model_dir(epoch: int) -> Path:
            return warehouse / f"model_dir_{epoch}"

        model_dir(0).mkdir(parents=True)
        mlp([4, 20, 2], activation="linear").save(model_dir(0))
        evokit("init_solver", f"--model_dir={model_dir(0)}", f"--config_path={CONFIG}")
        sampled: list[float] = []
        evaluated: dict[int, list[float]] = {}
        start = time.perf_counter()
        for epoch in range(settings.rounds):
            common = (f"--log_path={log}", f"--model_dir={model_dir(epoch)}", f"--config_path={CONFIG}")
            evokit("online_sampling", *common)
            told = evokit("offline_update", *common, f"--updated_model_dir={model_dir(epoch + 1)}", "--json")
            sampled.append(json.loads(told)["mean_reward"])
            if (epoch + 1) % 10 == 0:
                evaluated[epoch + 1] = returns_of(model_dir(epoch + 1), 20)
                figures = f"sampled {mean(sampled[-10:]):.1f}, model {mean(evaluated[epoch + 1]):.1f}"
                print(f"round {epoch + 1}: {figures}", flush=True)
        seconds = time.perf_counter() - start
        best = max(evaluated, key=lambda epoch: mean(evaluated[epoch]))
        means = {
            "best": mean(returns_of(model_dir(best), 100)),
            "last": mean(returns_of(model_dir(settings.rounds), 100)),
        }
        result: dict[str, object] = {
            "rounds": settings.rounds,
            "seconds": round(seconds, 1),
            "sampled": sampled,
            "evaluated": {epoch: mean(returns) for epoch, returns in evaluated.items()},
            "first_at_475": next((epoch for epoch, returns in evaluated.items() if mean(returns) >= SOLVED), None),
            "best": {"round": best, "mean_of_100": means["best"]},
            "last": {"round": settings.rounds, "mean_of_100": means["last"]},
            "log_bytes": sum(file.stat().st_size for file in log.iterdir()),
        }
    settings.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    evaluations = [Evaluation([Episode(r, 0) for r in returns], epoch) for epoch, returns in evaluated.items()]
    draw_curve(
        settings.out.with_suffix(".png"),
        f"evolution online: {settings.rounds} rounds of separate processes, CartPole-v1",
        list(range(1, settings.rounds + 1)),
        sampled,
        evaluations,
        SOLVED,
        xlabel="updates",
        label="mean of a round's ten samples, with noise",
    )
    print(json.dumps({name: result[name] for name in ("seconds", "first_at_475", "best", "last")}))
    sys.exit(0 if max(means.values()) >= SOLVED else 1)


if __name__ == "__main__":
    main()
