"""Models with a memory act, are evaluated and learn from sequences, on the backend in use."""

import functools
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import parl
from conformance.memory_tasks import Recall
from parl_core.contracts.batches import Fragment, Rollout, Sequences
from parl_core.env.normalize import NormalizeVector
from parl_core.env.vector import make_vector_env
from parl_core.errors import HyperparameterError
from parl_core.replay import ReplayMemory, SequenceReplayMemory
from parl_core.seeding import seed_everything, spawn_seeds
from parl_core.training.acting import Acting
from parl_core.training.actor_learner import ActorLearnerSettings, train_actor_learner
from parl_core.training.callbacks import StepBudget
from parl_core.training.checkpoints import Checkpoints
from parl_core.training.evaluation import evaluate
from parl_core.training.events import Ended
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.on_policy import OnPolicySettings, RolloutCollector, _learnable, train_on_policy
from parl_core.training.run import Run

KINDS = ("gru", "lstm", "transformer")
POLICIES = (*KINDS, "gru apart", "lstm apart", "transformer apart")
"""`apart`: policy and value have a memory each."""

RESUMED = [
    (kind, environments) for kind in ("PPO", "IMPALA actors", "IMPALA learner") for environments in ("auto", "reset")
]
VECTOR, CHOICES = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(3)


class Noise(gymnasium.Env[Any, Any]):
    """Shows random numbers; an episode ends by itself or is cut after some steps, as its seed decides."""

    observation_space, action_space = VECTOR, CHOICES

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left, self._is_cut = int(self.np_random.integers(2, 7)), bool(self.np_random.integers(2))
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        over = self._left == 0
        return self._shown(), 1.0, over and not self._is_cut, over and self._is_cut, {}

    def _shown(self) -> NDArray[np.float32]:
        return self.np_random.uniform(-1.0, 1.0, 4).astype(np.float32)


def made(memory: str, algorithm: str = "PPO", **settings: Any) -> Any:
    """Return an agent with a small memory; `reach` is shorter than the sequences of the tests."""
    seed_everything(1)
    kind, _, apart = memory.partition(" ")
    options = {"reach": 3, "blocks": 2} if kind == "transformer" else {}
    model = parl.networks.for_spaces(
        VECTOR,
        CHOICES,
        "q" if algorithm == "DQN" else "actor-critic",
        memory=kind,  # type: ignore[arg-type]  # a parameter of tests
        memory_size=8,
        memory_options=options,
        shared=False if apart else None,
    )
    return parl.Agent(getattr(parl.algorithms, algorithm)(model, **settings), seed=1)


