"""Programs in the forms of PARL 2.x's documentation, written anew, run on the backend in use.

Only `gym` is Gymnasium here and its environments are within `CompatWrapper`, as `parl migrate --write` makes them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import parl
from parl.env import ActionMappingWrapper, CompatWrapper
from parl.utils import CSVLogger, ReplayMemory, calc_gae, logger, summary
from parl.utils.rl_utils import calc_discount_sum_rewards
from parl.utils.scheduler import LinearDecayScheduler, PiecewiseScheduler
from parl.utils.utils import check_model_method
from parl_core import backends
from parl_core.contracts.batches import Transitions
from parl_core.errors import HyperparameterError

pytestmark = pytest.mark.usefixtures("on_the_cpu")

BACKEND = backends.current().name

if BACKEND == "torch":
    import torch
    from torch import nn
    from torch.nn import functional

    def to_tensor(array: Any, dtype: str = "float32") -> Any:
        return torch.as_tensor(np.asarray(array, dtype))

    def to_numpy(tensor: Any) -> Any:
        return tensor.detach().cpu().numpy()

    def adam(model: Any, lr: float) -> Any:
        return torch.optim.Adam(model.parameters(), lr=lr)

    def concat(*tensors: Any) -> Any:
        return torch.cat(tensors, 1)

    def step(optimizer: Any, loss: Any) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def of_action(values: Any, action: Any) -> Any:
        return values.gather(1, action.reshape(-1, 1))

else:
    import paddle
    from paddle import nn
    from paddle.nn import functional

    def to_tensor(array: Any, dtype: str = "float32") -> Any:
        return paddle.to_tensor(np.asarray(array, dtype))

    def to_numpy(tensor: Any) -> Any:
        return tensor.numpy()

    def adam(model: Any, lr: float) -> Any:
        return paddle.optimizer.Adam(learning_rate=lr, parameters=model.parameters())

    def concat(*tensors: Any) -> Any:
        return paddle.concat(list(tensors), 1)

    def step(optimizer: Any, loss: Any) -> None:
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()

    def of_action(values: Any, action: Any) -> Any:
        return (values * functional.one_hot(action.reshape([-1]), values.shape[1])).sum(1, keepdim=True)


class Policy(parl.Model):
    def __init__(self, obs_dim: int, act_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(obs_dim, 10 * act_dim)
        self.fc2 = nn.Linear(10 * act_dim, act_dim)

    def forward(self, obs: Any) -> Any:
        return functional.softmax(self.fc2(functional.tanh(self.fc1(obs))), -1)


class PolicyAgent(parl.Agent):
    def sample(self, obs: Any) -> Any:
        prob = to_numpy(self.alg.predict(to_tensor(obs)))
        return np.random.choice(len(prob), 1, p=prob / prob.sum())[0]

    def predict(self, obs: Any) -> Any:
        return int(to_numpy(self.alg.predict(to_tensor(obs))).argmax())

    def learn(self, obs: Any, action: Any, reward: Any) -> Any:
        return float(self.alg.learn(to_tensor(obs), to_tensor(action, "int64"), to_tensor(reward)))


def test_the_quickstart_loop_with_an_agent_of_its_own(tmp_path: Path) -> None:
    env: Any = CompatWrapper(gym.make("CartPole-v1"))
    env.seed(1)
    obs_dim, act_dim = env.observation_space.shape[0], env.action_space.n
    agent = PolicyAgent(parl.algorithms.PolicyGradient(Policy(obs_dim, act_dim), lr=1e-3))
    for episode in range(3):
        obs_list, action_list, reward_list = [], [], []
        obs, done = env.reset(), False
        while not done:
            obs_list.append(obs)
            action = agent.sample(obs)
            obs, reward, done, _ = env.step(action)
            action_list.append(action)
            reward_list.append(reward)
        loss = agent.learn(np.array(obs_list), np.array(action_list), calc_discount_sum_rewards(reward_list, 0.99))
        logger.info(f"Episode {episode}, Reward Sum {sum(reward_list)}.")
        assert np.isfinite(loss)
    agent.save(str(tmp_path / "model.ckpt"))
    other = PolicyAgent(parl.algorithms.PolicyGradient(Policy(obs_dim, act_dim), lr=1e-3))
    other.restore(str(tmp_path / "model.ckpt"))
    assert [other.predict(each) for each in obs_list] == [agent.predict(each) for each in obs_list]


class Values(parl.Model):
    def __init__(self) -> None:
        super().__init__()
        self.fc_pi, self.fc_v = nn.Linear(4, 2), nn.Linear(4, 1)

    def policy(self, obs: Any) -> Any:
        return self.fc_pi(obs)

    def value(self, obs: Any) -> Any:
        return self.fc_v(obs)


class QValues(parl.Model):
    def __init__(self, obs_dim: int, act_dim: int) -> None:
        super().__init__()
        self.fc = nn.Linear(obs_dim, act_dim)

    def forward(self, obs: Any) -> Any:
        return self.fc(obs)

    def value(self, obs: Any) -> Any:
        return self.fc(obs)


class OwnDQN(parl.Algorithm):
    """As the page on new algorithms has them: a target model, an optimizer of the framework, learn and predict."""

    def __init__(self, model: Any, gamma: float, lr: float) -> None:
        super().__init__(model)
        check_model_method(model, "value", self.__class__.__name__)
        self.model = model
        self.target_model = type(model)(4, 2)
        self.model.sync_weights_to(self.target_model)
        self.gamma = gamma
        self.optimizer = adam(self.model, lr)

    def predict(self, obs: Any) -> Any:
        return self.model.value(obs)

    def learn(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminal: Any) -> Any:
        best = self.target_model.value(next_obs).max(1)
        best = (best[0] if isinstance(best, tuple) else best).reshape([-1, 1]).detach()
        target = reward + (1.0 - terminal) * self.gamma * best
        loss = functional.mse_loss(of_action(self.model.value(obs), action), target)
        step(self.optimizer, loss)
        return loss.detach()

    def sync_target(self) -> None:
        self.model.sync_weights_to(self.target_model)


class QAgent(parl.Agent):
    def learn(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminal: Any) -> float:
        columns = [to_tensor(column.reshape(-1, 1)) for column in (reward, terminal)]
        whole = to_tensor(action.reshape(-1, 1), "int64")
        return float(self.alg.learn(to_tensor(obs), whole, columns[0], to_tensor(next_obs), columns[1]))


@pytest.mark.parametrize("own", [True, False], ids=["own algorithm", "DQN"])
def test_a_loop_with_a_replay_memory(own: bool) -> None:
    env: Any = CompatWrapper(gym.make("CartPole-v1"))
    rpm = ReplayMemory(200, 4, 0)
    rate = LinearDecayScheduler(1.0, 100)
    model = QValues(4, 2)
    algorithm = OwnDQN(model, 0.99, 1e-2) if own else parl.algorithms.DQN(model, gamma=0.99, lr=1e-2)
    agent = QAgent(algorithm)
    before = algorithm.model.get_weights()
    obs = env.reset()
    for number in range(120):
        action = np.random.randint(2) if np.random.random() < rate.step() else agent.predict(obs)
        action = int(np.asarray(action).argmax()) if np.ndim(action) else int(action)
        next_obs, reward, done, _ = env.step(action)
        rpm.append(obs, action, reward, next_obs, done)
        obs = env.reset() if done else next_obs
        if rpm.size() > 50:
            assert np.isfinite(agent.learn(*rpm.sample_batch(16)))
        if number % 20 == 0:
            algorithm.sync_target()
    assert any((before[name] != array).any() for name, array in algorithm.model.get_weights().items())


class Actor(parl.Model):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.logstd = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, obs: Any) -> Any:
        return self.mean(obs), self.logstd(obs).clip(-20.0, 2.0)


class Critic(parl.Model):
    def __init__(self) -> None:
        super().__init__()
        self.q1, self.q2 = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, obs: Any, action: Any) -> Any:
        both = concat(obs, action)
        return self.q1(both), self.q2(both)


class ActorCritic(parl.Model):
    def __init__(self) -> None:
        super().__init__()
        self.actor_model, self.critic_model = Actor(), Critic()

    def policy(self, obs: Any) -> Any:
        return self.actor_model(obs)

    def value(self, obs: Any, action: Any) -> Any:
        return self.critic_model(obs, action)

    def get_actor_params(self) -> Any:
        return self.actor_model.parameters()

    def get_critic_params(self) -> Any:
        return self.critic_model.parameters()


class SACAgent(parl.Agent):
    def __init__(self, algorithm: Any) -> None:
        super().__init__(algorithm)
        self.alg.sync_target(decay=0)

    def sample(self, obs: Any) -> Any:
        action, _ = self.alg.sample(to_tensor(obs.reshape(1, -1)))
        return to_numpy(action)[0]

    def learn(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminal: Any) -> Any:
        columns = [to_tensor(column.reshape(-1, 1)) for column in (reward, terminal)]
        return self.alg.learn(to_tensor(obs), to_tensor(action), columns[0], to_tensor(next_obs), columns[1])


def test_a_loop_of_sac_with_mapped_actions() -> None:
    env = ActionMappingWrapper(CompatWrapper(gym.make("Pendulum-v1")))
    agent = SACAgent(
        parl.algorithms.SAC(ActorCritic(), gamma=0.99, tau=0.005, alpha=0.2, actor_lr=3e-4, critic_lr=3e-4)
    )
    rpm: Any = ReplayMemory(max_size=100, obs_dim=3, act_dim=1)
    obs = env.reset()
    for _ in range(40):
        action = agent.sample(obs)
        assert action.shape == (1,)
        assert abs(action[0]) <= 1.0
        next_obs, reward, done, _ = env.step(action)
        rpm.append(obs, action, reward, next_obs, float(done))
        obs = env.reset() if done else next_obs
    critic_loss, actor_loss = agent.learn(*rpm.sample_batch(32))
    assert np.isfinite([float(critic_loss), float(actor_loss)]).all()


def test_a_rollout_of_ppo_with_a_schedule_that_sets_the_rate() -> None:
    algorithm = parl.algorithms.PPO(Values(), clip_param=0.2, initial_lr=1e-3, continuous_action=False)
    agent = parl.Agent(algorithm)
    env: Any = CompatWrapper(gym.make("CartPole-v1"))
    schedule = PiecewiseScheduler([(0, 1e-3), (1, 1e-4)])
    obs, columns = env.reset(), []
    for _ in range(32):
        value, action, log_prob, _ = algorithm.sample(to_tensor(obs.reshape(1, -1)))
        next_obs, reward, done, _ = env.step(int(to_numpy(action)[0]))
        columns.append((obs, to_numpy(action)[0], to_numpy(value).item(), reward, to_numpy(log_prob).item()))
        obs = env.reset() if done else next_obs
    seen, actions, values, rewards, log_probs = (np.array(column, np.float32) for column in zip(*columns, strict=True))
    advantages = calc_gae(rewards, values, 0.0, 0.99, 0.95)
    for _ in range(2):
        algorithm.optimizer.set_lr(schedule.step())
        batch = (seen, actions, values, advantages + values, log_probs, advantages)
        figures = algorithm.learn(*map(to_tensor, batch), lr=None)
        assert len(figures) == 3
    assert algorithm.optimizer.get_lr() == pytest.approx(1e-4)
    assert agent.predict(obs.reshape(1, -1)).shape[0] == 1


def test_a2c_and_td3_take_the_calls_of_their_examples() -> None:
    a2c = parl.algorithms.A2C(Values(), vf_loss_coeff=0.5)
    obs = to_tensor(np.random.normal(size=(8, 4)))
    numbers = to_tensor(np.random.normal(size=8))
    losses = a2c.learn(obs, to_tensor(np.zeros(8), "int64"), numbers, numbers, 1e-3, -0.01)
    assert len(losses) == 4
    prob, value = a2c.prob_and_value(obs)
    assert (tuple(prob.shape), tuple(value.shape)) == ((8, 2), (8,))


class IMPALAAgent(parl.Agent):
    def sample(self, obs: Any) -> Any:
        probs, logits = self.alg.sample(to_tensor(obs))
        return [np.random.choice(len(prob), 1, p=prob)[0] for prob in to_numpy(probs)], to_numpy(logits)


def test_impala_made_by_the_arguments_of_parl_2_samples_probabilities_on_paddle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    numbers = {"gamma": 0.9, "vf_loss_coeff": 0.5, "clip_rho_threshold": 1.0, "clip_pg_rho_threshold": 1.0}
    obs = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)

    def first(**settings: Any) -> Any:
        return to_numpy(parl.algorithms.IMPALA(Values(), sample_batch_steps=3, **settings).sample(to_tensor(obs))[0])

    on_paddle = BACKEND == "paddle"
    assert first(**numbers).shape == ((6, 2) if on_paddle else (6,))
    assert ("sample_probabilities=False returns (actions, logits)" in caplog.text) == on_paddle
    caplog.clear()
    np.testing.assert_allclose(first(**numbers, sample_probabilities=True).sum(1), np.ones(6), rtol=1e-5)
    assert first(**numbers, sample_probabilities=False).shape == (6,)
    for own in ({"learning_rate": 1e-3}, {"device": "cpu"}, {"gamma": None}):
        assert first(**{**numbers, **own}).shape == (6,)
    assert not caplog.records
    agent = IMPALAAgent(
        parl.algorithms.IMPALA(Values(), sample_batch_steps=3, **numbers, sample_probabilities=True)  # type: ignore[arg-type]
    )
    actions, logits = agent.sample(obs)
    zeros = np.zeros(6)
    columns = (to_tensor(obs), to_tensor(actions, "int64"), to_tensor(logits), to_tensor(zeros), to_tensor(zeros))
    losses, kl = agent.alg.learn(*columns, 1e-3, -0.01)
    assert np.isfinite([float(losses.total_loss), float(kl)]).all()


def test_agents_draw_actions_also_where_impala_samples_probabilities() -> None:
    algorithm = parl.algorithms.IMPALA(Values(), sample_batch_steps=3, sample_probabilities=True)
    actions, logits = parl.Agent(algorithm).sample(np.zeros((5, 4), np.float32))
    assert (actions.shape, logits.shape) == ((5,), (5, 2))
    actions, logits = algorithm.sample_actions(to_tensor(np.zeros((5, 4))))
    assert (tuple(actions.shape), tuple(logits.shape)) == ((5,), (5, 2))


class Sevens(parl.algorithms.IMPALA):
    def sample(self, obs: Any) -> Any:
        actions, logits = super().sample(obs)
        return 0 * actions + 7, logits


def test_agents_take_what_the_sample_of_a_subclass_returns() -> None:
    numbers = {"gamma": 0.9, "vf_loss_coeff": 0.5, "clip_rho_threshold": 1.0, "clip_pg_rho_threshold": 1.0}
    algorithm = Sevens(Values(), sample_batch_steps=3, **numbers)  # type: ignore[arg-type]
    actions, _ = parl.Agent(algorithm).sample(np.zeros((5, 4), np.float32))
    np.testing.assert_array_equal(actions, np.full(5, 7))


class OwnLoss(parl.algorithms.CQL):
    def critic_loss(self, batch: Transitions, *drawn: Any) -> Any:
        loss, figures = super().critic_loss(batch, *drawn)
        return loss, {"td_error": figures["td_error"], "gap": figures["gap"]}


def test_a_critic_loss_of_the_program_needs_no_figure_of_parl_2() -> None:
    rng = np.random.default_rng(2)
    obs, next_obs = (rng.normal(size=(8, 3)).astype(np.float32) for _ in range(2))
    action, reward, terminal = (rng.uniform(-1.0, 0.0, size).astype(np.float32) for size in ((8, 1), 8, 8))
    agent = parl.Agent(OwnLoss(ActorCritic(), gamma=0.9, tau=0.1, policy_eval_start=1))
    assert np.isfinite(agent.learn(obs, action, reward, next_obs, 0.0 * terminal)).all()


def test_probabilities_of_numbers_are_refused() -> None:
    with pytest.raises(HyperparameterError, match="for discrete actions"):
        parl.algorithms.IMPALA(Values(), sample_batch_steps=3, continuous_action=True, sample_probabilities=True)


def test_losses_by_columns_alone_are_those_of_parl_2_on_the_backend() -> None:
    rng = np.random.default_rng(2)
    obs, next_obs = (to_tensor(rng.normal(size=(8, 3))) for _ in range(2))
    action, reward, terminal = (to_tensor(rng.uniform(-1.0, 1.0, size)) for size in ((8, 1), 8, 8))
    columns = (obs, action, reward, next_obs, 0.0 * terminal)
    cql = parl.algorithms.CQL(ActorCritic(), gamma=0.9, tau=0.1, policy_eval_start=1, min_q_weight=1e-9)
    td3 = parl.algorithms.TD3(parl.networks.TwinActorCritic(1))
    parl.Agent(td3).predict(np.zeros((1, 3), np.float32))
    for updates in (1, 2):  # the first one imitates
        losses, by_td3 = cql.learn(*columns), td3.learn(*columns)
        if BACKEND == "paddle":
            critic_loss, mse, actor_loss, min_q = losses
            assert float(mse) == pytest.approx(float(critic_loss), rel=1e-5)
            assert np.isfinite([float(actor_loss), float(min_q)]).all()
            assert float(by_td3) > 0.0
        else:
            assert len(losses) == len(by_td3) == 2
        assert (cql.updates, td3.updates) == (updates, updates)
    batch = Transitions(*columns)
    for algorithm in (cql, td3):
        assert len(algorithm.learn(batch)) == 2
        assert len(algorithm.learn(*columns, discount=reward * 0.0 + 0.9)) == 2
    for agent in (parl.Agent(cql), parl.Agent(td3)):
        assert len(agent.learn(*(to_numpy(column) for column in columns))) == 2


class Choices(parl.Model):
    """The methods that algorithms of choices look for, for 2 of them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.one, self.two = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 6)

    def forward(self, obs: Any) -> Any:
        return self.fc(obs)

    def policy(self, obs: Any) -> Any:
        return self.fc(obs)

    def value(self, obs: Any) -> Any:
        return self.one(obs), self.one(obs)

    def quantiles(self, obs: Any) -> Any:
        return self.two(obs).reshape([-1, 3, 2])

    def atoms(self, obs: Any) -> Any:
        return self.quantiles(obs)

    def get_actor_params(self) -> Any:
        return self.fc.parameters()

    def get_critic_params(self) -> Any:
        return self.one.parameters()


