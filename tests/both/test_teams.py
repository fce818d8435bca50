"""Teams learn with the loops, on the backend in use: matrix games, resumed runs, actors, pieces of episodes."""

import logging
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import parl
from parl_core.actors import open_actors
from parl_core.env.joint import JointEnv, make_joint_env
from parl_core.env.vector import make_vector_env
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.replay import EpisodeReplayMemory, Prioritized, ReplayMemory
from parl_core.seeding import seed_everything
from parl_core.training.callbacks import StepBudget
from parl_core.training.checkpoints import Checkpoints
from parl_core.training.evaluation import evaluate
from parl_core.training.events import Ended
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.on_policy import OnPolicySettings, train_on_policy
from parl_core.training.recipes import find_recipe
from parl_core.training.results import measure
from parl_core.training.run import Run


def make_two_step() -> Any:
    return make_joint_env("two_step")


def make_cued() -> Any:
    return make_joint_env("cued_two_step")


def made(kind: str, make: Any = make_two_step, memory: Any = None, seed: int = 0, **settings: Any) -> Any:
    seed_everything(seed)
    env = make()
    model = parl.networks.for_team(env.observation_space, env.action_space, memory=memory, memory_size=16)
    mixers = () if kind == "VDN" else (parl.networks.QMixer(len(env.agents), 8),)
    settings = {"lr": 2e-3, "sync_every": 50, "clip_grad_norm": 10.0, **settings}
    return parl.Agent(getattr(parl.algorithms, kind)(model, *mixers, **settings), seed=seed)


class Meeting:
    """Two agents see a number each, for three steps, and are paid for what is near to it; the second leaves early."""

    possible_agents = ("a", "b")

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1.0, 1.0, (1 if agent == "a" else 2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self._rng, self._t, self.agents = np.random.default_rng(seed), 0, ["a", "b"]
        return self._seen(), {}

    def step(self, actions: Any) -> Any:
        acted = list(self.agents)
        rewards = {name: -float(abs(actions[name][0] - self._number[name])) for name in acted}
        self._t += 1
        left = {name: self._t >= (3 if name == "a" else 2) for name in acted}
        seen = self._seen()
        self.agents = [name for name in acted if not left[name]]
        return seen, rewards, left, dict.fromkeys(acted, False), {}

    def close(self) -> None: ...

    def _seen(self) -> Any:
        self._number = {name: float(self._rng.uniform(-1.0, 1.0)) for name in self.agents}
        return {name: np.full(self.observation_space(name).shape, number) for name, number in self._number.items()}


def make_meeting() -> Any:
    return JointEnv(Meeting(), team_reward="sum")


def made_maddpg(make: Any, seed: int = 0, **options: Any) -> Any:
    seed_everything(seed)
    env = make()
    model = parl.networks.for_team(env.observation_space, env.action_space, "actor-critic", hidden=(32,))
    options = {"actor_lr": 3e-3, "critic_lr": 3e-3, **options}
    return parl.Agent(parl.algorithms.MADDPG(model, **options), seed=seed)


def settings(steps: int, **others: Any) -> OffPolicySettings:
    chosen: dict[str, Any] = {"train_every": 4, "batch_size": 32, "memory_size": 2_000, **others}
    chosen.setdefault("exploration", {"epsilon": 1.0})
    chosen.setdefault("learning_starts", 64)
    return OffPolicySettings(total_steps=steps, **chosen)


def train(agent: Any, steps: int, make: Any = make_two_step, **options: Any) -> Ended:
    own = options.pop("own", {})
    with make_vector_env(make, 4, actors=options.pop("actors", None), envs_per_actor=2) as envs:
        return train_off_policy(agent, envs, settings(steps, **own), seed=1, **options)


def test_a_run_of_a_team_recipe_is_measured_and_repeated() -> None:
    recipe = find_recipe("QMIX", "two_step").with_steps(80)
    first, again = (measure("QMIX", "two_step", recipe, 100, episodes=3) for _ in range(2))
    assert (first.steps, len(first.curve), len(first.returns)) == (80, 20, 3)
    assert first == again


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "found"), [("QMIX", 8.0), ("VDN", 7.0)])
def test_the_two_step_game_ends_as_published(kind: str, found: float) -> None:
    """Rashid et al. 2018, table 1: QMIX finds the 8, and VDN, whose sum cannot tell, the safe 7."""
    agent = made(kind)
    train(agent, 4_000)
    assert evaluate(agent, make_two_step, 4, seed=9).mean == found


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "found"), [("QMIX", 8.0), pytest.param("VDN", 7.0, marks=pytest.mark.long)])
def test_a_memory_carries_the_cue_to_the_choice(kind: str, found: float) -> None:
    agent = made(kind, make_cued, "gru")
    train(agent, 5_000, make_cued)
    assert evaluate(agent, make_cued, 20, seed=9).mean == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "optimum"), [("climbing", 11.0), pytest.param("penalty", 10.0, marks=pytest.mark.long)]
)
def test_qmix_finds_the_best_joint_action_beside_penalties(game: str, optimum: float) -> None:
    assert set(measure("QMIX", game, find_recipe("QMIX", game), 1, episodes=3).returns) == {optimum}