def sequence(rows: int, steps: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    rng = np.random.default_rng(0)
    return rng.uniform(-1.0, 1.0, (rows, steps, 4)).astype(np.float32), rng.random((rows, steps)) < 0.2


def unrolled(agent: Any, obs: Any, begins: Any, state: Any = None) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """Return features `[rows, T, size]` of sequences in one pass, and the state after them."""
    state = agent.initial_state(len(obs)) if state is None else state
    flat = None if begins is None else begins.reshape(-1)
    features, after = agent.run(agent.alg.model.remember, obs.reshape(-1, 4), state, flat)
    if isinstance(features, dict):
        features = np.concatenate([features["features"], features["values"]], axis=-1)
    return np.asarray(features).reshape(*obs.shape[:2], -1), after


@pytest.mark.parametrize("memory", POLICIES)
def test_a_pickled_agent_remembers_as_the_one_that_stayed(memory: str) -> None:
    agent, obs = made(memory), np.random.default_rng(0).uniform(-1.0, 1.0, (3, 4)).astype(np.float32)
    _, state = agent.predict(obs)
    twin = pickle.loads(pickle.dumps(agent))
    stayed, moved = (one.explore(obs, state=state)[1] for one in (agent, twin))
    for name, array in stayed.items():
        np.testing.assert_array_equal(moved[name], array)


@pytest.mark.parametrize("memory", POLICIES)
def test_a_sequence_in_one_pass_equals_its_steps(memory: str) -> None:
    agent = made(memory)
    obs, begins = sequence(3, 12)
    features, after = unrolled(agent, obs, begins)
    acting = Acting(agent, 3)
    for t in range(12):
        acting.begin(np.flatnonzero(begins[:, t]))
        now, acting.state = unrolled(agent, obs[:, t : t + 1], None, acting.state)
        np.testing.assert_allclose(now[:, 0], features[:, t], atol=1e-5)
    for name, array in after.items():
        np.testing.assert_allclose(acting.state[name], array, atol=1e-5)


@pytest.mark.parametrize("memory", POLICIES)
def test_an_episode_is_as_if_nothing_had_been_before_it(memory: str) -> None:
    agent = made(memory)
    obs, _ = sequence(2, 9)
    begins = np.zeros((2, 9), np.bool_)
    begins[0, 4] = True
    features, after = unrolled(agent, obs, begins)
    alone, after_alone = unrolled(agent, obs[:1, 4:], None)
    np.testing.assert_allclose(features[0, 4:], alone[0], atol=1e-6)
    for name, array in after.items():
        np.testing.assert_allclose(array[0], after_alone[name][0], atol=1e-6)
    other = obs.copy()
    other[0, :4] = 7.0  # whatever it was
    np.testing.assert_array_equal(unrolled(agent, other, begins)[0][0, 4:], features[0, 4:])


@pytest.mark.parametrize("memory", POLICIES)
def test_sequences_together_are_what_each_is_alone(memory: str) -> None:
    agent = made(memory)
    obs, begins = sequence(4, 8)
    features, after = unrolled(agent, obs, begins)
    for i in range(4):
        alone, after_alone = unrolled(agent, obs[i : i + 1], begins[i : i + 1])
        np.testing.assert_allclose(alone[0], features[i], atol=1e-5)
        for name, array in after.items():
            np.testing.assert_allclose(after_alone[name][0], array[i], atol=1e-5)


@pytest.mark.parametrize(("algorithm", "settings"), [("PPO", {}), ("IMPALA", {"sample_batch_steps": 4}), ("DQN", {})])
def test_an_observation_and_a_batch_of_one_act_alike(algorithm: str, settings: dict[str, Any]) -> None:
    agent = made("gru", algorithm, **settings)
    first, second = np.ones(4, np.float32), np.full(4, -0.5, np.float32)
    _, state = agent.predict(first)
    _, states = agent.predict(first[None])
    np.testing.assert_array_equal(state["hidden"], states["hidden"][0])
    action, after = agent.predict(second, state=state)
    actions, afters = agent.predict(second[None], state=states)
    assert isinstance(action, int)
    assert action == actions[0]
    np.testing.assert_array_equal(after["hidden"], afters["hidden"][0])
    assert not np.array_equal(after["hidden"], agent.predict(second)[1]["hidden"]), "what was before counts"
    np.testing.assert_array_equal(agent.initial_state()["hidden"], np.zeros(8))


def test_options_that_a_memory_does_not_have_are_refused_in_words() -> None:
    with pytest.raises(HyperparameterError, match="the memory 'gru' has no option reach; it has none"):
        parl.networks.for_spaces(VECTOR, CHOICES, memory="gru", memory_options={"reach": 8})
    with pytest.raises(HyperparameterError, match="no option size; it has reach, blocks, heads"):
        parl.networks.for_spaces(VECTOR, CHOICES, memory="transformer", memory_options={"size": 8})


def test_a_state_of_other_rows_or_names_is_refused() -> None:
    agent = made("lstm")
    with pytest.raises(ValueError, match=r"state\['hidden'\] must have shape \[2, 8\] for 2 observations, got"):
        agent.predict(np.zeros((2, 4), np.float32), state=agent.initial_state(3))
    with pytest.raises(ValueError, match="state must be a dictionary of hidden, cell"):
        agent.predict(np.zeros((2, 4), np.float32), state={"hidden": np.zeros((2, 8))})


def test_what_does_not_learn_from_sequences_is_refused() -> None:
    model = parl.networks.for_spaces(VECTOR, CHOICES, memory="gru")
    with pytest.raises(HyperparameterError, match="PolicyGradient learns from single steps"):
        parl.algorithms.PolicyGradient(model)
    with pytest.raises(HyperparameterError, match="of the kind 'actor-critic'"):
        parl.networks.for_spaces(VECTOR, spaces.Box(-1.0, 1.0, (2,)), "squashed", memory="gru")
    with pytest.raises(HyperparameterError, match="memory must be one of"):
        parl.networks.for_spaces(VECTOR, CHOICES, memory="elephant")  # type: ignore[arg-type]  # which is wrong
    rows = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="a batch needs state="):
        parl.Agent(parl.algorithms.A2C(model)).learn(np.zeros((4, 4), np.float32), np.zeros(4, np.int64), rows, rows)
    plain = parl.Agent(parl.algorithms.PPO(parl.networks.for_spaces(VECTOR, CHOICES)))
    loop = OnPolicySettings(total_steps=16, n_steps=8, sequence_length=4)
    with make_vector_env(Noise, 2) as envs, pytest.raises(HyperparameterError, match="models with a memory, and"):
        train_on_policy(plain, envs, loop)


