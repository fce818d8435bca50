"""Tests of `parl.Agent` that every backend must pass: one or many observations, saving and restoring, divergence."""

import json
import pickle
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest

from conformance.adapter import Conformance, Precision, assert_weights_close, random_weights
from conformance.models import ACT_DIM, ACTOR_CRITIC_SHAPES, OBS_DIM, Q_SHAPES, actor_critic, q_values
from conformance.reference import Adam, Dense
from conformance.reference_losses import q_learning
from parl_core.contracts.batches import Transitions
from parl_core.env.normalize import NormalizeVector, wrap_rms
from parl_core.env.vector import make_vector_env
from parl_core.errors import CheckpointError, DivergedError, HyperparameterError, ModelContractError
from parl_core.model import Weights
from parl_core.training.on_policy import OnPolicySettings, train_on_policy

__all__ = ["AgentConformance"]


class AgentConformance(Conformance):
    """Suite of Agent."""

    def test_one_observation_gives_a_number_and_a_batch_gives_an_array(self) -> None:
        agent = self._agent()
        one = agent.predict(np.zeros(OBS_DIM, np.float32))
        assert isinstance(one, int)
        many = agent.predict(np.zeros((5, OBS_DIM), np.float32))
        np.testing.assert_array_equal(many, np.full(5, one))
        assert agent.sample(np.zeros((1, OBS_DIM), np.float32)).shape == (1,)

    @pytest.mark.parametrize("seed", [-1, 1.5, "a"])
    def test_a_seed_that_is_no_whole_number_of_at_least_0_is_refused_as_a_seed(self, seed: Any) -> None:
        algorithm = self._agent().alg
        with pytest.raises(HyperparameterError, match=r"^seed must be"):
            self.backend.Agent(algorithm, seed=seed)

    def test_what_agents_and_algorithms_of_parl_1_had_names_its_successor(self) -> None:
        agent = self._agent()
        for owner in (agent, agent.alg):
            for name, told in (
                ("get_params", "use get_weights"),
                ("define_learn", "use learn"),
                ("get_model_ids", "use get_model_id"),
            ):
                with pytest.raises(
                    AttributeError, match=rf"no attribute '{name}', which the original PARL had: {told}"
                ):
                    getattr(owner, name)
            with pytest.raises(AttributeError, match=r"object has no attribute 'something_else'$"):
                _ = owner.something_else
        assert not hasattr(agent, "build_program")

    def test_a_property_keeps_its_own_error(self) -> None:
        class Mine(self.backend.Agent):  # type: ignore[name-defined,misc]  # the base is known only at run time
            @property
            def broken(self) -> Any:
                return [].missing  # type: ignore[attr-defined]

        with pytest.raises(AttributeError, match="'list' object has no attribute 'missing'"):
            _ = Mine(self._agent().alg).broken

    def test_obs_ndim_decides_where_the_number_of_dimensions_does_not(self) -> None:
        agent = self._agent()
        with pytest.raises(ValueError, match=r"got shape \(\), expected 1 or 3 .* set agent.obs_ndim"):
            agent.predict(3)
        agent.obs_ndim = 2  # fc flattens: two rows of two numbers are OBS_DIM features
        assert agent.predict(np.zeros((6, 2, 2), np.float32)).shape == (6,)
        assert isinstance(agent.predict(np.zeros((2, 2), np.float32)), int)

    def test_observations_may_be_float64_lists_read_only_or_reversed(self) -> None:
        agent = self._agent()
        obs = np.random.default_rng(1).normal(size=(5, OBS_DIM))
        expected = agent.predict(obs.astype(np.float32))
        frozen = obs.astype(np.float32)
        frozen.flags.writeable = False
        for same in (obs, obs.tolist(), frozen, obs[::-1].copy()[::-1]):
            np.testing.assert_array_equal(agent.predict(same), expected)

    def test_acting_uses_running_statistics_and_leaves_them_alone_in_either_mode(self) -> None:
        layers: Any = self.backend.layers
        base = self.backend.Model

        class Normalised(base):  # type: ignore[valid-type,misc]  # the base is known only at run time
            def __init__(self) -> None:
                self.norm = layers.batch_norm()
                self.fc = layers.fc(size=ACT_DIM)

            def value(self, obs: Any) -> Any:
                return self.fc(self.norm(obs))

        agent = self.backend.Agent(self.algorithm("DQN", Normalised()))
        first = agent.predict(np.ones(OBS_DIM, np.float32))  # one has no variance, and the layers no shapes yet
        assert isinstance(first, int)
        agent.learn(*_batch(1))
        before = agent.get_weights()
        obs = np.random.default_rng(2).normal(size=(4, OBS_DIM)).astype(np.float32)
        while_training = agent.predict(obs)
        agent.sample(obs[:1])
        _assert_same(agent.get_weights(), before)
        assert agent.training
        assert agent.alg.model.norm.training
        agent.eval()
        np.testing.assert_array_equal(agent.predict(obs), while_training)
        assert not agent.alg.model.norm.training
        _assert_same(agent.get_weights(), before)
        agent.train()
        agent.learn(*_batch(2))
        changed = [name for name, array in agent.get_weights().items() if not np.array_equal(array, before[name])]
        assert any("norm" in name and ("mean" in name or "var" in name) for name in changed)

    def test_acting_has_no_dropout_and_learning_has_it_in_either_mode(self) -> None:
        layers: Any = self.backend.layers
        base = self.backend.Model
        seen: list[bool] = []

        class Dropping(base):  # type: ignore[valid-type,misc]  # the base is known only at run time
            def __init__(self) -> None:
                self.fc = layers.fc(size=ACT_DIM)

            def value(self, obs: Any) -> Any:
                seen.append(self.training)
                return layers.dropout(self.fc(obs), 0.5, is_test=not self.training)

        agent = self.backend.Agent(self.algorithm("DQN", Dropping()))
        agent.predict(np.zeros((3, OBS_DIM), np.float32))
        assert seen == [False]
        agent.learn(*_batch(1))
        assert seen[-2:] == [True, False]  # the model, its target
        agent.alg.model.value = _broken
        with pytest.raises(RuntimeError, match="broken"):
            agent.predict(np.zeros((3, OBS_DIM), np.float32))
        assert agent.alg.model.training

    def test_trial_passes_leave_what_a_model_counts_as_it_was(self) -> None:
        layers: Any = self.backend.layers
        base = self.backend.Model

        class Counting(base):  # type: ignore[valid-type,misc]  # the base is known only at run time
            def __init__(self) -> None:
                self.fc = layers.fc(size=2)
                self.passes = 0

            def policy(self, obs: Any) -> Any:
                self.passes += 1
                return self.fc(obs)

            def value(self, obs: Any) -> Any:
                return self.fc(obs)[:, :1]

        agent = self.backend.Agent(self.algorithm("PPO", Counting()))
        settings = OnPolicySettings(total_steps=8, n_steps=8, epochs=1, minibatch_size=8)
        with make_vector_env("CartPole-v1", 1) as envs:
            train_on_policy(agent, envs, settings, seed=0)
            first = agent.alg.model.passes
            train_on_policy(agent, envs, settings, seed=0)
        assert first >= 9  # eight to act, and one to learn
        assert agent.alg.model.passes == 2 * first

    def test_loops_with_one_environment_take_models_with_batch_statistics(self) -> None:
        layers: Any = self.backend.layers
        base = self.backend.Model

        class Normalised(base):  # type: ignore[valid-type,misc]  # the base is known only at run time
            def __init__(self) -> None:
                self.fc, self.norm = layers.fc(size=8), layers.batch_norm(act="relu")
                self.pi, self.v = layers.fc(size=2), layers.fc(size=1)

            def policy(self, obs: Any) -> Any:
                return self.pi(self.norm(self.fc(obs)))

            def value(self, obs: Any) -> Any:
                return self.v(self.norm(self.fc(obs)))

        agent = self.backend.Agent(self.algorithm("PPO", Normalised()))
        with make_vector_env("CartPole-v1", 1) as envs:
            ended = train_on_policy(agent, envs, OnPolicySettings(total_steps=32, n_steps=16, minibatch_size=8), seed=0)
        assert ended.step == 32

    def test_models_without_such_layers_are_left_alone(self) -> None:
        assert q_values(self.backend).layers_by_mode() == []

    def test_a_nan_loss_is_an_error_that_names_the_algorithm(self) -> None:
        agent = self._agent()
        batch = _batch(1)
        batch[0][0] = np.nan
        with pytest.raises(
            DivergedError, match=r"DQN\.learn: the loss is nan.*last checkpoint|obs\[0\] must be finite, got nan"
        ):
            agent.learn(*batch)

    @pytest.mark.parametrize("path", ["model.ckpt", "model_dir", "made/on/the/way/model.ckpt"])
    def test_a_restored_agent_predicts_and_learns_on_as_the_saved_one(self, tmp_path: Path, path: str) -> None:
        saved = self._agent(sync_every=3)
        for i in range(4):
            saved.learn(*_batch(i))
        saved.save(tmp_path / path)
        restored = self._agent(seed=2, sync_every=3)
        restored.restore(tmp_path / path)
        obs = _batch(9)[0]
        np.testing.assert_array_equal(restored.predict(obs), saved.predict(obs))
        # Six updates cross a target synchronisation: optimizer, target network and counter must all have come along.
        for i in range(6):
            assert restored.learn(*_batch(10 + i)) == saved.learn(*_batch(10 + i))
        _assert_same(restored.get_weights(), saved.get_weights())

    def test_an_agent_without_shapes_is_restored(self, tmp_path: Path) -> None:
        saved = self._agent()
        saved.learn(*_batch(1))
        saved.save(tmp_path / "agent.ckpt")
        fresh = self.backend.Agent(self.algorithm("DQN", q_values(self.backend)))
        fresh.restore(tmp_path / "agent.ckpt")
        _assert_same(fresh.get_weights(), saved.get_weights())
        assert fresh.learn(*_batch(2)) == saved.learn(*_batch(2))

    def test_an_agent_that_has_not_learned_is_saved_and_restored(self, tmp_path: Path) -> None:
        saved, restored = self._agent(seed=1), self._agent(seed=2)
        saved.save(tmp_path / "agent.ckpt")
        restored.learn(*_batch(1))
        restored.restore(tmp_path / "agent.ckpt")
        assert restored.learn(*_batch(2)) == saved.learn(*_batch(2))

    def test_an_agent_that_has_only_acted_is_saved_with_a_target_that_equals_its_model(self, tmp_path: Path) -> None:
        agent, restored = (self.backend.Agent(self.algorithm("DQN", q_values(self.backend))) for _ in range(2))
        agent.predict(np.ones((2, OBS_DIM), np.float32))
        agent.save(tmp_path / "agent.ckpt")
        restored.restore(tmp_path / "agent.ckpt")
        assert_weights_close(restored.alg.target_model.get_weights(), agent.get_weights(), 0.0)

    def test_batch_normalisation_is_saved_and_restored_with_its_statistics(self, tmp_path: Path) -> None:
        base, layers = self.backend.Model, cast(Any, self.backend.layers)

        class Normalised(base):  # type: ignore[valid-type,misc]  # the base is known only at run time
            def __init__(self) -> None:
                self.fc1, self.norm, self.fc2 = layers.fc(size=8), layers.batch_norm(act="relu"), layers.fc(ACT_DIM)

            def value(self, obs: Any) -> Any:
                return self.fc2(self.norm(self.fc1(obs)))

        saved, restored = (self.backend.Agent(self.algorithm("DQN", Normalised())) for _ in range(2))
        saved.learn(*_batch(1))
        saved.save(tmp_path / "agent.ckpt")
        restored.learn(*_batch(2))
        restored.restore(tmp_path / "agent.ckpt")
        assert_weights_close(restored.get_weights(), saved.get_weights(), 0.0)
        assert restored.learn(*_batch(3)) == saved.learn(*_batch(3))

    def test_statistics_of_observations_are_saved_with_the_agent_and_restored_in_another_program(
        self, tmp_path: Path
    ) -> None:
        saved, restored = self._agent(), self._agent(seed=2)
        with closing(NormalizeVector(make_vector_env("CartPole-v1", 2), gamma=0.9)) as envs:
            envs.reset(seed=1)
            for _ in range(5):
                envs.step(np.zeros(2, np.int64))
            saved.save(tmp_path / "agent.ckpt", normalization=envs)
            statistics = envs.get_state()
        env = gymnasium.wrappers.TimeLimit(wrap_rms(gymnasium.make("CartPole-v1"), gamma=None, test=True), 9)
        restored.restore(tmp_path / "agent.ckpt", normalization=env)
        _assert_same(restored.get_weights(), saved.get_weights())
        plain, _ = gymnasium.make("CartPole-v1").reset(seed=3)
        expected = (plain - statistics["ob_mean"]) / np.sqrt(statistics["ob_var"] + 1e-8)
        np.testing.assert_allclose(env.reset(seed=3)[0], expected, rtol=1e-6)
        with closing(NormalizeVector(make_vector_env("CartPole-v1", 1))) as others:
            restored.restore(tmp_path / "agent.ckpt", normalization=others)
            np.testing.assert_equal(others.get_state(), statistics)

    def test_unused_statistics_are_reported_and_missing_ones_are_an_error(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        agent = self._agent()
        env = wrap_rms(gymnasium.make("CartPole-v1"), gamma=0.9)
        env.reset(seed=1)
        agent.save(tmp_path / "with.ckpt", normalization=env)
        agent.save(tmp_path / "without.ckpt")
        agent.restore(tmp_path / "without.ckpt")
        assert caplog.messages == []
        agent.restore(tmp_path / "with.ckpt")
        assert "with.ckpt holds statistics" in caplog.text
        before = env.get_state()
        with pytest.raises(CheckpointError, match=r"without.ckpt holds no statistics; save .*normalization=envs"):
            agent.restore(tmp_path / "without.ckpt", normalization=env)
        self._actor_critic_agent().save(tmp_path / "other.ckpt", normalization=env)
        env.step(0)
        before = env.get_state()
        with pytest.raises(CheckpointError, match="does not fit this DQN"):
            agent.restore(tmp_path / "other.ckpt", normalization=env)
        np.testing.assert_equal(env.get_state(), before)
        with pytest.raises(TypeError, match="normalization= takes an environment with running statistics"):
            agent.save(tmp_path / "never.ckpt", normalization=gymnasium.make("CartPole-v1"))
        assert not (tmp_path / "never.ckpt").exists()

    def test_an_error_while_a_state_is_taken_over_comes_out_as_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        agent = self._agent()
        state = agent.alg.get_state()

        def fail(*_: Any, **__: Any) -> None:
            raise OSError("the disk is gone")

        monkeypatch.setattr(agent.alg.optimizer, "set_state", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            agent.alg.set_state(state)

    def test_the_file_has_portable_names_layouts_and_numbers(self, tmp_path: Path) -> None:
        from safetensors.numpy import load_file

        weights = random_weights(np.random.default_rng(1), Q_SHAPES)
        algorithm = self.algorithm("DQN", self.model(q_values, weights))
        agent = self.backend.Agent(algorithm)
        agent.learn(*_batch(1))
        agent.save(tmp_path / "agent.ckpt")
        arrays = load_file(tmp_path / "agent.ckpt")
        expected = {f"{owner}/{name}": shape for owner in ("model", "target_model") for name, shape in Q_SHAPES.items()}
        for name, shape in Q_SHAPES.items():
            expected |= {f"optimizer/moment{i}/{name}": shape for i in (1, 2)} | {f"optimizer/step/{name}": ()}
        expected["optimizer/rates"] = (2,)  # the one that was set, and that of the last step
        assert {name: array.shape for name, array in arrays.items()} == expected
        assert all(arrays[f"optimizer/step/{name}"] == 1 for name in Q_SHAPES)
        np.testing.assert_array_equal(arrays["target_model/fc1.weight"], weights["fc1.weight"].astype(np.float32))

    def test_a_file_put_together_by_hand_is_continued_as_the_reference_continues(
        self, tmp_path: Path, precision: Precision
    ) -> None:
        from safetensors.numpy import save_file

        rng = np.random.default_rng(3)
        weights, target = random_weights(rng, Q_SHAPES), random_weights(rng, Q_SHAPES)
        network, adam = Dense(("fc1", "fc2")), Adam(lr=0.01)
        adam.step = 5
        adam.moment1 = random_weights(rng, Q_SHAPES)
        adam.moment2 = {name: array**2 for name, array in random_weights(rng, Q_SHAPES).items()}
        arrays = {f"model/{name}": array for name, array in weights.items()}
        arrays |= {f"target_model/{name}": array for name, array in target.items()}
        arrays |= {f"optimizer/moment1/{name}": array for name, array in adam.moment1.items()}
        arrays |= {f"optimizer/moment2/{name}": array for name, array in adam.moment2.items()}
        arrays |= {f"optimizer/step/{name}": np.array(5) for name in Q_SHAPES}
        metadata = {"format": "parl-agent", "version": 1, "algorithm": "DQN", "backend": "", "counters": {"updates": 5}}
        save_file(arrays, tmp_path / "agent.ckpt", {"parl": json.dumps(metadata)})

        model = self.model(q_values, random_weights(rng, Q_SHAPES), precision)
        agent = self.backend.Agent(self.algorithm("DQN", model, gamma=0.9, lr=0.01))
        agent.restore(tmp_path / "agent.ckpt")
        obs, action, reward, next_obs, terminal = _batch(4)
        outputs = network.forward(weights, obs)
        value = reward + 0.9 * (1.0 - terminal) * network.forward(target, next_obs)[-1].max(axis=1)
        loss, gradient, _ = q_learning(outputs[-1], action, value, np.ones(16))
        weights = adam.update(weights, network.backward(weights, outputs, gradient)[0])
        assert abs(agent.learn(obs, action, reward, next_obs, terminal) - loss) < max(1e-6, precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, max(1e-6, precision.tolerance))
        assert agent.alg.updates == 6

    def test_one_model_is_saved_and_restored_alone(self, tmp_path: Path) -> None:
        saved, other = self._agent(seed=1), self._agent(seed=2)
        saved.save(tmp_path / "model.ckpt", model=saved.alg.model)
        other.restore(tmp_path / "model.ckpt", model=other.alg.model)
        _assert_same(other.get_weights(), saved.get_weights())

    def test_a_file_of_another_architecture_is_refused_with_its_path_and_changes_nothing(self, tmp_path: Path) -> None:
        self._actor_critic_agent().save(tmp_path / "ppo.ckpt")
        agent = self._agent()
        agent.learn(*_batch(1))
        before = agent.get_weights()
        with pytest.raises(CheckpointError, match=r"ppo.ckpt, written by PPO on \w+, does not fit this DQN: "):
            agent.restore(tmp_path / "ppo.ckpt")
        _assert_same(agent.get_weights(), before)

    def test_a_file_that_is_wrong_in_its_last_part_changes_nothing(self, tmp_path: Path) -> None:
        from safetensors import safe_open
        from safetensors.numpy import load_file, save_file

        path = tmp_path / "agent.ckpt"
        agent = self._agent()
        agent.learn(*_batch(1))
        agent.save(path)
        agent.learn(*_batch(2))
        before = agent.get_weights()
        with safe_open(path, "numpy") as file:
            metadata = json.loads(file.metadata()["parl"])
        del metadata["crc32"]
        arrays = load_file(path)
        arrays["optimizer/moment2/fc2.bias"] = np.zeros(7, np.float32)
        save_file(arrays, path, {"parl": json.dumps(metadata)})
        with pytest.raises(CheckpointError, match=r"moment2 .*fc2.bias has shape \(7,\), expected \(3,\)"):
            agent.restore(path)
        _assert_same(agent.get_weights(), before)
        expected = self._agent()
        expected.learn(*_batch(1))
        expected.learn(*_batch(2))
        assert agent.learn(*_batch(3)) == expected.learn(*_batch(3))

    def test_an_error_out_of_the_model_is_shown_with_the_arrays_that_led_there(self) -> None:
        agent = self._agent()
        with pytest.raises(Exception) as caught:
            agent.predict(np.zeros((2, OBS_DIM + 1), np.float32))
        (note,) = caught.value.__notes__
        assert f"DQN.predict with obs float32 [2, {OBS_DIM + 1}]" in note
        _, action, reward, _, terminal = _batch(1)
        wide = np.zeros((len(action), OBS_DIM + 1), np.float32)
        with pytest.raises(Exception) as caught:
            agent.learn(wide, action, reward, wide, terminal)
        assert "action int64" in caught.value.__notes__[0]

    def test_an_option_of_acting_that_there_is_not_is_named(self) -> None:
        agents = [self._agent(), self.backend.Agent(self.algorithm("PPO", actor_critic(self.backend)))]
        for agent in agents:
            for act in (agent.predict, agent.sample):
                with pytest.raises(TypeError, match="has no option temperature for acting; predict gives") as caught:
                    act(np.zeros(OBS_DIM, np.float32), temperature=1.0)
                assert isinstance(caught.value, HyperparameterError)
        with pytest.raises(HyperparameterError, match="PPO has no option temperature"):
            agents[1].explore(np.zeros(OBS_DIM, np.float32), temperature=1.0)

    def test_what_is_no_algorithm_is_refused(self) -> None:
        for wrong in (None, q_values(self.backend)):
            with pytest.raises(ModelContractError, match=r"parl\.Agent needs an algorithm, got"):
                self.backend.Agent(wrong)

    def test_a_class_in_place_of_a_model_is_refused(self) -> None:
        with pytest.raises(ModelContractError, match=r"DQN needs a parl.Model, got .* of type"):
            self.algorithm("DQN", type(q_values(self.backend)))

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"cannot read .*nowhere.ckpt: No such file"):
            self._agent().restore(tmp_path / "nowhere.ckpt")

    @pytest.mark.parametrize("content", [b"", b"\x80\x04pickle", b"\xff" * 64], ids=["empty", "pickle", "noise"])
    def test_a_file_that_is_no_checkpoint_is_refused(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "agent.ckpt"
        path.write_bytes(content)
        with pytest.raises(
            CheckpointError, match=r"agent.ckpt is (damaged or|a pickle or a zip file,) not a safetensors file"
        ):
            self._agent().restore(path)

    def test_a_truncated_file_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "agent.ckpt"
        self._agent().save(path)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(CheckpointError, match="damaged"):
            self._agent().restore(path)

    def test_a_file_of_a_later_version_is_refused_with_what_to_do(self, tmp_path: Path) -> None:
        from safetensors.numpy import save_file

        path = tmp_path / "agent.ckpt"
        metadata = {"format": "parl-agent", "version": 99, "algorithm": "DQN", "backend": "x", "counters": {}}
        save_file({"model/fc1.bias": np.zeros(3, np.float32)}, path, {"parl": json.dumps(metadata)})
        with pytest.raises(CheckpointError, match="has version 99; this PARL reads version 1: upgrade"):
            self._agent().restore(path)

    @pytest.mark.parametrize("counters", [None, [1], {"updates": "x"}, {"updates": 1.5}])
    def test_a_file_whose_description_is_of_another_kind_is_refused(self, tmp_path: Path, counters: Any) -> None:
        from safetensors.numpy import save_file

        path = tmp_path / "agent.ckpt"
        metadata = {"format": "parl-agent", "version": 1, "algorithm": "DQN", "backend": "x", "counters": counters}
        save_file({"model/fc1.bias": np.zeros(3, np.float32)}, path, {"parl": json.dumps(metadata)})
        with pytest.raises(CheckpointError, match="metadata of another kind"):
            self._agent().restore(path)

    def test_one_changed_bit_among_the_numbers_is_noticed_and_changes_nothing(self, tmp_path: Path) -> None:
        path, agent = tmp_path / "agent.ckpt", self._agent()
        agent.save(path)
        content = bytearray(path.read_bytes())
        content[-6] ^= 0x10
        path.write_bytes(content)
        before = agent.get_weights()
        with pytest.raises(CheckpointError, match=r"agent.ckpt is damaged: .* checksum"):
            agent.restore(path)
        assert_weights_close(agent.get_weights(), before, 0.0)

    def test_saving_replaces_the_file_in_one_step_and_leaves_nothing_else(self, tmp_path: Path) -> None:
        agent = self._agent()
        for _ in range(2):
            agent.save(tmp_path / "agent.ckpt")
        assert [path.name for path in tmp_path.iterdir()] == ["agent.ckpt"]

    def test_weights_go_from_a_learner_to_an_actor(self) -> None:
        learner, actor = self._agent(seed=1), self._agent(seed=2)
        learner.learn(*_batch(1))
        actor.set_weights(learner.get_weights())
        _assert_same(actor.get_weights(), learner.get_weights())

    def test_a_pickled_agent_goes_on_as_the_one_that_stayed(self) -> None:
        networks: Any = self.backend.networks
        agent = self.backend.Agent(self.algorithm("DQN", networks.QNetwork(ACT_DIM, (8,))), seed=3)
        agent.learn(*_batch(1))
        other = pickle.loads(pickle.dumps(agent))
        obs = np.ones((20, OBS_DIM), np.float32)
        for one in (agent, other):
            one.learn(*_batch(2))
        # Where the arrays lie in memory decides the order of sums, and with it the last bit.
        assert_weights_close(other.get_weights(), agent.get_weights(), 1e-7)
        np.testing.assert_array_equal(other.sample(obs, epsilon=0.5), agent.sample(obs, epsilon=0.5))

    def test_many_batches_may_come_from_a_generator_and_have_to_be_batches(self) -> None:
        agent = self._agent()
        assert len(agent.learn_many(Transitions(*_batch(seed)) for seed in range(3))) == 3
        with pytest.raises(TypeError, match=r"takes batches, such as Transitions\(\*columns\), got a list"):
            agent.learn_many([_batch(1)])

    def _agent(self, seed: int = 1, **settings: Any) -> Any:
        weights = random_weights(np.random.default_rng(seed), Q_SHAPES)
        return self.backend.Agent(self.algorithm("DQN", self.model(q_values, weights), lr=0.01, **settings), seed=seed)

    def _actor_critic_agent(self) -> Any:
        weights = random_weights(np.random.default_rng(1), ACTOR_CRITIC_SHAPES)
        return self.backend.Agent(self.algorithm("PPO", self.model(actor_critic, weights)))


def _broken(obs: Any) -> Any:
    raise RuntimeError(f"broken at {obs.shape}")


def _batch(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.normal(size=(2, 16, OBS_DIM)).astype(np.float32)
    reward = rng.normal(size=16).astype(np.float32)
    return [obs, rng.integers(ACT_DIM, size=16), reward, next_obs, rng.random(16) < 0.3]


def _assert_same(found: Weights, expected: Weights) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
