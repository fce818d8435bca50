"""Self-play: frozen opponents with ratings, matches between them in actors, and an environment to learn against them.

    agent ── learns in AgainstOpponents(game, pool's policies) ── freeze ──> OpponentPool: players with Elo ratings
                                                                               ^
    Arena ── matches in actors (in this process, in others, on a cluster) ── record ─┘

    pool = OpponentPool(matchmaking="rating")
    for generation in range(20):
        opponents, chances = pool.opponents()
        envs = make_vector_env(partial(AgainstOpponents, ConnectFour, opponents, chances), 16, actors=actors)
        train_on_policy(agent, envs, settings)
        challenger = frozen(agent, envs.single_observation_space, envs.single_action_space)
        pool.challenge(f"generation-{generation}", challenger, arena, games=200)

Opponents drawn with equal chances make this fictitious self-play (Heinrich et al. 2015): in zero-sum games the average
of all generations converges to an equilibrium, though the last one need not. Games have PettingZoo's AEC API, such as
those of `parl_core.env.two_player`; PettingZoo itself is not needed.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core._closing import ClosingContext
from parl_core._deprecation import class_of_old_name
from parl_core.actors import ActorSystem, InProcessActors
from parl_core.agent import Agent
from parl_core.checks import check_int, check_positive
from parl_core.errors import EnvironmentContractError, HyperparameterError, LostActor
from parl_core.policy import Policy
from parl_core.training.acting import Acting
from parl_core.worker_pool import LossLimit, Work, WorkerPool

__all__ = [
    "MATCHMAKING",
    "AgainstOpponents",
    "Arena",
    "Match",
    "OpponentPool",
    "Player",
    "PlayerPolicy",
    "Results",
    "expected_score",
    "updated_ratings",
]

MATCHMAKING = ("uniform", "rating", "hardest")
"""The ways to draw opponents; see `OpponentPool`."""

GAMES_WITHOUT_A_TURN = 100
"""Games in a row that may be over before the learner's first turn."""

ELO_SCALE = 400.0
"""Points of rating that make the odds ten to one, as in chess (Elo 1978)."""


class PlayerPolicy(Protocol):
    """A player, such as a `parl_core.policy.Policy`.

    A policy with a memory has `initial_state`, and `state=` of `sample`, as a `Policy` does; the state is reset in each
    game.
    """

    def sample(self, observation: Any, rng: np.random.Generator, /) -> Any:
        """Draw an action."""


def expected_score(rating: float, other: float) -> float:
    """Return the score that Elo's model predicts against a player of another rating, between 0 and 1.

    A win counts 1 and a draw 1/2: `1 / (1 + 10 ** ((other - rating) / 400))`.
    """
    return 1.0 / (1.0 + math.pow(10.0, min(max((other - rating) / ELO_SCALE, -300.0), 300.0)))


class Results(NamedTuple):
    """The results of some games between two players, from the first player's side."""

    wins: int = 0
    draws: int = 0
    losses: int = 0
    reward: float = 0.0
    """Sum of the first player's rewards."""

    @property
    def games(self) -> int:
        """Return the number of games."""
        return self.wins + self.draws + self.losses

    @property
    def score(self) -> float:
        """Return the share of points of the first player, a draw counting half."""
        return (self.wins + 0.5 * self.draws) / self.games

    def plus(self, other: "Results") -> "Results":
        """Return the sum of these and other results."""
        return Results(
            self.wins + other.wins, self.draws + other.draws, self.losses + other.losses, self.reward + other.reward
        )

    def swapped(self) -> "Results":
        """Return the results from the other player's side, in a zero-sum game."""
        return Results(self.losses, self.draws, self.wins, -self.reward)


def updated_ratings(rating: float, other: float, results: Results, k: float = 16.0) -> tuple[float, float]:
    """Return both players' ratings after some games.

    Elo's update `rating += k * (score - expected score)`, and the opposite for the other player, is repeated once per
    game with the mean score of all games. So the order of wins and losses does not matter, and with many games the
    ratings approach the point at which the expected score is the mean score, without passing it.

    Args:
        rating: of the first player.
        other: of the second.
        results: from the first one's side.
        k: the largest change per game, in points, above 0; 16 is usual for masters in chess, 32 for beginners.
    """
    for _ in range(results.games):
        change = k * (results.score - expected_score(rating, other))
        rating, other = rating + change, other - change
    return rating, other