@pytest.mark.parametrize("memory", POLICIES)
def test_a_rollout_learned_from_is_what_was_acted(memory: str) -> None:
    """Unrolled from the states that were stored, all rows have the values and log-probabilities of the steps."""
    agent = made(memory)
    settings = OnPolicySettings(n_steps=12, gae_lambda=0.95, sequence_length=6)
    with make_vector_env(Noise, 3) as envs:
        collector = RolloutCollector(agent, envs, 12, 1, sequence_length=6)
        collector.collect()
        rollout = collector.collect()
    assert rollout.terminated.any()
    assert rollout.truncated.any()
    batch = _learnable(rollout, settings, None, collector.observations)
    assert batch.sequence_count == 6
    features, _ = agent.run(agent.alg.model.remember, batch.obs, batch.state, batch.begins)
    np.testing.assert_allclose(agent.run(agent.alg.value, features), batch.value, atol=1e-5)
    figures = agent.learn_rollout(batch, epochs=1, minibatch_size=1_000, rng=np.random.default_rng(0))
    assert figures["steps"] == 1
    assert abs(figures["approx_kl"]) < 1e-6, "the policy that learns is the one that acted"
    figures = agent.learn_rollout(batch, epochs=2, minibatch_size=13, rng=np.random.default_rng(0))
    assert figures["steps"] == 2 * 3, "two sequences of six rows have at most 13"


def test_what_follows_a_step_is_valued_with_the_state_after_it() -> None:
    agent = made("gru")
    with make_vector_env(Noise, 2) as envs:
        rollout = RolloutCollector(agent, envs, 24, 3).collect()
    with make_vector_env(Noise, 2) as envs:
        acting = Acting(agent, 2)
        obs, _ = envs.reset(seed=spawn_seeds(3, 2))
        cut = 0
        for t in range(24):
            np.testing.assert_array_equal(obs, rollout.obs[t])
            np.testing.assert_allclose(acting.value(acting.seen(obs)), rollout.value[t], atol=1e-5)
            acting.predict(obs)
            obs, _, terminated, truncated, infos = envs.step(rollout.action[t])
            for i in np.flatnonzero(truncated):
                cut += 1
                value = agent.value(infos["final_obs"][i], state={"hidden": acting.state["hidden"][i]})
                np.testing.assert_allclose(value, rollout.next_value[t, i], atol=1e-5)
            acting.begin(np.flatnonzero(terminated | truncated))
        following = acting.value(acting.seen(obs))
    assert cut
    np.testing.assert_allclose(following[~truncated], rollout.next_value[-1, ~truncated], atol=1e-5)


def test_evaluation_begins_each_episode_without_a_past() -> None:
    agent = made("gru")
    together = evaluate(agent, Noise, 6, seed=1, at_once=6)
    assert [episode.length for episode in evaluate(agent, Noise, 6, seed=1, at_once=1).episodes] == [
        episode.length for episode in together.episodes
    ]
    recalling: Any = Remembered()
    assert evaluate(recalling, Recall, 20, seed=1, at_once=3).mean == 1.0
    assert recalling.begun >= 17, "rows whose episode ended begin anew"


class Remembered:
    """An agent of one's own with a state: it does what was shown, which it may only know from its state."""

    training = False

    def __init__(self) -> None:
        self.begun = 0

    def train(self) -> None:
        pass

    def eval(self) -> None:
        pass

    def initial_state(self, rows: int) -> dict[str, NDArray[Any]]:
        return {"shown": np.zeros((rows, 2)), "steps": np.zeros(rows)}

    def predict(self, obs: Any, *, state: Any) -> tuple[Any, Any]:
        self.begun += int(np.count_nonzero(state["steps"] == 0))
        shown = np.where(state["steps"][:, None] == 0, obs[:, :2], state["shown"])
        return shown.argmax(axis=1), {"shown": shown, "steps": state["steps"] + 1}


