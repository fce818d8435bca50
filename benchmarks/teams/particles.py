"""Five games of MPE for many parallel episodes: the rules of mpe2 1.1.1, in arrays over the episodes.

    python benchmarks/teams/particles.py

A step of mpe2 takes half a millisecond, nine tenths of a run. Here a step of a hundred episodes takes that long, so
that agents can learn for as many steps as in published runs; they are evaluated in mpe2 itself. The command plays both
side by side, from the same positions with the same actions, prints the largest difference of observations and rewards,
and fails above 1e-5.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl.env import make_joint_env

Array = NDArray[np.float64]

CYCLES = 25  # steps of an episode
_STEP, _KEPT_SPEED, _ACCELERATION = 0.1, 0.75, 5.0
_CONTACT_FORCE, _CONTACT_MARGIN = 100.0, 1e-3
_MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.float64) * _ACCELERATION


class Particles(gymnasium.vector.VectorEnv[dict[str, Any], Any, Any]):
    """Synchronous episodes of one game, with the joint observations of `JointEnv`.

    Args:
        name: Name for `make_joint_env`, such as `mpe2:simple_spread_v3`.
        num_envs: Number of parallel episodes.
    """

    def __init__(self, name: str, num_envs: int) -> None:
        joint = make_joint_env(name)
        self.game = GAMES[name.partition(":")[2]]()
        self.num_envs, self.sizes = num_envs, joint.obs_sizes
        self.single_observation_space, self.single_action_space = joint.observation_space, joint.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(joint.observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(joint.action_space, num_envs)
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        n = len(joint.agents)
        self._mask = np.zeros((num_envs, n, max(joint.act_sizes)), np.int8)
        for row, choices in enumerate(joint.act_sizes):
            self._mask[:, row, :choices] = 1
        self._none, self._all = np.zeros((num_envs, n), np.int8), np.ones((num_envs, n), np.int8)
        self._returns, self._now = np.zeros(num_envs), 0
        joint.close()

    def reset(
        self,
        *,
        seed: Any = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002 - games have none
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._np_random = np.random.default_rng(seed)
        self._begin()
        return self._joint(self._none, alive=True), {}

    def step(self, actions: Any) -> tuple[dict[str, Any], Array, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        own = self.game.step(np.asarray(actions))
        team = own.mean(1)
        self._returns += team
        self._now += 1
        over = np.full(self.num_envs, self._now == CYCLES)
        infos: dict[str, Any] = {}
        obs = self._joint(own, alive=not over[0])
        if over[0]:
            last = np.empty(self.num_envs, object)
            last[:] = [{part: rows[i] for part, rows in obs.items()} for i in range(self.num_envs)]
            episode = {"r": self._returns.copy(), "l": np.full(self.num_envs, CYCLES)}
            infos = {"final_obs": last, "_final_obs": over, "episode": episode, "_episode": over}
            self._begin()
            obs = self._joint(self._none, alive=True)
        return obs, team, np.zeros(self.num_envs, np.bool_), over, infos

    def _begin(self) -> None:
        self.game.begin(self.num_envs, self.np_random)
        self._returns[:], self._now = 0.0, 0

    def _joint(self, rewards: NDArray[Any], *, alive: bool) -> dict[str, Any]:
        seen = self.game.observe()
        obs = np.zeros((self.num_envs, len(seen), max(self.sizes)), np.float32)
        for row, own in enumerate(seen):
            obs[:, row, : self.sizes[row]] = own
        return {
            "obs": obs,
            "state": np.concatenate(seen, axis=1).astype(np.float32),
            "alive": self._all.copy() if alive else self._none.copy(),
            "rewards": np.asarray(rewards, np.float32),
            "terminated": self._none.copy(),
            "action_mask": self._mask.copy(),
        }


class Game:
    """Agents and landmarks of many episodes: positions and speeds `[episodes, agents or landmarks, 2]`."""

    agents, landmarks, radius = 1, 1, 0.0
    collide = False

    def begin(self, n: int, rng: np.random.Generator) -> None:
        self.at = rng.uniform(-1, 1, (n, self.agents, 2))
        self.speed = np.zeros((n, self.agents, 2))
        self.marks = rng.uniform(-1, 1, (n, self.landmarks, 2))
        self.goal = rng.integers(self.landmarks, size=n)

    def step(self, actions: NDArray[Any]) -> Array:
        """Move by choices `[episodes, agents]`, and return rewards of the same shape."""
        force = _MOVES[actions]
        if self.collide:
            apart, distance = _apart(self.at, self.at)
            distance[:, range(self.agents), range(self.agents)] = np.inf
            depth = np.logaddexp(0, (2 * self.radius - distance) / _CONTACT_MARGIN) * _CONTACT_MARGIN
            force += (_CONTACT_FORCE * apart * (depth / distance)[..., None]).sum(2)
        self.move(force)
        return self.rewards()

    def move(self, force: Array) -> None:
        """Move the agents, with their speeds before the force."""
        self.at += self.speed * _STEP
        self.speed = self.speed * _KEPT_SPEED + force * _STEP

    def seen_by(self, agent: int, points: Array) -> Array:
        """Return the positions of points relative to an agent, `[episodes, 2 * points]`."""
        return (points - self.at[:, agent, None]).reshape(len(points), -1)

    def others(self, agent: int) -> Array:
        """Return the positions of the other agents relative to one."""
        return self.seen_by(agent, np.delete(self.at, agent, 1))

    def target(self) -> Array:
        """Return the position of the goal, `[episodes, 2]`."""
        return self.marks[np.arange(len(self.goal)), self.goal]

    def rewards(self) -> Array:
        raise NotImplementedError

    def observe(self) -> list[Array]:
        """Return the observations of each agent, `[episodes, size]`."""
        raise NotImplementedError


class Simple(Game):
    """One agent goes to the landmark."""

    def rewards(self) -> Array:
        return -np.square(self.at - self.marks).sum(2)

    def observe(self) -> list[Array]:
        return [np.concatenate([self.speed[:, 0], self.seen_by(0, self.marks)], 1)]


class Spread(Game):
    """Three agents cover three landmarks and do not touch each other."""

    agents, landmarks, radius, collide = 3, 3, 0.15, True

    def rewards(self) -> Array:
        uncovered = _apart(self.marks, self.at)[1].min(2).sum(1, keepdims=True)
        touching = (_apart(self.at, self.at)[1] < 2 * self.radius).sum(2) - 1
        return -0.5 * uncovered - 0.5 * touching

    def observe(self) -> list[Array]:
        silent = np.zeros((len(self.at), 4))
        own = [np.concatenate([self.speed[:, i], self.at[:, i], self.seen_by(i, self.marks)], 1) for i in range(3)]
        return [np.concatenate([own[i], self.others(i), silent], 1) for i in range(3)]


class SpeakerListener(Game):
    """The speaker observes the listener's target landmark, and sends one of three words."""

    agents, landmarks = 2, 3

    def begin(self, n: int, rng: np.random.Generator) -> None:
        super().begin(n, rng)
        self.word = np.zeros((n, 3))

    def step(self, actions: NDArray[Any]) -> Array:
        self.word = np.eye(3)[actions[:, 0]]
        force = np.zeros_like(self.at)
        force[:, 1] = _MOVES[actions[:, 1]]
        self.move(force)
        return self.rewards()

    def rewards(self) -> Array:
        return np.repeat(-np.square(self.at[:, 1] - self.target()).sum(1)[:, None], 2, 1)

    def observe(self) -> list[Array]:
        colour = np.full((len(self.goal), 3), 0.15)
        colour[np.arange(len(self.goal)), self.goal] = 0.65
        return [colour, np.concatenate([self.speed[:, 1], self.seen_by(1, self.marks), self.word], 1)]


