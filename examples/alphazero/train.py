"""AlphaZero on connect four: search in actors, one learner, and strength against a fixed search over time."""

from __future__ import annotations  # `make_agent` travels to actors, where the names of types are unknown

import os
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from search import Search, by_random_games, drawn_moves, play_match

import parl
from parl import training
from parl_core.atomic_write import write_json
from parl_core.env.two_player import COLUMNS, ROWS, ConnectFourBoards
from parl_core.errors import LostActor
from parl_core.training.checkpoints import LoopParts
from parl_core.worker_pool import LossLimit, Work, WorkerPool

EXPLORED_MOVES = 12
"""Number of moves at the beginning of a game of self-play that are drawn by visits."""

MOST_LOSSES = 10
"""Number of lost workers that a run replaces."""


@dataclass(frozen=True)
class Settings:
    """Trains AlphaZero on connect four."""

    minutes: Annotated[float, "training time, including that before an interruption"] = 30.0
    total_games: Annotated[int, "games of self-play after which training ends; 0 for no limit but the minutes"] = 0
    simulations: Annotated[int, "search simulations per move of self-play"] = 64
    games: Annotated[int, "games that an actor plays together in one call"] = 64
    updates: Annotated[int, "gradient steps for each such call"] = 64
    batch_size: Annotated[int, "positions per gradient step"] = 256
    capacity: Annotated[int, "number of newest positions to learn from"] = 60_000
    lr: Annotated[float, "learning rate"] = 1e-3
    rollouts: Annotated[int, "simulations of the fixed search, plain Monte-Carlo tree search"] = 200
    match_games: Annotated[int, "games per match against it and against the predecessor, half of them in each seat"] = (
        40
    )
    match_every: Annotated[float, "minutes between matches"] = 5.0
    save_every: Annotated[float, "minutes between checkpoints"] = 1.0
    actors: Annotated[int, "remote actors; 0 plays in this process, for breakpoints"] = 0
    address: Annotated[str, "address of a running cluster for the actors; empty starts a private one"] = ""
    seed: Annotated[int, "seed of weights, games and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    resume: Annotated[str, "folder of a run to continue, with its settings"] = ""
    smoke: Annotated[bool, "a few small calls only, to see that everything runs"] = False


def make_agent(backend: str, lr: float, seed: int) -> parl.Agent:
    if backend:
        parl.set_backend(backend)
    fc = parl.layers.fc

    class PolicyAndValue(parl.Model):
        """Logits of the moves and the expected outcome, over one trunk."""

        def __init__(self) -> None:
            self.trunk = parl.networks.MLP((256, 256, 256))
            self.logits, self.outcome = fc(COLUMNS), fc(1, act="tanh")

        def forward(self, obs: Any) -> Any:
            features = self.trunk(obs)
            return self.logits(features), self.outcome(features).reshape([-1])

    class AlphaZero(parl.Algorithm):
        """Silver et al. 2018 (doi:10.1126/science.aar6404), equation 1."""

        def __init__(self, model: parl.Model) -> None:
            super().__init__(model)
            self.optimizer = parl.optim.Adam(model, lr=lr)

        def predict(self, obs: Any) -> Any:
            return self.model(obs)

        def learn(self, obs: Any, policy: Any, outcome: Any) -> Any:
            logits, value = self.model(obs)
            cross_entropy = (logits.logsumexp(-1) - (policy * logits).sum(-1)).mean()
            error = (value - outcome).square().mean()
            self.optimizer.minimize(cross_entropy + error)
            return cross_entropy.detach(), error.detach()

    return parl.Agent(AlphaZero(PolicyAndValue()), seed=seed)


class Worker:
    """Actor that plays games of self-play and matches."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._agent = make_agent(backend, 1e-3, 0)
        self._agent.predict(ConnectFourBoards.empty(2).observations())  # layers get their shapes

    def self_play(self, weights: Any, games: int, simulations: int, seed: int) -> tuple[Any, ...]:
        """Return observations, shares of visits and outcomes of all positions of a number of games."""
        rng = np.random.default_rng(seed)
        search = Search(self._network(weights), simulations, noise=0.25)
        boards, at = ConnectFourBoards.empty(games), np.arange(games)
        seen, result = [], np.zeros(games)  # outcomes for the player who begins
        for ply in range(ROWS * COLUMNS):
            visits = search.visits(boards, rng)
            seen.append((at, boards.observations(), visits / visits.sum(axis=1, keepdims=True), ply))
            boards = boards.after(drawn_moves(visits, rng, ply < EXPLORED_MOVES))
            result[at[boards.lost()]] = 1.0 if ply % 2 == 0 else -1.0
            goes_on = ~boards.over()
            boards, at = boards[goes_on], at[goes_on]
            if not len(at):
                break
        outcomes = [result[played] * (1.0 if ply % 2 == 0 else -1.0) for played, _, _, ply in seen]
        return (
            np.concatenate([obs for _, obs, _, _ in seen]),
            np.concatenate([shares for _, _, shares, _ in seen]).astype(np.float32),
            np.concatenate(outcomes).astype(np.float32),
        )

    def match(
        self, weights: Any, other: Any, games: int, simulations: int, rollouts: int, seed: int
    ) -> tuple[int, int, int]:
        """Return wins, draws and losses against other weights, or against the fixed search where these are None."""
        rng = np.random.default_rng(seed)
        one = Search(self._network(weights), simulations)
        if other is None:
            two = Search(by_random_games, rollouts, c_puct=1.4)
        else:
            two = Search(Worker(self._backend)._network(other), simulations)
        first, second = play_match(one, two, games // 2, rng), play_match(two, one, games // 2, rng)
        wins, draws, losses = (own + theirs for own, theirs in zip(first, second[::-1], strict=True))
        return wins, draws, losses

    def _network(self, weights: Any) -> Any:
        self._agent.set_weights(weights)

        def evaluate(boards: ConnectFourBoards, rng: np.random.Generator) -> Any:  # noqa: ARG001 - draws nothing
            logits, value = self._agent.predict(boards.observations())
            weighed = np.exp(logits - logits.max(axis=1, keepdims=True))
            return weighed / weighed.sum(axis=1, keepdims=True), value

        return evaluate


class Positions:
    """The newest positions, each also in its mirror image."""

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        self._columns: list[Any] = [np.zeros((0, 2 * ROWS * COLUMNS)), np.zeros((0, COLUMNS)), np.zeros(0)]
        self._capacity, self._rng = capacity, rng

    def __len__(self) -> int:
        return len(self._columns[2])

    def add(self, obs: Any, policy: Any, outcome: Any) -> None:
        mirrored = obs.reshape(-1, 2, ROWS, COLUMNS)[..., ::-1].reshape(obs.shape)
        new = (np.concatenate([obs, mirrored]), np.concatenate([policy, policy[:, ::-1]]), np.tile(outcome, 2))
        self._columns = [
            np.concatenate([column, rows])[-self._capacity :].astype(np.float32)
            for column, rows in zip(self._columns, new, strict=True)
        ]

    def sample(self, n: int) -> list[Any]:
        index = self._rng.integers(len(self), size=n)
        return [column[index] for column in self._columns]

    def get_state(self) -> dict[str, Any]:
        return {"columns": self._columns}

    def set_state(self, state: Any) -> None:
        self._columns = list(state["columns"])


@dataclass
class Progress:
    """The progress of a run, stored together with agent, positions, pool and generator."""

    seconds: float = 0.0
    matched: float = 0.0  # seconds at the last match
    games: int = 0
    updates: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)  # of the newest call

    def get_state(self) -> dict[str, Any]:
        return dict(vars(self))

    def set_state(self, state: Any) -> None:
        vars(self).update(state)


def gathered(workers: WorkerPool) -> list[tuple[Work, Any]]:
    """Wait for calls and return them with their results; calls of a lost worker are repeated on its replacement."""
    found = []
    for work, result, failed in workers.gather():
        if isinstance(result, LostActor):
            workers.submit(work)
        elif failed:
            raise result
        else:
            found.append((work, result))
    return found


def train(agent: parl.Agent, workers: WorkerPool, actors: Any, run: training.Run, settings: Settings) -> None:
    rng, count = np.random.default_rng(settings.seed), max(settings.actors, 1)
    arrived: deque[tuple[Work, Any]] = deque()  # games of self-play that are not learned from yet
    positions, pool = Positions(settings.capacity, rng), training.OpponentPool("rating")
    progress, checkpoints = Progress(), training.Checkpoints(run)
    agent.predict(ConnectFourBoards.empty(2).observations())
    parts = {"rng": rng, "positions": positions, "pool": pool, "progress": progress}
    if checkpoints.keep(LoopParts(agent, others=parts)) is None:
        pool.add("untrained", agent.get_weights())
    began = time.monotonic() - progress.seconds
    saved = progress.seconds

    def elapsed() -> float:
        return time.monotonic() - began

    def goes_on() -> bool:
        if settings.total_games:
            return progress.games < settings.total_games
        return elapsed() < 60 * settings.minutes

    def save() -> None:
        nonlocal saved
        progress.seconds = saved = elapsed()
        checkpoints.save(progress.updates, dict)

    def ask(slot: int, weights: Any) -> None:
        seed = int(rng.integers(2**31))
        workers.submit(Work(slot, "self_play", (weights, settings.games, settings.simulations, seed)))

    def measure() -> None:
        weights, predecessor = agent.get_weights(), pool.players[-1]
        pairs, seeds = settings.match_games // 2, rng.integers(2**31, size=(2, count)).tolist()
        shares = [2 * (pairs // count + (slot < pairs % count)) for slot in range(count)]
        calls = [
            Work(slot, "match", (weights, other, share, settings.simulations, settings.rollouts, seed), match)
            for match, (other, row) in enumerate(zip((None, predecessor.policy), seeds, strict=True))
            for slot, (share, seed) in enumerate(zip(shares, row, strict=True))
            if share
        ]
        for call in calls:
            workers.submit(call)
        left, found = len(calls), np.zeros((2, 3), np.int64)
        while left:
            for work, result in gathered(workers):
                if work.method == "self_play":
                    arrived.append((work, result))
                else:
                    found[work.tag] += result
                    left -= 1
        fixed, before = (training.Results(*counts) for counts in found.tolist())
        name = f"{len(progress.rows)}"
        pool.add(name, weights)
        pool.record(name, predecessor.name, before)
        progress.matched = elapsed()
        minutes = progress.matched / 60
        mean = np.mean(progress.losses, axis=0).tolist() if progress.losses else [None, None]
        progress.rows.append(
            {
                "minutes": minutes,
                "games": progress.games,
                "updates": progress.updates,
                "against_fixed_search": fixed._asdict(),
                "against_predecessor": before._asdict(),
                "rating": pool[name].rating,
                "policy_loss": mean[0],
                "value_loss": mean[1],
            }
        )
        print(
            f"{minutes:.1f} min, {progress.games} games, {progress.updates} updates: score {fixed.score:.2f} against "
            f"{settings.rollouts} rollouts, {before.score:.2f} against {predecessor.name}, "
            f"rating {pool[name].rating:.0f}",
            flush=True,
        )
        write_json(run.path / "strength.json", {"settings": vars(settings), "rows": progress.rows})
        plot(progress.rows, settings, run.path / "strength.png")
        agent.save(run.path / "newest.ckpt")

    if not progress.rows:
        measure()
        save()
    weights = actors.put(agent.get_weights())
    if goes_on():
        for slot in range(count):
            ask(slot, weights)
    while arrived or workers.is_busy:
        if not arrived:
            arrived.extend(gathered(workers))
            continue
        work, played = arrived.popleft()
        positions.add(*played)
        progress.games += settings.games
        progress.losses.clear()
        for _ in range(settings.updates):
            figures = agent.learn(*positions.sample(settings.batch_size))
            progress.losses.append([float(figure) for figure in figures])
        progress.updates += settings.updates
        if goes_on():
            if elapsed() - saved >= 60 * settings.save_every:
                save()  # before the next call is drawn, because a resumed run draws it again
            weights = actors.put(agent.get_weights())
            ask(work.slot, weights)
            if elapsed() - progress.matched >= 60 * settings.match_every:
                measure()
    if progress.rows[-1]["updates"] != progress.updates:
        measure()
    save()
    for name, what in (
        ("strength.json", "strength over time"),
        ("strength.png", "the same, drawn"),
        ("newest.ckpt", "agent at the last match"),
    ):
        run.saved(run.path / name, what)


def plot(rows: list[dict[str, Any]], settings: Settings, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    minutes = [row["minutes"] for row in rows]
    scores = [training.Results(**row["against_fixed_search"]).score for row in rows]
    left.plot(minutes, scores, marker=".")
    left.set(xlabel="minutes", ylabel=f"score against MCTS of {settings.rollouts} random games", ylim=(-0.02, 1.02))
    right.plot(minutes, [row["rating"] for row in rows], marker=".")
    right.set(xlabel="minutes", ylabel="Elo, by matches against the predecessor")
    figure.savefig(path)


def main(settings: Settings) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # networks this small are slower on several threads
    if settings.smoke:
        small = {"games": 4, "simulations": 8, "updates": 2, "rollouts": 8, "match_games": 4, "batch_size": 32}
        small["total_games"] = 2 * small["games"]
        settings = Settings(**{**vars(settings), **small})
    if settings.match_games < 2 or settings.match_games % 2:
        raise SystemExit(
            f"--match-games must be even, for half of them with each seat, and at least 2, got {settings.match_games}"
        )
    with training.open_run("alphazero", settings) as run:
        training.seed_everything(settings.seed)
        agent = make_agent(settings.backend, settings.lr, settings.seed)
        with (
            training.choose_actors(settings.actors, settings.address) as actors,
            WorkerPool(
                lambda _: actors.create(Worker, settings.backend), max(settings.actors, 1), LossLimit(MOST_LOSSES)
            ) as workers,
        ):
            workers.start()
            train(agent, workers, actors, run, settings)
        run.save(agent)
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