def test_a_collector_that_goes_on_from_a_saved_state_remembers() -> None:
    agent = made("lstm")
    with make_vector_env(Noise, 2) as envs:
        collector = RolloutCollector(agent, envs, 5, 1)
        collector.collect()
        saved = collector.get_state()
        assert any(array.any() for array in saved["memory"].values())
        collector.begin_again([1, 2])
        assert not any(array.any() for array in collector.get_state()["memory"].values())
        collector.set_state(saved)
        for name, array in collector.get_state()["memory"].items():
            np.testing.assert_array_equal(array, saved["memory"][name])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
def test_masks_and_numbers_are_learned_with_a_memory(algorithm: str, shared: bool) -> None:
    observed = spaces.Dict(action_mask=spaces.MultiBinary(3), shown=VECTOR)
    seed_everything(1)
    model = parl.networks.for_spaces(observed, CHOICES, memory="gru", memory_size=8, shared=shared)
    agent = parl.Agent(getattr(parl.algorithms, algorithm)(model), seed=1)
    mask = np.array([[True, False, False], [False, False, True]])
    obs = {"action_mask": mask, "shown": np.ones((2, 4), np.float32)}
    (_, actions, _), state = agent.explore(obs)
    assert actions.tolist() == [0, 2]
    twice = {name: np.repeat(array, 3, axis=0) for name, array in obs.items()}
    columns = {name: np.zeros(6, np.float32) for name in ("value", "return_", "log_prob", "advantage")}
    rollout = Rollout(twice, np.array([0, 0, 0, 2, 2, 2]), **columns, begins=np.zeros(6, np.bool_), state=state)
    assert np.isfinite(list(agent.learn_rollout(rollout, rng=np.random.default_rng(0)).values())).all()


@pytest.mark.parametrize("memory", ["gru", "gru apart"])
@pytest.mark.parametrize("inference", ["actors", "learner"])
@pytest.mark.parametrize(("algorithm", "settings"), [("IMPALA", {"sample_batch_steps": 5}), ("A2C", {})])
def test_fragments_begin_with_the_state_that_acted(
    algorithm: str, settings: dict[str, Any], inference: str, memory: str
) -> None:
    """Without lag, the learner's policy is the one that acted on every row, also behind the ends of episodes."""
    batches: list[Any] = []

    def make_agent() -> Any:
        return made(memory, algorithm, **settings)

    agent = make_agent()
    learn = agent.alg.learn

    def watched(batch: Any, *args: Any, **kwargs: Any) -> Any:
        batches.append(batch)
        features = agent.alg._features(batch.obs, batch.state, _begins(agent, batch))
        if algorithm == "IMPALA":
            found, acted = agent.alg.logits(features), batch.behaviour_logits
        else:
            found, acted = agent.alg.value(features), batch.value
        np.testing.assert_allclose(_array(found), _array(acted), atol=1e-5)
        return learn(batch, *args, **kwargs)

    agent.alg.learn = watched
    agent._learn = lambda _, batch, **rates: watched(batch, **rates)
    loop = ActorLearnerSettings(
        total_steps=80, n_actors=2, envs_per_group=2, n_steps=5, max_lag=0, inference=inference, gae_lambda=0.9
    )
    train_actor_learner(agent, make_agent, Noise, loop, seed=1)
    assert len(batches) == 4


def _begins(agent: Any, batch: Any) -> Any:
    return agent.alg._begins(batch.done) if isinstance(batch, Fragment) else batch.begins


def _array(tensor: Any) -> NDArray[Any]:
    return np.asarray(tensor.detach().cpu().numpy())


@pytest.mark.parametrize(("kind", "environments"), RESUMED)
def test_a_run_in_two_portions_is_the_run_in_one(kind: str, environments: Any, tmp_path: Path) -> None:
    """The states of the memory are in checkpoints; where environments are reset instead, episodes begin without one."""
    whole, _ = trained(kind, Run.at(tmp_path / "whole"), environments)
    _, ended = trained(kind, Run.at(tmp_path / "run"), environments, StepBudget(40))
    assert ended.step == 40
    resumed, _ = trained(kind, Run.resume(tmp_path / "run"), environments)
    for name, array in whole.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)