class Adversary(Game):
    """Two agents know which landmark is the goal; the adversary, which is first, does not."""

    agents, landmarks = 3, 2

    def rewards(self) -> Array:
        distance = _apart(self.target()[:, None], self.at)[1][:, 0]
        good = distance[:, :1] - distance[:, 1:].min(1, keepdims=True)
        return np.concatenate([-distance[:, :1], good, good], 1)

    def observe(self) -> list[Array]:
        seen = [np.concatenate([self.seen_by(i, self.marks), self.others(i)], 1) for i in range(3)]
        return [seen[0]] + [np.concatenate([self.seen_by(i, self.target()[:, None]), seen[i]], 1) for i in (1, 2)]


class Push(Game):
    """One agent knows which landmark is the goal; the adversary, which is first, keeps it away."""

    agents, landmarks, radius, collide = 2, 2, 0.05, True

    def rewards(self) -> Array:
        distance = _apart(self.target()[:, None], self.at)[1][:, 0]
        return np.stack([distance[:, 1] - distance[:, 0], -distance[:, 1]], 1)

    def observe(self) -> list[Array]:
        colour = np.full((len(self.goal), 3), 0.25)
        colour[np.arange(len(self.goal)), self.goal + 1] += 0.5
        marks = np.tile([0.1, 0.9, 0.1, 0.1, 0.1, 0.9], (len(self.goal), 1))
        adversary = [self.speed[:, 0], self.seen_by(0, self.marks), self.others(0)]
        target = self.seen_by(1, self.target()[:, None])
        good = [self.speed[:, 1], target, colour, self.seen_by(1, self.marks), marks, self.others(1)]
        return [np.concatenate(adversary, 1), np.concatenate(good, 1)]