@dataclass(frozen=True)
class Player:
    """A member of a pool.

    Attributes:
        name: its name, unique in the pool.
        policy: its frozen policy.
        rating: its Elo rating.
        games: the number of games that it was rated by.
    """

    name: str
    policy: Any
    rating: float
    games: int = 0


class OpponentPool:
    """Frozen opponents with ratings.

    Matchmaking determines the probability of each opponent. `"uniform"`: equal probabilities. `"rating"`: in proportion
    to `exp(-(difference / spread)**2 / 2)`, so that most opponents are about as strong as the newest. `"hardest"`: in
    proportion to their expected score against the newest, which is prioritised fictitious self-play (Vinyals et al.
    2019, by ratings instead of counted wins).

    Args:
        matchmaking: one of `MATCHMAKING`.
        initial_rating: rating of the first player; the others start with the rating of the newest before them.
        k: factor of Elo's update, see `updated_ratings`.
        spread: spread of `"rating"`, in points.
        capacity: the number of players that are kept; beyond it, the player with the lowest rating is removed, but
            never the newest. None for no limit.

    Raises:
        HyperparameterError: a number is out of its range, or the matchmaking is unknown.
    """

    def __init__(
        self,
        matchmaking: str = "rating",
        *,
        initial_rating: float = 1000.0,
        k: float = 16.0,
        spread: float = 200.0,
        capacity: int | None = None,
    ) -> None:
        if matchmaking not in MATCHMAKING:
            raise HyperparameterError(f"matchmaking must be one of {', '.join(MATCHMAKING)}, got {matchmaking!r}")
        self.matchmaking = matchmaking
        self._initial_rating = float(initial_rating)
        self._k, self._spread = check_positive("k", k), check_positive("spread", spread)
        self._capacity = None if capacity is None else check_int("capacity", capacity)
        self._players: dict[str, Player] = {}

    def __len__(self) -> int:
        return len(self._players)

    def __getitem__(self, name: str) -> Player:
        """Return a player.

        Raises:
            KeyError: There is no player of that name.
        """
        return self._players[name]

    @property
    def players(self) -> list[Player]:
        """Return all players, the oldest first."""
        return list(self._players.values())

    def add(self, name: str, policy: Any, rating: float | None = None) -> Player:
        """Add a player.

        Args:
            name: its name, unique in the pool.
            policy: its policy, which must not change afterwards.
            rating: its rating; default: that of the newest player, or the initial one.

        Raises:
            HyperparameterError: There already is a player of that name.
        """
        self._require_new(name)
        newest = self.players[-1].rating if self._players else self._initial_rating
        player = Player(name, policy, newest if rating is None else float(rating))
        self._players[name] = player
        self._drop_weakest()
        return player

    def chances(self, rating: float | None = None) -> NDArray[np.float64]:
        """Return the probabilities with which the players are drawn, in their order; they sum to 1.

        Args:
            rating: rating of the player that needs an opponent; default: the newest player's.

        Raises:
            HyperparameterError: the pool is empty.
        """
        if not self._players:
            raise HyperparameterError("the pool has no players yet: add() one, such as the untrained agent")
        ratings = np.array([player.rating for player in self.players])
        wanted = ratings[-1] if rating is None else float(rating)
        if self.matchmaking == "uniform":
            weights = np.ones(len(ratings))
        elif self.matchmaking == "rating":
            exponents = -0.5 * ((ratings - wanted) / self._spread) ** 2
            weights = np.exp(exponents - exponents.max())
        else:
            weights = np.array([expected_score(other, wanted) for other in ratings])
        chances: NDArray[np.float64] = weights / weights.sum()
        return chances

    def draw(self, rng: np.random.Generator, rating: float | None = None) -> Player:
        """Draw an opponent, with the `chances` for a player of this rating."""
        return self.players[int(rng.choice(len(self._players), p=self.chances(rating)))]

    def opponents(self, rating: float | None = None) -> tuple[list[Any], list[float]]:
        """Return the policies of all players and their `chances`, as `AgainstOpponents` takes them."""
        return [player.policy for player in self.players], self.chances(rating).tolist()

    def record(self, name: str, other: str, results: Results) -> None:
        """Update the ratings of two players after games between them.

        Args:
            name: of the first player.
            other: of the second.
            results: from the first one's side.

        Raises:
            KeyError: There is no such player.
        """
        one, two = self._players[name], self._players[other]
        ratings = updated_ratings(one.rating, two.rating, results, self._k)
        for player, rating in zip((one, two), ratings, strict=True):
            self._players[player.name] = replace(player, rating=rating, games=player.games + results.games)

    def challenge(
        self, name: str, policy: Any, arena: "Arena", games: int = 200, seed: int | None = None
    ) -> dict[str, Results]:
        """Add a player, and play games between it and each existing player.

        Args:
            name: its name, unique in the pool.
            policy: as in `add`.
            arena: plays the games.
            games: number of games against each, half of them in each seat; even.
            seed: seed of the games.

        Returns:
            results by the other's name, from the new player's side.

        Raises:
            HyperparameterError: As in `add` and in `Arena.play`.
            Exception: A game or a policy raised it; the pool is unchanged.
        """
        self._require_new(name)
        others = self.players
        found = arena.play([Match(policy, other.policy, games) for other in others], seed)
        self._players[name] = Player(name, policy, others[-1].rating if others else self._initial_rating)
        for other, results in zip(others, found, strict=True):
            self.record(name, other.name, results)
        self._drop_weakest()
        return {other.name: results for other, results in zip(others, found, strict=True)}

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the players.

        A `parl_core.policy.Policy` becomes the bytes of its file. Other policies are kept unchanged, so in a checkpoint
        they must be arrays, such as weights by name.
        """
        return {"players": [_player_state(player) for player in self.players]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned.

        Raises:
            CheckpointError: the bytes of a policy are damaged.
        """
        players = [_player_of(player) for player in state["players"]]
        self._players = {player.name: player for player in players}

    def _require_new(self, name: str) -> None:
        if name in self._players:
            raise HyperparameterError(f"the pool has a player {name!r} already; names are {', '.join(self._players)}")

    def _drop_weakest(self) -> None:
        """Remove the weakest players above the maximum number, but never the newest."""
        if self._capacity is not None and len(self._players) > self._capacity:
            weakest = min(self.players[:-1], key=lambda each: each.rating)
            del self._players[weakest.name]