def trained(kind: str, run: Run, environments: Any, *callbacks: Any) -> tuple[dict[str, NDArray[Any]], Ended]:
    """Train in a run's folder and return the weights, and how it ended."""
    algorithm, _, inference = kind.partition(" ")
    settings = {"IMPALA": {"sample_batch_steps": 5}}.get(algorithm, {})
    make_agent = functools.partial(made, "lstm apart", algorithm, **settings)
    agent = make_agent()
    with run, make_vector_env(Noise, 2) as envs:
        watched: dict[str, Any] = {
            "callbacks": callbacks,
            "checkpoints": Checkpoints(run, every=20, environments=environments),
            "seed": 5,
        }
        if inference:
            fragments = ActorLearnerSettings(
                80,
                n_actors=2,
                envs_per_group=2,
                n_steps=5,
                max_lag=1,
                deterministic=True,
                inference=inference,
                report_every=20,
            )
            ended = train_actor_learner(agent, make_agent, Noise, fragments, **watched)
        else:
            rollouts = OnPolicySettings(80, n_steps=10, sequence_length=5, epochs=2, minibatch_size=10, lr=1e-2)
            ended = train_on_policy(agent, envs, rollouts, **watched)
    return agent.get_weights(), ended  # type: ignore[no-any-return]  # of an agent of either backend


@pytest.mark.parametrize("memory", KINDS)
def test_remembered_sequences_have_the_values_that_were_acted_on(memory: str) -> None:
    """Unrolled from the stored states, with or without steps that bring them up to date, values are those of acting."""
    agent = made(memory, "DQN")
    values: list[NDArray[Any]] = []
    shapes = {name: array.shape for name, array in agent.initial_state().items()}
    held: dict[str, Any] = {"state": shapes, "n_step": 2, "gamma": 0.9, "n_envs": 2, "seed": 1}
    replay = [SequenceReplayMemory(64, 4, 0, length=5, burn_in=burn_in, **held) for burn_in in (0, 3)]
    with make_vector_env(Noise, 2) as envs:
        obs, _ = envs.reset(seed=[1, 2])
        acting = Acting(agent, 2)
        for t in range(40):
            before = acting.state
            output, _ = agent._forward(agent.alg.predict, obs, state=before)
            values.append(output)
            action = acting.sample(obs, epsilon=0.5)
            following, _, terminated, truncated, _ = envs.step(action)
            for each in replay:
                stored = obs, action, np.full(2, float(t)), following, terminated, truncated
                each.append_batch(*stored, state=before)
            obs = following
            acting.begin(np.flatnonzero(terminated | truncated))
    for each in replay:
        assert each.is_ready
        columns = each.sample_sequences(6)
        batch = Sequences(**columns)
        found = agent.run(lambda batch=batch: agent.alg._unrolled(agent.alg.model, agent.alg._on_device(batch)))
        found = np.asarray(found).reshape(6, 7, 3)
        # Of 40 steps the memory of 32 holds the last: steps 32 to 39 are in the first places.
        for i, first_obs in enumerate(batch.obs.reshape(6, 7, 4)[:, 0]):
            slot = int(np.flatnonzero((first_obs == each.obs).all(axis=1))[0])
            step = slot // 2 + 32 * (slot // 2 < 8)
            np.testing.assert_allclose(found[i], [values[step + k][slot % 2] for k in range(7)], atol=1e-5)


def test_targets_of_sequences_are_those_made_by_hand() -> None:
    """Two steps are summed; nothing is bootstrapped from behind an end, nothing learned where the episode is cut."""
    memory = SequenceReplayMemory(8, 1, 0, state={}, length=6, burn_in=0, n_step=2, gamma=0.5, seed=1)
    for t in range(8):
        memory.append_batch([[t]], [0], [2.0**t], [[t + 1]], [t == 1], [t == 4])
    columns = memory.sample_sequences(1)
    assert columns["obs"].reshape(-1).tolist() == list(range(8))
    # Rows: 1 + 2/2, over at 1; 2, over; 4 + 8/2; 8 + 16/2, cut at 4; 16, cut; 32 + 64/2; two that others look at.
    assert columns["reward"].tolist() == [2.0, 2.0, 8.0, 16.0, 16.0, 64.0, 0.0, 0.0]
    assert columns["discount"].tolist() == [0.0, 0.0, 0.25, 0.0, 0.0, 0.25, 0.0, 0.0]
    assert columns["ahead"].tolist() == [2, 3, 4, 5, 6, 7, 7, 7]
    assert columns["weights"].tolist() == [2.0, 2.0, 2.0, 0.0, 0.0, 2.0, 0.0, 0.0]
    assert columns["begins"].tolist() == [False, False, True, False, False, True, False, False]