OF_CHOICES: dict[str, Callable[[], Any]] = {
    "A2C": lambda: parl.algorithms.A2C(Values(), vf_loss_coeff=0.5),
    "PPO": lambda: parl.algorithms.PPO(Values()),
    "IMPALA": lambda: parl.algorithms.IMPALA(Values(), sample_batch_steps=4),
    "PolicyGradient": lambda: parl.algorithms.PolicyGradient(Policy(4, 2), lr=1e-3),
    "DQN": lambda: parl.algorithms.DQN(QValues(4, 2), gamma=0.9, lr=1e-3),
    "DDQN": lambda: parl.algorithms.DDQN(QValues(4, 2), gamma=0.9, lr=1e-3),
    "OfflineQ": lambda: parl.algorithms.OfflineQ(QValues(4, 2), gamma=0.9, lr=1e-3),
    "C51": lambda: parl.algorithms.C51(Choices(), gamma=0.9, lr=1e-3, v_min=-1.0, v_max=1.0),
    "QRDQN": lambda: parl.algorithms.QRDQN(Choices(), gamma=0.9, lr=1e-3),
    "DiscreteSAC": lambda: parl.algorithms.DiscreteSAC(Choices(), gamma=0.9),
}


def _columns(algorithm: Any, action: Any, made: Callable[[Any], Any]) -> dict[str, Any]:
    """Return what `learn` of an algorithm takes for 8 rows with these actions, by name."""
    rng = np.random.default_rng(1)
    obs, numbers, logits = (made(rng.normal(size=shape).astype(np.float32)) for shape in ((8, 4), 8, (8, 2)))
    by_name = {"behaviour_logits": logits, **dict.fromkeys(("action", "actions", "batch_action"), action)}
    by_name |= {**dict.fromkeys(("obs", "batch_obs", "next_obs"), obs), "dones": made(np.zeros(8, np.float32))}
    by_name["terminal"] = by_name["dones"]
    return {name: by_name.get(name, numbers) for name in type(algorithm).learn.columns.names}