def _player_state(player: Player) -> dict[str, Any]:
    state = dict(vars(player))
    if isinstance(player.policy, Policy):
        state["policy_file"] = state.pop("policy").to_bytes()
    return state


def _player_of(state: Mapping[str, Any]) -> Player:
    if "policy_file" not in state:
        return Player(**state)
    rest = {name: value for name, value in state.items() if name != "policy_file"}
    return Player(policy=Policy.from_bytes(state["policy_file"]), **rest)


def _check_player(policy: Any) -> None:
    """Refuse what cannot play, such as an agent, whose policy changes while it learns."""
    if isinstance(policy, Agent) or not callable(getattr(policy, "sample", None)):
        raise HyperparameterError(
            f"players are policies with sample(observation, rng), got a {type(policy).__name__}: give "
            "parl_core.export.frozen(agent, observation_space, action_space), or an object with such a method"
        )


def _made(make_game: Any) -> Any:
    """Return a new game, of PettingZoo's AEC API."""
    if not callable(make_game):
        raise HyperparameterError(
            f"make_game must be a function that returns a game, got a {type(make_game).__name__}: give its class, or "
            "functools.partial of it"
        )
    game = make_game()
    if missing := [name for name in ("possible_agents", "last") if not hasattr(game, name)]:
        raise HyperparameterError(
            f"{type(game).__name__} has no {', '.join(missing)}: players take turns in a game of PettingZoo's AEC API; "
            "use its env(), or pettingzoo.utils.parallel_to_aec"
        )
    return game


class Match(NamedTuple):
    """Games between two policies, each of which has the first seat in half of them."""

    first: Any
    second: Any
    games: int