@pytest.mark.parametrize("settings", [{}, {"double": True, "value_rescaling": 1e-3, "huber": 1.0}])
def test_dqn_learns_from_sequences_what_single_steps_say(settings: dict[str, Any]) -> None:
    """Errors of a batch of sequences are targets less values, row by row, with values and targets computed apart."""
    agent = made("gru", "DQN", **settings)
    rng = np.random.default_rng(0)
    obs, begins = sequence(2, 4)
    numbers = {name: rng.random(8).astype(np.float32) for name in ("reward", "discount", "weights")}
    batch = Sequences(
        obs.reshape(8, 4),
        rng.integers(3, size=8),
        ahead=np.array([1, 2, 3, 3, 5, 6, 7, 7]),
        begins=begins.reshape(-1),
        state=agent.initial_state(2),
        **numbers,
    )
    features, _ = agent.run(agent.alg.model.remember, batch.obs, batch.state, batch.begins)
    q = np.asarray(agent.run(agent.alg.predict, features), np.float64)
    slope = 1e-3 if settings else None
    value = q[batch.ahead].max(axis=1)
    if slope:
        value = np.sign(value) * (((np.sqrt(1 + 4 * slope * (abs(value) + 1 + slope)) - 1) / (2 * slope)) ** 2 - 1)
    target = batch.reward + batch.discount * value
    if slope:
        target = np.sign(target) * (np.sqrt(abs(target) + 1) - 1) + slope * target
    _, error = agent.learn(batch)
    np.testing.assert_allclose(error, target - q[np.arange(8), batch.action], atol=1e-5)


def test_sequences_and_single_steps_are_not_mixed_up() -> None:
    rows = np.zeros(4, np.float32)
    agent = made("gru", "DQN")
    with pytest.raises(ValueError, match="learns from Sequences, because its model has a memory"):
        agent.learn(np.zeros((4, 4), np.float32), np.zeros(4, np.int64), rows, np.zeros((4, 4), np.float32), rows)
    plain = parl.networks.for_spaces(VECTOR, CHOICES, "q")
    with pytest.raises(HyperparameterError, match=r"value_rescaling=0\.1 is for models with a memory"):
        parl.algorithms.DQN(plain, value_rescaling=0.1)
    with make_vector_env(Noise, 2) as envs:
        with pytest.raises(HyperparameterError, match="draws single transitions"):
            train_off_policy(agent, envs, OffPolicySettings(40, 10, batch_size=4), memory=ReplayMemory(64, 4, 0))
        normalised = NormalizeVector(envs)
        given = SequenceReplayMemory(64, 4, 0, state={"h": (8,)}, length=4, burn_in=0, n_step=1, gamma=0.99)
        for memory in (None, given):
            with pytest.raises(HyperparameterError, match=r"as they were observed: .* leave out NormalizeVector"):
                train_off_policy(agent, normalised, OffPolicySettings(40, 10, batch_size=4), memory=memory)
        with pytest.raises(HyperparameterError, match="for models with a memory, and this agent's has none"):
            train_off_policy(parl.Agent(parl.algorithms.DQN(plain)), envs, OffPolicySettings(40, 10, burn_in=3))


@pytest.mark.parametrize("memory", ["gru", "transformer"])
def test_the_off_policy_loop_learns_from_sequences(memory: str) -> None:
    agent = made(memory, "DQN")
    agent.predict(np.zeros(4, np.float32))  # which gives layers their shapes
    before = agent.get_weights()
    settings = OffPolicySettings(
        80, 20, batch_size=8, memory_size=64, n_step=2, sequence_length=4, burn_in=2, exploration={"epsilon": 0.3}
    )
    with make_vector_env(Noise, 2) as envs:
        assert train_off_policy(agent, envs, settings, seed=1).step == 80
    assert any(not np.array_equal(array, before[name]) for name, array in agent.get_weights().items())
