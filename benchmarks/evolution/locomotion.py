"""MuJoCo tasks with ARS and ES at the published settings, compared with the published scores.

    python benchmarks/evolution/locomotion.py run --seeds 0 1 2 3 4       one process; continues after an interruption
    python benchmarks/evolution/locomotion.py run --only ars-swimmer
    python benchmarks/evolution/locomotion.py table                       a table of the results

A run is a file, `locomotion/<recipe>-<seed>.json`, with the settings, the commit, and a row for each evaluation of the
model without noise (environment steps and episodes of the samples until then, mean return of `LOOKS` episodes, which
are not counted).

Settings:

- ARS: step size, deviation, directions and the number of best ones of Mania et al. 2018 (appendix, and the RL Zoo's
  `hyperparams/ars.yml`, which has them as "closest to the original paper"): a linear policy without bias that starts at
  0, observations normalised but for Swimmer (V2; V1 there), Hopper without its bonus of 1 a step for being alive.
- ES: two layers of 64 tanh units, mirrored noise of deviation 0.02, centred ranks, Adam at 0.01, weight decay 0.005,
  100,000 steps a batch (Salimans et al. 2017, and the configuration that they published, which is Humanoid's). Actions
  are continuous, without noise of their own.

The two episodes of a pair start at random, as in the papers' programs. In `ars-swimmer-alike` both start from the same
state: ARS compares one pair an update there, and its step does not depend on how far the two returns are apart.
"""

import argparse
import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_evokit import ESAgent
from parl_evokit.parallel import ObservationStatistics
from parl_evokit.parallel._observations import ObservationSums

HERE = Path(__file__).parent / "locomotion"
LOOKS = 5
LAST_LOOKS = 20
Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Recipe:
    """The settings of one algorithm for a task.

    Attributes:
        task: Id of the Gymnasium environment.
        kind: `ARS` or `BASIC_ES`.
        rate: Learning rate of the optimizer.
        std: Standard deviation of the noise.
        pairs: Number of mirrored pairs of samples per update.
        best: Number of pairs that an update uses (ARS).
        normalised: True to normalise observations.
        bonus: Number to subtract from the reward of each step of a sample.
        steps: Number of environment steps after which a run ends.
        every: Number of updates between two evaluations.
        alike: True to start both episodes of a pair from the same state.
    """

    task: str
    kind: str
    rate: float
    std: float
    pairs: int
    best: int
    normalised: bool
    bonus: float
    steps: int
    every: int
    alike: bool = False


PUBLISHED = {
    "ars-swimmer": "325 after 100 episodes (mean of 3 seeds); sb3-contrib, 8 seeds on -v2: 242 +- 50",
    "ars-swimmer-alike": "as above",
    "ars-hopper": "3,120 after 1,973 episodes; sb3-contrib, 8 seeds on -v2: 3,520, 7 M steps",
    "ars-halfcheetah": "3,430 after 1,707 episodes; sb3-contrib, 8 seeds on -v2: 4,439 +- 233, 12 M steps",
    "es-swimmer": "128 after 1.39 M steps",
    "es-halfcheetah": "2,386 after 2.88 M steps",
    "es-hopper": "877 after 0.38 M steps, 3,403 after 31.6 M",
}
RECIPES = {
    "ars-swimmer": Recipe("Swimmer-v5", "ARS", 0.02, 0.01, 1, 1, False, 0.0, 2_000_000, 10),
    "ars-swimmer-alike": Recipe("Swimmer-v5", "ARS", 0.02, 0.01, 1, 1, False, 0.0, 2_000_000, 10, alike=True),
    "ars-hopper": Recipe("Hopper-v5", "ARS", 0.01, 0.025, 8, 4, True, 1.0, 3_000_000, 20),
    "ars-halfcheetah": Recipe("HalfCheetah-v5", "ARS", 0.02, 0.03, 32, 4, True, 0.0, 3_000_000, 2),
    "es-swimmer": Recipe("Swimmer-v5", "BASIC_ES", 0.01, 0.02, 50, 0, True, 0.0, 3_000_000, 2),
    "es-halfcheetah": Recipe("HalfCheetah-v5", "BASIC_ES", 0.01, 0.02, 50, 0, True, 0.0, 3_000_000, 2),
    "es-hopper": Recipe("Hopper-v5", "BASIC_ES", 0.01, 0.02, 200, 0, True, 0.0, 3_000_000, 2),
}