def _agent(name: str) -> parl.Agent:
    """Return an agent of an algorithm of choices, always with the same weights."""
    agent, rng = parl.Agent(OF_CHOICES[name]()), np.random.default_rng(2)
    agent.set_weights({name: rng.normal(size=array.shape) for name, array in agent.get_weights().items()})
    if hasattr(agent.alg, "target_model"):
        agent.alg.model.sync_weights_to(agent.alg.target_model)
    return agent


def _assert_same_weights(one: parl.Agent, other: parl.Agent) -> None:
    for name, array in one.get_weights().items():
        np.testing.assert_allclose(other.get_weights()[name], array, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", OF_CHOICES)
@pytest.mark.parametrize(("shape", "dtype"), [((8, 1), "int64"), ((8,), "float32"), ((8, 1), "float32")])
def test_choices_are_whole_numbers_of_any_dtype_in_a_column_or_none(
    name: str, shape: tuple[int, ...], dtype: str
) -> None:
    """A replay memory of PARL 2.x keeps a column of its own for them, of floats: `[n, 1]`."""
    choices = np.arange(8) % 2
    agents = [_agent(name), _agent(name)]
    for agent, action in zip(
        agents, (to_tensor(choices, "int64"), to_tensor(choices.reshape(shape), dtype)), strict=True
    ):
        agent.alg.learn(**_columns(agent.alg, action, to_tensor))
    _assert_same_weights(*agents)


@pytest.mark.parametrize("name", OF_CHOICES)
def test_arrays_of_choices_may_be_floats_but_no_fractions(name: str) -> None:
    choices, agents = np.arange(8) % 2, [_agent(name), _agent(name)]
    for agent, action in zip(agents, (choices, choices.astype(np.float32)), strict=True):
        agent.learn(**_columns(agent.alg, action, np.asarray))
    _assert_same_weights(*agents)
    with pytest.raises(ValueError, match=r"hold whole numbers \(action indices\), got 0\.5 in row 1"):
        agents[0].learn(**_columns(agents[0].alg, 0.5 * choices, np.asarray))


def test_algorithms_have_the_attributes_of_their_code() -> None:
    assert parl.algorithms.PPO(Values(), max_grad_norm=0.3).max_grad_norm == 0.3
    algorithm = parl.algorithms.TD3(parl.networks.TwinActorCritic(2))
    one = np.ones(4, np.float32)
    parl.Agent(algorithm).learn(np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32), one, np.ones((4, 3)), one)
    assert algorithm.total_it == 1
    cql = parl.algorithms.CQL(parl.networks.SquashedActorCritic(2))
    np.testing.assert_allclose(to_numpy(cql.log_alpha.exp()), to_numpy(cql.alpha))
    assert not hasattr(
        parl.algorithms.CQL(parl.networks.SquashedActorCritic(2), alpha=1.0, with_automatic_entropy_tuning=False),
        "log_alpha",
    )
    team = parl.networks.TeamQNetwork(3, 2), parl.networks.QMixer(3)
    qmix = parl.algorithms.QMIX(*team, clip_grad_norm=10.0)
    assert (qmix.n_agents, qmix.double_q, qmix.clip_grad_norm) == (3, True, 10.0)
    assert {id(tensor) for tensor in qmix.params} == {id(tensor) for tensor in qmix.model.parameters()}


def test_figures_go_to_the_log_the_summary_and_a_csv_file(tmp_path: Path) -> None:
    logger.set_dir(str(tmp_path / "train_log"))
    summary.add_scalar("loss", 0.5, global_step=1)
    summary.flush()
    with_csv = CSVLogger(str(tmp_path / "result.csv"))
    with_csv.log_dict({"loss": 0.5, "step": 1})
    with_csv.log_dict({"loss": to_tensor(0.25), "step": 2})
    with_csv.close()
    assert (tmp_path / "result.csv").read_text().splitlines() == ["loss,step", "0.5,1", "0.25,2"]
    assert list((tmp_path / "train_log").glob("*"))


@parl.remote_class(wait=False)
class RemoteActor:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def rollout(self, number: int) -> int:
        return self.factor * number


@pytest.mark.slow
def test_actors_answer_with_future_objects() -> None:
    parl.connect()
    try:
        actors = [RemoteActor(factor) for factor in (2, 3)]
        futures: list[Any] = [actor.rollout(7) for actor in actors]
        assert [future.get() for future in futures] == [14, 21]
    finally:
        parl.disconnect()
