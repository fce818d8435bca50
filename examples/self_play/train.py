"""Self-play with PPO: each generation learns against frozen predecessors, and then plays against all of them."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

import parl
from parl import training
from parl_core.env.two_player import ConnectFour, MatrixGame, rock_paper_scissors
from parl_core.export import frozen
from parl_core.training.checkpoints import LoopParts

PAYOFF, EQUILIBRIUM = rock_paper_scissors(paper=1.0, rock=3.0, scissors=2.0)
GAMES: dict[str, Callable[[], Any]] = {"connect_four": ConnectFour, "rps": partial(MatrixGame, PAYOFF)}


@dataclass(frozen=True)
class Settings:
    """Trains PPO against a pool of its own frozen generations."""

    game: Annotated[str, "connect_four, or rps: rock-paper-scissors with unequal prizes"] = "connect_four"
    generations: Annotated[int, "number of generations; 0 selects 12 for connect four, 60 for rps"] = 0
    steps: Annotated[int, "the learner's steps per generation; 0 selects 40,960 for connect four, 4,096 for rps"] = 0
    games: Annotated[int, "games against each predecessor, half of them in each seat"] = 200
    matchmaking: Annotated[
        str, "hardest, rating or uniform; empty selects hardest for connect four, uniform for rps"
    ] = ""
    env_num: Annotated[int, "number of parallel games"] = 16
    actors: Annotated[int, "remote actors for games and matches; 0 plays in this process"] = 0
    address: Annotated[str, "address of a running cluster for the actors; empty starts a private one"] = ""
    seed: Annotated[int, "seed of weights, games and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    resume: Annotated[str, "folder of a run to continue, with its settings"] = ""
    smoke: Annotated[bool, "two short generations only, to see that everything runs"] = False


def spaces_of(name: str) -> tuple[Any, Any]:
    game = GAMES[name]()
    return game.observation_space("player_0"), game.action_space("player_0")


def make_agent(name: str, seed: int) -> parl.Agent:
    model = parl.networks.for_spaces(*spaces_of(name), "actor-critic", hidden=(128, 128))
    return parl.Agent(parl.algorithms.PPO(model, initial_lr=1e-3, clip_param=0.2, entropy_coef=0.01), seed=seed)


def train(agent: parl.Agent, settings: Settings, actors: Any, run: training.Run) -> parl.Agent:
    """Train the remaining generations, and return the agent of the last one."""
    make_game, is_matrix = GAMES[settings.game], settings.game == "rps"
    generations = 2 if settings.smoke else settings.generations or (60 if is_matrix else 12)
    steps = 1_024 if settings.smoke else settings.steps or (4_096 if is_matrix else 40_960)
    games = 8 if settings.smoke else settings.games
    loop = training.OnPolicySettings(
        total_steps=steps,
        n_steps=8 if is_matrix else 64,  # many small updates in rps, so that each generation is a best response
        epochs=4,
        minibatch_size=64 if is_matrix else 256,
        lr=1e-2 if is_matrix else 1e-3,
        gamma=1.0,
        gae_lambda=0.95,
    )
    pool = training.OpponentPool(settings.matchmaking or ("uniform" if is_matrix else "hardest"))
    spaces = spaces_of(settings.game)
    untrained = frozen(agent, *spaces)
    checkpoints = training.Checkpoints(run)  # one checkpoint at the end of each generation
    saved = checkpoints.keep(LoopParts(agent, others={"pool": pool}))
    table, averages = (list(saved["table"]), list(saved["averages"])) if saved else ([], [])
    if not saved:
        pool.add("generation 0", untrained)
    share = math.ceil(settings.env_num / max(settings.actors, 1))
    with training.Arena(make_game, actors=actors, workers=max(settings.actors, 1)) as arena:
        for generation in range(len(table) + 1, generations + 1):
            if is_matrix:  # a best response from scratch, because a deterministic policy changes slowly
                agent = make_agent(settings.game, settings.seed)
                checkpoints.set_agent(agent)
            make = partial(training.AgainstOpponents, make_game, *pool.opponents())
            with training.make_vector_env(make, settings.env_num, actors=actors, envs_per_actor=share) as envs:
                training.train_on_policy(agent, envs, loop, seed=settings.seed * 1_000 + generation)
            policy = frozen(agent, *spaces)
            name = f"generation {generation}"
            results = pool.challenge(name, policy, arena, games, seed=generation)
            worst = min(results.items(), key=lambda item: item[1].score)
            table.append(
                {
                    "generation": generation,
                    "steps": generation * steps,
                    "rating": pool[name].rating,
                    "worst": {"against": worst[0], **worst[1]._asdict()},
                    "results": {other: found._asdict() for other, found in results.items()},
                }
            )
            line = f"{name}: rating {pool[name].rating:.0f}, worst score {worst[1].score:.2f} against {worst[0]}"
            if is_matrix:
                averages.append(average_strategy(pool))
                line += (
                    f", average strategy {averages[-1].round(3)}, exploitability {(PAYOFF @ averages[-1]).max():.3f}"
                )
            checkpoints.save(generation * steps, lambda: {"table": table, "averages": averages})
            print(line, flush=True)
    found: dict[str, Any] = {"game": settings.game, "generations": table}
    if is_matrix:
        found |= {"equilibrium": EQUILIBRIUM.tolist(), "averages": np.array(averages).tolist()}
    path = run.path / "results.json"
    path.write_text(json.dumps(found, indent=1))
    run.saved(path, "results and ratings of each generation")
    plot(found, run.path / "self-play.png")
    run.saved(run.path / "self-play.png", "the same, drawn")
    return agent


def average_strategy(pool: Any) -> Any:
    """Return the mean of all players' probabilities."""
    scores = np.concatenate([player.policy.scores(np.ones(1, np.float32)) for player in pool.players])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)


def plot(found: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    table = found["generations"]
    generations = [row["generation"] for row in table]
    left.plot(generations, [row["rating"] for row in table])
    left.set(xlabel="generation", ylabel="Elo rating when frozen")
    if "averages" in found:
        averages = np.array(found["averages"])
        for action, name in enumerate(("rock", "paper", "scissors")):
            (line,) = right.plot(generations, averages[:, action], label=name)
            right.axhline(found["equilibrium"][action], color=line.get_color(), linestyle=":")
        right.set(xlabel="generation", ylabel="mean of generations; equilibrium")
        right.legend()
    else:
        worst = [row["worst"] for row in table]
        scores = [(row["wins"] + 0.5 * row["draws"]) / (row["wins"] + row["draws"] + row["losses"]) for row in worst]
        right.plot(generations, scores)
        right.axhline(0.5, color="gray", linestyle=":")
        right.set(xlabel="generation", ylabel="lowest score against a predecessor")
    figure.savefig(path)


def main(settings: Settings) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # networks this small are slower on several threads
    if settings.game not in GAMES:
        raise SystemExit(f"--game must be one of {', '.join(GAMES)}, got {settings.game!r}")
    if settings.backend:
        parl.set_backend(settings.backend)
    with training.open_run("self-play", settings) as run:
        training.seed_everything(settings.seed)
        agent = make_agent(settings.game, settings.seed)
        with training.choose_actors(settings.actors, settings.address) as actors:
            agent = train(agent, settings, actors, run)
        run.save(agent)
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
