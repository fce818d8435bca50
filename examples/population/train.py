"""Population-based training (Jaderberg et al. 2017): agents learn in parallel, and the best replace the worst."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np

import parl
from parl import training
from parl_core import backends
from parl_core.training.checkpoints import LoopParts
from parl_core.training.trained import make_standard_env

FIRST_LR = (1e-5, 1e-1)  # initial learning rates are drawn from this range, log-uniformly
FIRST_ENTROPY = (1e-4, 1e-1)  # initial entropy coefficients likewise
FACTORS = (0.8, 1.25)  # factors of a copied member's hyper-parameters


@dataclass(frozen=True)
class Settings:
    """Trains a population of PPO agents, each with its own learning rate and entropy coefficient."""

    env: Annotated[str, "registered id of an environment"] = "CartPole-v1"
    members: Annotated[int, "agents of the population, at least 4"] = 8
    rounds: Annotated[int, "rounds, after each of which the worst quarter becomes a copy of the best"] = 15
    steps: Annotated[int, "environment steps of each member per round"] = 4096
    exploit: Annotated[bool, "copy the best members; otherwise every member keeps its hyper-parameters"] = True
    actors: Annotated[int, "remote actors that train members; 0 trains in this process"] = 0
    address: Annotated[str, "address of a running cluster for the actors; empty starts a private one"] = ""
    seed: Annotated[int, "seed of initial hyper-parameters, weights, environments and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    resume: Annotated[str, "folder of a run to continue, with its settings"] = ""
    smoke: Annotated[bool, "four members and two short rounds only, to see that everything runs"] = False


def make_agent(env_id: str, seed: int) -> parl.Agent:
    env = make_standard_env(env_id)
    training.seed_everything(seed)
    model = parl.networks.for_spaces(env.observation_space, env.action_space, "actor-critic", hidden=(64, 64))
    env.close()
    return parl.Agent(parl.algorithms.PPO(model), seed=seed)


def take(agent: parl.Agent, file: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "member.ckpt"
        path.write_bytes(file)
        agent.restore(path)


class Trainer:
    """Trains members one after another, in a separate process or in the program's."""

    def __init__(self, env_id: str, backend: str) -> None:
        backends.set_backend(backend)
        self.env_id = env_id

    def train(self, member: Mapping[str, Any], steps: int, seed: int) -> tuple[bytes, float]:
        """Continue the training of a member, and return its file and the mean return of 20 episodes."""
        agent = make_agent(self.env_id, seed)
        if member["file"]:
            take(agent, member["file"])
        loop = training.OnPolicySettings(
            total_steps=steps,
            n_steps=64,
            epochs=4,
            minibatch_size=128,
            lr=member["lr"],
            entropy_coef=member["entropy_coef"],
        )
        with training.make_vector_env(lambda: make_standard_env(self.env_id), 8) as envs:
            training.train_on_policy(agent, envs, loop, seed=seed)
        mean = training.evaluate(agent, lambda: make_standard_env(self.env_id), 20, seed=seed).mean
        with TemporaryDirectory() as folder:
            path = Path(folder) / "member.ckpt"
            agent.save(path)
            return path.read_bytes(), mean


class Population:
    """The members, each a dictionary with its hyper-parameters, its agent's file, and its returns after each round."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.rng = rng
        self.members: list[dict[str, Any]] = [
            {"lr": self._drawn(FIRST_LR), "entropy_coef": self._drawn(FIRST_ENTROPY), "file": b"", "history": []}
            for _ in range(size)
        ]

    def train(self, trainers: Sequence[Any], steps: int, seed: int) -> None:
        """Train every member for a round."""
        calls = [
            trainers[i % len(trainers)].submit("train", member, steps, seed + i)
            for i, member in enumerate(self.members)
        ]
        for member, call in zip(self.members, calls, strict=True):
            member["file"], mean = call.result()
            member["history"].append([mean, member["lr"], member["entropy_coef"]])

    def ranked(self) -> list[dict[str, Any]]:
        """Return the members, best first."""
        return sorted(self.members, key=lambda member: -member["history"][-1][0])

    def exploit(self) -> None:
        """Replace the worst quarter by agents of the best quarter, with similar hyper-parameters."""
        ranked, quarter = self.ranked(), len(self.members) // 4
        for loser in ranked[-quarter:]:
            winner = ranked[int(self.rng.integers(quarter))]
            loser["file"] = winner["file"]
            for name in ("lr", "entropy_coef"):
                loser[name] = winner[name] * float(self.rng.choice(FACTORS))

    def get_state(self) -> dict[str, Any]:
        return {"members": self.members, "rng": self.rng.bit_generator.state}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.members = [dict(member) for member in state["members"]]
        self.rng.bit_generator.state = state["rng"]

    def _drawn(self, between: tuple[float, float]) -> float:
        low, high = np.log(between)
        return float(np.exp(self.rng.uniform(low, high)))


def train(agent: parl.Agent, settings: Settings, run: training.Run) -> Population:
    """Train the remaining rounds and return the population; the agent becomes its best member."""
    backend = settings.backend or backends.current().name
    size, rounds, steps = (4, 2, 512) if settings.smoke else (settings.members, settings.rounds, settings.steps)
    population = Population(size, np.random.default_rng(settings.seed))
    checkpoints = training.Checkpoints(run)  # one checkpoint at the end of each round
    saved = checkpoints.keep(LoopParts(agent, others={"population": population}))
    with training.choose_actors(settings.actors, settings.address) as actors:
        count = min(max(settings.actors, 1), size)
        trainers = [actors.create(Trainer, settings.env, backend) for _ in range(count)]
        for done in range(int(saved["rounds"]) + 1 if saved else 1, rounds + 1):
            population.train(trainers, steps, seed=settings.seed * 100_000 + done * 1_000)
            best = population.ranked()[0]
            take(agent, best["file"])
            returns = [member["history"][-1][0] for member in population.ranked()]
            print(
                f"round {done}: best {returns[0]:.1f} with lr {best['lr']:.2g}, "
                f"median {np.median(returns):.1f}, worst {returns[-1]:.1f}",
                flush=True,
            )
            if settings.exploit and done < rounds:
                population.exploit()
            checkpoints.save(done * steps * size, lambda done=done: {"rounds": done})  # type: ignore[misc]
    return population


def plot(population: Population, steps: int, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for member in population.members:
        history = np.array(member["history"])
        at = np.arange(1, len(history) + 1) * steps
        left.plot(at, history[:, 0])
        right.semilogy(at, history[:, 1])
    left.set(xlabel="environment steps of each member", ylabel="mean return of 20 episodes")
    right.set(xlabel="environment steps of each member", ylabel="learning rate")
    figure.savefig(path)


def main(settings: Settings) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # networks this small are slower on several threads
    if settings.members < 4:
        raise SystemExit(f"--members must be at least 4, so that a quarter is one member, got {settings.members}")
    if settings.backend:
        parl.set_backend(settings.backend)
    with training.open_run("population", settings) as run:
        agent = make_agent(settings.env, settings.seed)
        population = train(agent, settings, run)
        run.save(agent, what=f"the best agent, mean return {population.ranked()[0]['history'][-1][0]:.1f}")
        members = [{name: value for name, value in one.items() if name != "file"} for one in population.members]
        path = run.path / "results.json"
        path.write_text(json.dumps(members, indent=1))
        run.saved(path, "return, learning rate and entropy coefficient of each member after each round")
        plot(population, 512 if settings.smoke else settings.steps, run.path / "population.png")
        run.saved(run.path / "population.png", "the same, drawn")
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