@pytest.mark.slow
@pytest.mark.parametrize("memory", [None, "gru"])
def test_a_resumed_run_is_the_one_that_was_never_stopped(tmp_path: Path, memory: Any) -> None:
    options: Any = {"make": make_cued, "own": {"memory_size": 120, "batch_size": 8, "report_every": 16}}
    whole = made("QMIX", make_cued, memory)
    with Run("whole", tmp_path) as run:
        train(whole, 400, **options, checkpoints=Checkpoints(run, 96))
    stopped = made("QMIX", make_cued, memory)
    with Run("stopped", tmp_path) as run:
        ended = train(stopped, 400, **options, checkpoints=Checkpoints(run, 96), callbacks=[StepBudget(208)])
        path = run.path
    assert ended.step == 208
    again = made("QMIX", make_cued, memory, seed=5)
    with Run.resume(path) as run:
        train(again, 400, **options, checkpoints=Checkpoints(run, 96))
    for name, array in whole.get_weights().items():
        np.testing.assert_array_equal(again.get_weights()[name], array, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_two_step, make_meeting], ids=["discrete", "continuous"])
def test_a_resumed_run_of_maddpg_is_the_one_that_was_never_stopped(tmp_path: Path, make: Any) -> None:
    own = {"memory_size": 120, "batch_size": 8, "exploration": {}, "report_every": 16}
    options: Any = {"make": make, "own": own}
    whole = made_maddpg(make)
    with Run("whole", tmp_path) as run:
        train(whole, 300, **options, checkpoints=Checkpoints(run, 96))
    stopped = made_maddpg(make)
    with Run("stopped", tmp_path) as run:
        ended = train(stopped, 300, **options, checkpoints=Checkpoints(run, 96), callbacks=[StepBudget(208)])
        path = run.path
    assert ended.step == 208
    again = made_maddpg(make, seed=5)
    with Run.resume(path) as run:
        train(again, 300, **options, checkpoints=Checkpoints(run, 96))
    for name, array in whole.get_weights().items():
        np.testing.assert_array_equal(again.get_weights()[name], array, err_msg=name)


@pytest.mark.parametrize("memory", [None, "gru"])
@pytest.mark.parametrize("kind", ["QMIX", "VDN"])
def test_a_fresh_agent_tells_a_joint_observation_from_a_batch(kind: str, memory: Any) -> None:
    agent, (obs, _) = made(kind, memory=memory), make_two_step().reset(seed=0)
    batch = {name: np.stack([part, part]) for name, part in obs.items()}
    for act in (agent.predict, agent.sample):
        one, two = act(obs), act(batch)
        if memory:
            one, two = one[0], two[0]
        assert (one.shape, two.shape) == ((2,), (2, 2))


def test_actions_of_maddpg_are_those_that_the_environment_takes() -> None:
    agent, env = made_maddpg(make_meeting), make_meeting()
    obs, _ = env.reset(seed=0)
    for act in (agent.predict, agent.sample):
        assert act(obs).shape == env.action_space.shape
        assert act({name: np.stack([part] * 2) for name, part in obs.items()}).shape == (2, *env.action_space.shape)
    env.step(agent.predict(obs))