class Arena(ClosingContext):
    """Plays matches of a game in actors, which are made at once and replaced when they are lost.

    Results depend only on the seed, not on the number or place of actors.

    Args:
        make_game: returns a game of two players, of PettingZoo's AEC API.
        actors: The actor system for games; None for this process. The caller closes it.
        workers: number of actors; default: the slots of `actors`, or 1 if these are unknown.
        games_per_call: number of games that an actor plays in one call.
        timeout_s: Maximum seconds of such a call; None for no limit.
        max_losses: number of actors that may be lost before the last loss is raised.

    Raises:
        HyperparameterError: A number is out of its range, or `make_game` makes no game of two players.
        Exception: `make_game` raised it.
    """

    def __init__(
        self,
        make_game: Callable[[], Any],
        *,
        actors: ActorSystem | None = None,
        workers: int | None = None,
        games_per_call: int = 50,
        timeout_s: float | None = None,
        max_losses: int = 10,
    ) -> None:
        system = InProcessActors() if actors is None else actors
        self._workers = check_int("workers", (system.slots or 1) if workers is None else workers)
        self._games_per_call = check_int("games_per_call", games_per_call)
        self._system = system
        self._pool = WorkerPool(
            lambda _: system.create(_Table, make_game),
            self._workers,
            LossLimit(check_int("max_losses", max_losses, at_least=0)),
            timeout_s=timeout_s,
            runs="a game",
        )
        self._pool.start()

    def play(self, matches: Sequence[Match], seed: int | None = None) -> list[Results]:
        """Play matches and return their results, each from its first player's side.

        Args:
            matches: with an even number of games each.
            seed: Seed of all games; None for one from the system.

        Raises:
            HyperparameterError: a number of games is odd or below 2, or a player has no `sample(observation, rng)`.
            LostActor: more actors were lost than `max_losses` allows.
            Exception: A game or a policy raised it.
        """
        for match in matches:
            if check_int("games", match.games) % 2:
                raise HyperparameterError(
                    f"games must be even, for each side to begin equally often, got {match.games}"
                )
            for policy in match[:2]:
                _check_player(policy)
        entropy = np.random.SeedSequence(seed).entropy
        stored: dict[int, Any] = {}
        for match in matches:
            for policy in match[:2]:
                if id(policy) not in stored:
                    stored[id(policy)] = self._system.put(policy)
        calls = []
        for number, match in enumerate(matches):
            for swapped in (False, True):
                pair = [stored[id(policy)] for policy in (match[1::-1] if swapped else match[:2])]
                half = match.games // 2
                for part, start in enumerate(range(0, half, self._games_per_call)):
                    key = [entropy, number, int(swapped), part]
                    count = min(self._games_per_call, half - start)
                    calls.append((*pair, count, key, (number, swapped)))
        return self._gathered(calls, len(matches))

    def close(self) -> None:
        """End the actors; a second call does nothing."""
        self._pool.stop()

    def _gathered(self, calls: list[tuple[Any, ...]], count: int) -> list[Results]:
        totals = [Results()] * count
        waiting = list(reversed(calls))

        def submit(slot: int, call: tuple[Any, ...]) -> None:
            self._pool.submit(Work(slot, "play", call[:4], call))

        idle = list(range(self._workers))
        try:
            while waiting or len(idle) < self._workers:
                while waiting and idle:
                    submit(idle.pop(), waiting.pop())
                for work, answer, failed in self._pool.gather():
                    if isinstance(answer, LostActor):
                        submit(work.slot, work.tag)  # its replacement plays the same games
                        continue
                    if failed:
                        raise answer
                    idle.append(work.slot)
                    number, swapped = work.tag[4]
                    results = Results(*answer)
                    totals[number] = totals[number].plus(results.swapped() if swapped else results)
        except BaseException:
            self._pool.drop_calls()  # the next match finds all workers free
            raise
        return totals


class _Table:
    """A game and two players at it, in an actor of an arena."""

    def __init__(self, make_game: Callable[[], Any]) -> None:
        self._game = _made(make_game)
        if len(self._game.possible_agents) != 2:
            raise HyperparameterError(f"an arena is for games of two players, got {self._game.possible_agents}")

    def play(self, first: PlayerPolicy, second: PlayerPolicy, games: int, key: Sequence[int]) -> tuple[Any, ...]:
        """Play games, `first` in the first seat, and return their results."""
        rng = np.random.default_rng(key)
        results = Results()
        for _ in range(games):
            rewards = self._game_of([Acting(first), Acting(second)], rng)
            difference = rewards[0] - rewards[1]
            results = results.plus(Results(difference > 0, difference == 0, difference < 0, rewards[0]))
        return tuple(results)

    def _game_of(self, players: Sequence[Acting], rng: np.random.Generator) -> list[float]:
        game, rewards = self._game, [0.0, 0.0]
        game.reset(seed=int(rng.integers(2**31)))
        seats = {agent: seat for seat, agent in enumerate(game.possible_agents)}
        while game.agents:
            seat = seats[game.agent_selection]
            observation, reward, terminated, truncated, _ = game.last()
            rewards[seat] += reward
            game.step(None if terminated or truncated else players[seat].sample(observation, rng))
        return rewards