def linear(arrays: Arrays, x: NDArray[np.float32]) -> NDArray[np.float32]:
    action: NDArray[np.float32] = arrays["w"] @ x
    return action


def tanh(arrays: Arrays, x: NDArray[np.float32]) -> NDArray[np.float32]:
    first = np.tanh(arrays["w0"] @ x + arrays["b0"])
    action: NDArray[np.float32] = arrays["w2"] @ np.tanh(arrays["w1"] @ first + arrays["b1"]) + arrays["b2"]
    return action


def model_of(recipe: Recipe, env: Any, seed: int) -> tuple[dict[str, NDArray[np.float32]], Any]:
    inputs, outputs = int(env.observation_space.shape[0]), int(env.action_space.shape[0])
    if recipe.kind == "ARS":
        return {"w": np.zeros((outputs, inputs), np.float32)}, linear
    draw = np.random.default_rng(seed)
    arrays: dict[str, NDArray[np.float32]] = {}
    for layer, (rows, columns, scale) in enumerate(((64, inputs, 1.0), (64, 64, 1.0), (outputs, 64, 0.01))):
        weights = draw.normal(size=(rows, columns))
        weights *= scale / np.sqrt(np.square(weights).sum(axis=1, keepdims=True))
        arrays[f"w{layer}"] = weights.astype(np.float32)
        arrays[f"b{layer}"] = np.zeros(rows, np.float32)
    return arrays, tanh


def settings(recipe: Recipe, seed: int) -> dict[str, Any]:
    solver: dict[str, Any] = {
        "type": recipe.kind,
        "optimizer": {"type": "SGD" if recipe.kind == "ARS" else "ADAM", "base_lr": recipe.rate},
        "sampling": {"gaussian_sampling": {"std": recipe.std, "cached": False, "seed": seed}},
        "update": {"top_k": recipe.best} if recipe.kind == "ARS" else {"weight_decay": 0.005},
    }
    return {"solver": solver, "keys": "COUNTER"}


class Episodes:
    """Plays episodes of a task, with the observation statistics of the present round."""

    def __init__(self, recipe: Recipe, env: Any) -> None:
        self.env = env
        self.low, self.high = env.action_space.low, env.action_space.high
        self.recipe = recipe
        self.seen = np.zeros((1001, env.observation_space.shape[0]))

    def play(self, agent: Any, seed: int, mean: Any, std: Any) -> tuple[float, int]:
        """Return the return and the length of an episode; `seen` holds its observations."""
        env, seen, clip = self.env, self.seen, 10.0
        obs, _ = env.reset(seed=seed)
        total, steps, done = 0.0, 0, False
        while not done:
            seen[steps] = obs
            x = obs if std is None else np.minimum(np.maximum((obs - mean) / std, -clip), clip)
            action = np.minimum(np.maximum(agent.predict(x.astype(np.float32)), self.low), self.high)
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            steps += 1
            done = terminated or truncated
        return total, steps

    def sums(self, steps: int) -> ObservationSums:
        rows = self.seen[:steps]
        return ObservationSums(rows.sum(axis=0), np.square(rows).sum(axis=0), steps)