@pytest.mark.parametrize("made_one", [lambda: made("QMIX"), lambda: made_maddpg(make_two_step)], ids=["QMIX", "MADDPG"])
def test_targets_have_their_shapes_before_the_first_update(made_one: Any) -> None:
    """Threads are chosen by all shapes: given by a checkpoint or by the first update, last bits would differ."""
    agent = made_one()
    train(agent, 8, own={"exploration": {}})
    assert (agent.alg.updates, agent.alg.target_model._waiting()) == (0, [])


@pytest.mark.slow
def test_maddpg_learns_numbers_of_agents_of_different_kinds() -> None:
    """Acting 0 costs 2.5 on average, half for each of five actions; whoever repeats what it sees pays nothing."""
    agent = made_maddpg(make_meeting)
    before = evaluate(agent, make_meeting, 20, seed=9).mean
    train(agent, 3_000, make_meeting, own={"batch_size": 64, "exploration": {"noise": 0.2}})
    after = evaluate(agent, make_meeting, 20, seed=9).mean
    assert after > max(before, -1.0), (before, after)


class Uneven(Meeting):
    """The second agent's action has two numbers more, which the first one's is padded to."""

    def action_space(self, agent: str) -> Any:
        return spaces.Box(-2.0, 2.0, (1 if agent == "a" else 3,), np.float32)


def test_padding_of_actions_changes_nothing_in_an_update_of_maddpg() -> None:
    rng = np.random.default_rng(0)
    env = JointEnv(Uneven())
    seen = [env.reset(seed=seed)[0] for seed in range(8)]
    obs = {name: np.stack([one[name] for one in seen]) for name in seen[0]}
    action = rng.uniform(-1.0, 1.0, (8, 2, 3)).astype(np.float32)
    other = action.copy()
    other[:, 0, 1:] = 1.0
    learned = []
    for taken in (action, other):
        agent = made_maddpg(lambda: JointEnv(Uneven()))
        assert not np.any(agent.predict(obs).reshape(8, 2, 3)[:, 0, 1:])
        agent.learn(obs, taken, np.ones(8, np.float32), obs, np.zeros(8, np.float32))
        learned.append(agent.get_weights())
    for name, array in learned[0].items():
        np.testing.assert_array_equal(learned[1][name], array, err_msg=name)


class UnevenChoices(Uneven):
    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(super().action_space(agent).shape[0] + 1)


@pytest.mark.parametrize(("kind", "counts"), [(Uneven, (1, 3)), (UnevenChoices, (2, 4))], ids=["numbers", "choices"])
def test_padding_of_actions_counts_in_no_decay_of_maddpg(kind: Any, counts: tuple[int, int]) -> None:
    env = JointEnv(kind())
    obs = {name: np.stack([part] * 8) for name, part in env.reset(seed=0)[0].items()}
    action = np.zeros((8, 2, 3) if kind is Uneven else (8, 2), np.float32 if kind is Uneven else np.int64)
    losses = []
    for decay in (0.0, 1.0):
        agent = made_maddpg(lambda: JointEnv(kind()), policy_decay=decay)
        output = agent.alg._array(agent.alg.model.policy({name: agent.alg._tensor(part) for name, part in obs.items()}))
        with agent.drawing_from(3):
            losses.append(agent.learn(obs, action, np.ones(8, np.float32), obs, np.zeros(8, np.float32))[1])
    squares = [(output[0, i, :count] ** 2).mean() for i, count in enumerate(counts)]
    np.testing.assert_allclose(losses[1] - losses[0], sum(squares), rtol=1e-3)


@pytest.mark.parametrize("kind", ["MAPPO", "IPPO"])
@pytest.mark.parametrize("options", [{}, {"continuous_action": True}], ids=["of the model", "told"])
def test_padding_of_actions_counts_in_no_log_probability(kind: str, options: Any) -> None:
    seed_everything(0)
    env = JointEnv(Uneven())
    model = parl.networks.for_team(env.observation_space, env.action_space, _KINDS[kind])
    agent = parl.Agent(getattr(parl.algorithms, kind)(model, **options), seed=0)
    obs = {name: np.stack([part] * 8) for name, part in env.reset(seed=0)[0].items()}
    _, action, log_prob = agent.explore(obs)
    assert not np.any(action[:, 0, 1:])
    np.testing.assert_allclose(log_prob[:, 0], -0.5 * (action[:, 0, 0] ** 2 + np.log(2.0 * np.pi)), atol=0.05)
    entropy = agent.alg.sample({name: agent.alg._tensor(part) for name, part in obs.items()})[3].tolist()
    one = 0.5 * np.log(2.0 * np.pi * np.e)
    np.testing.assert_allclose(entropy[0], [one, 3.0 * one], rtol=1e-5)
    with make_vector_env(lambda: JointEnv(Uneven()), 2) as envs:
        train_on_policy(agent, envs, OnPolicySettings(total_steps=16, n_steps=4, gae_lambda=0.9), seed=0)
    assert np.isfinite(agent.get_weights()["log_std"]).all()