class AgainstOpponents(gymnasium.Env[Any, Any]):
    """One seat of a turn-based game; opponents have the other seats.

    An opponent is drawn for every episode and every other seat. A reward is the seat's sum since its previous turn.

    Args:
        make_game: returns a game of PettingZoo's AEC API.
        opponents: the policies of the other seats, at least one.
        chances: probability of each opponent; they sum to 1. Default: equal ones.
        seat: the learner's index in `possible_agents`; default: drawn for every episode, where all seats have the same
            spaces.

    Raises:
        HyperparameterError: `make_game` makes no game of two players, there are no opponents or no list of them, one
            has no `sample(observation, rng)`, the chances are not probabilities, the seat does not exist, or no seat is
            given although spaces differ.
    """

    def __init__(
        self,
        make_game: Callable[[], Any],
        opponents: Sequence[PlayerPolicy],
        chances: Sequence[float] | None = None,
        *,
        seat: int | None = None,
    ) -> None:
        if not isinstance(opponents, Iterable):
            raise HyperparameterError(
                f"opponents must be a list of policies, got a {type(opponents).__name__}: put it into a list"
            )
        self._game, self._opponents = _made(make_game), list(opponents)
        agents = list(self._game.possible_agents)
        if not self._opponents:
            raise HyperparameterError("there must be at least one opponent, got none: begin with the untrained policy")
        for policy in self._opponents:
            _check_player(policy)
        given = (
            np.full(len(self._opponents), 1 / len(self._opponents)) if chances is None else np.asarray(chances, float)
        )
        if (
            given.shape != (len(self._opponents),)
            or (given < 0).any()
            or not math.isclose(given.sum(), 1, abs_tol=1e-6)
        ):
            raise HyperparameterError(
                f"chances must be {len(self._opponents)} numbers of at least 0 that sum to 1, one for each opponent, "
                f"got {chances}"
            )
        if seat is not None and not 0 <= seat < len(agents):
            raise HyperparameterError(f"seat must be in 0..{len(agents) - 1}, got {seat}")
        each = [(self._game.observation_space(name), self._game.action_space(name)) for name in agents]
        if seat is None and any(other != each[0] for other in each):
            found = ", ".join(f"{name} {seen} and {act}" for name, (seen, act) in zip(agents, each, strict=True))
            raise HyperparameterError(
                f"the seats of {type(self._game).__name__} have different spaces, {found}: choose the learner's by "
                f"seat=, in 0..{len(agents) - 1}"
            )
        self._chances, self._seat, self._agents = given / given.sum(), seat, agents
        self.observation_space, self.action_space = each[seat or 0]
        self._me = agents[seat or 0]
        self._players: dict[str, Acting] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game, against opponents that are drawn now, and play it until it is the learner's turn.

        Raises:
            EnvironmentContractError: a hundred games in a row were over before the learner's first turn.
        """
        super().reset(seed=seed)
        for _ in range(GAMES_WITHOUT_A_TURN):
            self._game.reset(seed=int(self.np_random.integers(2**31)), options=options)
            seat = int(self.np_random.integers(len(self._agents))) if self._seat is None else self._seat
            self._me = self._agents[seat]
            drawn = self.np_random.choice(len(self._opponents), size=len(self._agents), p=self._chances)
            self._players = {name: Acting(self._opponents[i]) for name, i in zip(self._agents, drawn, strict=True)}
            observation, _, terminated, truncated, info = self._until_own_turn()
            if not (terminated or truncated):  # the game may be over before the learner's first turn
                return observation, info
        raise EnvironmentContractError(
            f"{GAMES_WITHOUT_A_TURN} games of {type(self._game).__name__} in a row were over before the first turn of "
            f"{self._me}: there is nothing to learn in this seat, choose another by seat=, or weaker opponents"
        )

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play the learner's action, and then the others' until the learner's next turn or the end of its game."""
        self._game.step(action)
        observation, reward, terminated, truncated, info = self._until_own_turn()
        return observation, float(reward), bool(terminated), bool(truncated), info

    def close(self) -> None:
        """Close the game."""
        self._game.close()

    def _until_own_turn(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        game = self._game
        while True:
            name = game.agent_selection
            observation, reward, terminated, truncated, info = game.last()
            if name == self._me:
                return observation, reward, terminated, truncated, dict(info)
            game.step(None if terminated or truncated else self._players[name].sample(observation, self.np_random))


def __getattr__(name: str) -> type:
    return class_of_old_name(__name__, name, {"Chooses": PlayerPolicy})