GAMES: dict[str, Callable[[], Game]] = {
    "simple_v3": Simple,
    "simple_spread_v3": Spread,
    "simple_speaker_listener_v4": SpeakerListener,
    "simple_adversary_v3": Adversary,
    "simple_push_v3": Push,
}


def _apart(here: Array, there: Array) -> tuple[Array, Array]:
    """Return vectors `[episodes, here, there, 2]` from there to here, and their lengths."""
    vectors = here[:, :, None] - there[:, None]
    return vectors, np.sqrt(np.square(vectors).sum(3))


def largest_difference(name: str, episodes: int = 200) -> float:
    """Return the largest difference of observations and rewards of episodes played here and in mpe2."""
    joint, ours = make_joint_env(f"mpe2:{name}"), Particles(f"mpe2:{name}", 1)
    rng, largest = np.random.default_rng(0), 0.0
    for seed in range(episodes):
        theirs, _ = joint.reset(seed=seed)
        obs, _ = ours.reset(seed=seed)
        inner = joint.parallel_env.unwrapped
        world, game = inner.world, ours.game
        game.at[0] = [agent.state.p_pos for agent in world.agents]
        game.marks[0] = [mark.state.p_pos for mark in world.landmarks]
        goal = getattr(world.agents[0], "_goal_b", None) or getattr(world.agents[0], "_goal_a", None)
        game.goal[0] = world.landmarks.index(goal) if goal in world.landmarks else 0
        if seed % 2:  # agents that begin close collide more often
            for i, agent in enumerate(world.agents):
                game.at[0, i] = agent.state.p_pos = game.at[0, 0] + rng.uniform(-0.2, 0.2, 2)
        for _ in range(CYCLES):
            action = joint.action_space.sample()
            theirs, team, _, truncated, _ = joint.step(action)
            obs, own, _, over, infos = ours.step(action[None])
            seen = {part: rows[0] for part, rows in obs.items()} if not over[0] else infos["final_obs"][0]
            assert truncated == over[0]
            gaps = [np.abs(np.asarray(theirs[part], float) - seen[part]).max() for part in theirs]
            largest = max(largest, *gaps, abs(team - own[0]))
    return float(largest)


if __name__ == "__main__":
    for game in GAMES:
        found = largest_difference(game)
        print(f"{game}: {found:.1e}")
        if found > 1e-5:
            raise SystemExit(f"{game} differs from mpe2")