@pytest.mark.slow
def test_where_environments_live_changes_nothing() -> None:
    here, there = made("QMIX"), made("QMIX")
    train(here, 200)
    with open_actors("subprocess", processes=2) as system:
        train(there, 200, actors=system)
    for name, array in here.get_weights().items():
        np.testing.assert_array_equal(there.get_weights()[name], array, err_msg=name)


@pytest.mark.slow
def test_it_learns_from_pieces_of_episodes() -> None:
    agent = made("QMIX")
    train(agent, 4_000, own={"sequence_length": 4, "batch_size": 64})
    assert evaluate(agent, make_two_step, 4, seed=9).mean == 8.0
    train(made("QMIX", make_cued, "gru"), 400, make_cued, own={"sequence_length": 3, "burn_in": 1})


@pytest.mark.parametrize("change", [{"memory_size": 4}, {"learning_starts": 50}])
def test_a_run_without_updates_is_named(change: dict[str, int], caplog: pytest.LogCaptureFixture) -> None:
    """Four environments fill a memory of 4 transitions with one step, and an episode has two."""
    agent = made("QMIX")
    usual: dict[str, Any] = {"total_steps": 40, "learning_starts": 8, "batch_size": 2, "memory_size": 80}
    with make_vector_env(make_two_step, 4) as envs, caplog.at_level(logging.WARNING, "parl"):
        train_off_policy(agent, envs, OffPolicySettings(**{**usual, **change}), seed=0)
    assert agent.alg.updates == 0
    assert [record.getMessage()[:8] for record in caplog.records] == ["nothing "]


def test_what_does_not_suit_is_refused() -> None:
    with pytest.raises(HyperparameterError, match=r"learns from episodes of .* leave out n_step"):
        train(made("QMIX"), 100, own={"n_step": 2})
    with pytest.raises(HyperparameterError, match="leave out"):
        train(made("QMIX"), 100, own={"prioritized": Prioritized()})
    with pytest.raises(HyperparameterError, match="EpisodeReplayMemory"):
        train(made("QMIX"), 100, memory=ReplayMemory(100, 3, 2))
    with pytest.raises(HyperparameterError, match=r"EpisodeReplayMemory with state=\{'h.*': \(2, 16\)\}"):
        train(made("QMIX", memory="gru"), 100, memory=EpisodeReplayMemory(100, 3, 2, gamma=0.9))
    with pytest.raises(HyperparameterError, match=r"EpisodeReplayMemory has n_envs=2, but 4 environments"):
        train(made("QMIX"), 100, memory=EpisodeReplayMemory(100, 3, 2, n_envs=2, gamma=0.9))


_KINDS: dict[str, Any] = {
    **{"MAPPO": "central", "IPPO": "independent", "COMA": "counterfactual"},
    **{"MADDPG": "actor-critic", "QMIX": "q", "VDN": "q"},
}


def trained(kind: str, model: Any, make: Any) -> None:
    sizes = (2, 2) if kind == "COMA" else (parl.networks.QMixer(2),) if kind == "QMIX" else ()
    agent = parl.Agent(getattr(parl.algorithms, kind)(model, *sizes))
    with make_vector_env(make, 1) as envs:
        if kind in ("MAPPO", "IPPO", "COMA", "PPO"):
            train_on_policy(agent, envs, OnPolicySettings(total_steps=4, n_steps=4, gae_lambda=0.8), seed=0)
        else:
            train_off_policy(agent, envs, OffPolicySettings(total_steps=4, batch_size=2), seed=0)