def run(name: str, seed: int) -> None:
    """Make one run and write its file from time to time; an interrupted run starts again."""
    recipe, path = RECIPES[name], HERE / f"{name}-{seed}.json"
    if path.exists() and json.loads(path.read_text()).get("last"):
        return
    env: Any = gymnasium.make(recipe.task)
    agent = ESAgent(settings(recipe, seed), model_of(recipe, env, seed))
    clone, episodes = agent.clone(), Episodes(recipe, env)
    seen = ObservationStatistics(env.observation_space.shape[0])
    steps = played = rounds = 0
    curve: list[list[float]] = []
    commit = commit_of(HERE)
    began = time.process_time()

    def look(count: int) -> list[float]:
        clone.add_noise(evaluate=True)
        given = (seen.mean, seen.std) if recipe.normalised else (None, None)
        return [episodes.play(clone, 10**6 + k, *given)[0] for k in range(count)]

    while steps < recipe.steps:
        mean, std = (seen.mean, seen.std) if recipe.normalised else (None, None)
        infos, rewards, batch = [], [], []
        for sample in range(2 * recipe.pairs):
            info = clone.add_noise()
            start = played // 2 * 2 if recipe.alike else played
            total, length = episodes.play(clone, seed * 10**7 + start, mean, std)
            infos.append(info)
            rewards.append(total - recipe.bonus * length)
            batch.append(episodes.sums(length))
            steps, played = steps + length, played + 1
            if sample % 2 and recipe.kind == "BASIC_ES" and sum(sums.count for sums in batch) > 100_000:
                break
        for sums in batch:
            seen.add(sums)
        agent.update(infos, rewards)
        rounds += 1
        if rounds % recipe.every == 0 or steps >= recipe.steps:
            scores = look(LOOKS)
            curve.append([steps, played, round(float(np.mean(scores)), 1)])
            _write(path, recipe, seed, commit, curve, time.process_time() - began, [])
    _write(path, recipe, seed, commit, curve, time.process_time() - began, look(LAST_LOOKS))


def commit_of(folder: Path) -> str:
    """Return the commit of a folder's repository, `-dirty` where tracked files differ; `unknown` outside of one."""
    git = ["git", "-C", str(folder.parent)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "diff", "--stat", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")


def _write(path: Path, recipe: Recipe, seed: int, commit: str, curve: Any, seconds: float, last: list[float]) -> None:
    path.parent.mkdir(exist_ok=True)
    content = vars(recipe) | {
        "seed": seed,
        "commit": commit,
        "cpu_seconds": round(seconds),
        "gymnasium": gymnasium.__version__,
        "last": [round(score, 1) for score in last],
        "steps_episodes_return": curve,
    }
    whole = path.with_suffix(".tmp")
    whole.write_text(json.dumps(content) + "\n")
    os.replace(whole, path)


THRESHOLDS = {
    "ars-swimmer": 325, "ars-swimmer-alike": 325, "ars-hopper": 3120, "ars-halfcheetah": 3430,
    "es-swimmer": 128.25, "es-halfcheetah": 2385.79, "es-hopper": 877.45,
}  # fmt: skip


def table() -> None:
    """Print a table of all results."""
    print(
        "| run | end (best evaluation) for each seed | median | reached | steps (episodes) to it | published | commit |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in RECIPES:
        files = [json.loads(path.read_text()) for path in sorted(HERE.glob(f"{name}-[0-9]*.json"))]
        done = [found for found in files if found["last"]]
        if not done:
            print(f"| {name} | not run | | | | {PUBLISHED[name]} | |")
            continue
        scores = [float(np.mean(found["last"])) for found in done]
        goal, reached = THRESHOLDS[name], []
        for found in done:
            rows = [row for row in found["steps_episodes_return"] if row[2] >= goal]
            reached.append(f"{rows[0][0]:,} ({rows[0][1]:,})" if rows else "-")
        shown = ", ".join(
            f"{found['seed']}: {score:,.0f} ({_best(found):,.0f})" for found, score in zip(done, scores, strict=True)
        )
        commits = ", ".join(sorted({found["commit"] for found in done}))
        count = sum(text != "-" for text in reached)
        print(
            f"| {name} | {shown} | {np.median(scores):,.0f} | {goal:,.0f}: {count} of {len(done)} | "
            f"{'; '.join(reached)} | {PUBLISHED[name]} | {commits} |"
        )


def _best(found: dict[str, Any]) -> float:
    return max(float(row[2]) for row in found["steps_episodes_return"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--only", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    given = parser.parse_args()
    if given.what == "table":
        table()
        return
    for seed in given.seeds:
        for name in given.only:
            run(name, seed)


if __name__ == "__main__":
    main()