@pytest.mark.parametrize("kind", _KINDS)
def test_algorithms_for_teams_refuse_one_agent_and_models_for_others(kind: str) -> None:
    env = make_two_step()
    spaces_of_team = env.observation_space, env.action_space

    def make_one() -> Any:
        return gymnasium.make("CartPole-v1")

    with pytest.raises(HyperparameterError, match=rf"{kind} is for several agents.*PPO or DQN"):
        trained(kind, parl.networks.for_team(*spaces_of_team, _KINDS[kind]), make_one)
    others = [parl.networks.for_team(*spaces_of_team, other) for other in {*_KINDS.values()} - {_KINDS[kind]}]
    for model in (parl.networks.ActorCritic(2), parl.networks.QNetwork(2), *others):
        if (kind, type(model).__name__) != ("MAPPO", "CentralActorCritic"):  # whose critics only see less
            with pytest.raises(ModelContractError, match=rf'for_team.*"{_KINDS[kind]}"'):
                trained(kind, model, make_two_step)


def test_algorithms_for_one_agent_refuse_teams_that_choose() -> None:
    env, one = make_two_step(), gymnasium.make("CartPole-v1")
    network: Any
    for kind, network in (("PPO", "actor-critic"), ("DQN", "q")):
        model = parl.networks.for_spaces(one.observation_space, one.action_space, network)
        with pytest.raises(HyperparameterError, match=r"for one agent.*MAPPO.*QMIX"):
            trained(kind, model, make_two_step)
        with pytest.raises(HyperparameterError, match=r"for one agent.*MAPPO.*QMIX"):
            parl.networks.for_spaces(env.observation_space, env.action_space, network)


class Ending(Meeting):
    """Both see the number of the step. `a` ends in step 1 and `b` in step 2, each as `ends` says; rewards are 1."""

    def __init__(self, ends: str) -> None:
        super().__init__()
        self._ends = dict(zip("ab", ends, strict=True))

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0.0, 9.0, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def step(self, actions: Any) -> Any:
        self._t += 1
        acted = list(self.agents)
        left = {name: self._t == (1 if name == "a" else 2) for name in acted}
        seen = self._seen()
        self.agents = [name for name in acted if not left[name]]
        flags = (
            {name: left[name] and self._ends[name] == end for name in acted} for end in ("terminated", "truncated")
        )
        return seen, dict.fromkeys(acted, 1.0), *flags, {}

    def _seen(self) -> Any:
        return {name: np.full(1, self._t, np.float32) for name in self.agents}


@pytest.mark.parametrize(
    ("ends", "later"),
    [
        # Of step 1, what `a` and `b` bootstrap from, 1 each; of step 2, `b` alone, 2; None where nobody has a value.
        (("terminated", "terminated"), ([0.0, 1.0], None)),
        (("truncated", "terminated"), ([1.0, 1.0], None)),
        (("terminated", "truncated"), ([0.0, 1.0], [0.0, 2.0])),
        (("truncated", "truncated"), ([1.0, 1.0], [0.0, 2.0])),
    ],
)
@pytest.mark.parametrize("kind", ["QMIX", "VDN"])
def test_targets_of_a_team_whose_agents_end_differently_are_those_by_hand(
    kind: str, ends: Any, later: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Seen(parl.Model):  # type: ignore[misc,name-defined]  # known only at run time
        """The value of every action is what the agent sees."""

        def __init__(self) -> None:
            self.scale = parl.layers.fc(size=1, num_flatten_dims=2, bias_attr=False)

        def value(self, obs: Any) -> Any:
            value = self.scale(obs["obs"])
            return parl.layers.concat([value, value], axis=-1)

    class Mixer(parl.Model):  # type: ignore[misc,name-defined]  # known only at run time
        """Half the sum of the values, and 7 in every state."""

        n_agents = 2

        def forward(self, values: Any, state: Any) -> Any:
            return 0.5 * parl.layers.reduce_sum(values, dim=2, keep_dim=True) + 7.0

    model = Seen()
    model.set_weights({"scale.weight": np.ones((1, 1))}, portable=True)
    mixer = (Mixer(),) if kind == "QMIX" else ()
    agent = parl.Agent(getattr(parl.algorithms, kind)(model, *mixer, gamma=0.5, lr=1e-9), seed=0)
    batches: list[Any] = []
    learn = agent.learn_unread

    def kept(batch: Any, **rates: Any) -> Any:
        batches.append(batch)
        return learn(batch, **rates)

    monkeypatch.setattr(agent, "learn_unread", kept)
    train(agent, 64, lambda: JointEnv(Ending(ends), team_reward="sum"), own={"learning_starts": 32, "batch_size": 2})

    def team(values: Any) -> float:
        return 0.5 * sum(values) + 7.0 if kind == "QMIX" else float(sum(values))

    targets = [r + 0.5 * (0.0 if values is None else team(values)) for r, values in zip((2.0, 1.0), later, strict=True)]
    errors = np.array(targets) - [team([0.0, 0.0]), team([0.0, 1.0])]
    np.testing.assert_allclose(agent.learn(batches[-1]), [(errors**2).mean(), errors.mean()], rtol=1e-5)


def test_an_algorithm_for_another_number_of_agents_is_refused() -> None:
    env = make_two_step()
    model = parl.networks.for_team(env.observation_space, env.action_space)
    agent = parl.Agent(parl.algorithms.QMIX(model, parl.networks.QMixer(3)))
    with make_vector_env(make_two_step, 1) as envs, pytest.raises(HyperparameterError, match=r"3 agents.*have 2"):
        train_off_policy(agent, envs, OffPolicySettings(total_steps=4, batch_size=2), seed=0)


@pytest.mark.parametrize("kind", _KINDS)
def test_an_agent_of_another_team_is_refused_as_by_the_loops_when_it_is_evaluated(kind: str) -> None:
    env = make_two_step()
    model = parl.networks.for_team(env.observation_space, env.action_space, _KINDS[kind])
    sizes = (2, 2) if kind == "COMA" else (parl.networks.QMixer(2),) if kind == "QMIX" else ()
    agent = parl.Agent(getattr(parl.algorithms, kind)(model, *sizes))
    assert len(evaluate(agent, make_two_step, 1).episodes) == 1
    expected: Any = (HyperparameterError, r"2 actions.*n_actions=3")
    if kind != "COMA":
        expected = (ModelContractError, rf'for_team.*"{_KINDS[kind]}"')
    with pytest.raises(expected[0], match=expected[1]):
        evaluate(agent, lambda: make_joint_env("climbing"), 1)
    with pytest.raises(HyperparameterError, match=rf"{kind} is for several agents"):
        evaluate(agent, "CartPole-v1", 1)
    with pytest.raises(ValueError, match=r"an array of shape \(3,\), and the model's are dictionaries of action_mask"):
        agent.predict(np.zeros(3, np.float32))


def test_coma_with_other_actions_than_those_of_the_environment_names_them() -> None:
    env = make_two_step()
    model = parl.networks.for_team(env.observation_space, env.action_space, "counterfactual")
    agent = parl.Agent(parl.algorithms.COMA(model, 5, 2))
    with (
        make_vector_env(make_two_step, 1) as envs,
        pytest.raises(HyperparameterError, match=r"made for 5 actions, and these environments have 2.*n_actions=2"),
    ):
        train_on_policy(agent, envs, OnPolicySettings(total_steps=4, n_steps=4, gae_lambda=0.8), seed=0)


def test_what_is_learned_of_an_episode_does_not_depend_on_the_one_before_it() -> None:
    rng = np.random.default_rng(0)
    episodes, steps, agents = 2, 4, 2
    columns = (
        rng.normal(size=(episodes, steps, 5)).astype(np.float32),  # states
        rng.integers(3, size=(episodes, steps, agents)),
        rng.normal(size=(episodes, steps, 1)).astype(np.float32),
        np.zeros((episodes, steps, 1), np.float32),
        rng.normal(size=(episodes, steps, agents, 6)).astype(np.float32),
        np.ones((episodes, steps, agents, 3), np.float32),
        np.zeros((episodes, steps, 1), np.float32),
    )

    def loss(*episode: Any) -> float:
        seed_everything(0)
        model = parl.networks.RecurrentTeamQNetwork(agents, 3, memory_size=8)
        alg = parl.algorithms.QMIX(model, parl.networks.QMixer(agents, 4))
        return float(parl.Agent(alg, obs_ndim={"obs": 2, "state": 1}).learn(*episode)[0])

    alone = [loss(*(column[i : i + 1] for column in columns)) for i in range(episodes)]
    assert loss(*columns) == pytest.approx(np.mean(alone), rel=1e-5)
