"""Findings and changes of `parl migrate` in programs of PARL 1.x and 2.x."""

import ast
import shutil
import subprocess
from pathlib import Path
from textwrap import dedent

import gymnasium
import pytest
from click.testing import CliRunner

from parl_core._migration import Program, read, report, rewrite
from parl_core.cli._commands import parl


def program(text: str, path: str = "train.py") -> Program:
    return read(path, dedent(text))


def changed(text: str) -> str:
    one = program(text)
    return rewrite([one]).get(one.path, one.source)


def lines_of(*programs: Program) -> list[tuple[str, int, bool]]:
    found = report(programs)
    return [(path, finding.line, finding.mechanical) for path in found for finding in found[path]]


def test_gym_becomes_gymnasium_under_the_name_that_the_program_has() -> None:
    assert changed("import gym\n") == "import gymnasium as gym\n"
    assert changed("import os, gym as g\n") == "import os, gymnasium as g\n"
    assert changed("import gym.spaces\n") == "import gymnasium as gym\n"
    assert changed("from gym import spaces\nfrom gym.wrappers import TimeLimit\n") == (
        "from gymnasium import spaces\nfrom gymnasium.wrappers import TimeLimit\n"
    )
    assert changed("import gymnasium as gym\nimport gym_minigrid\n") == "import gymnasium as gym\nimport gym_minigrid\n"


OLD_LOOP = """\
    '''Trains.'''
    from __future__ import annotations
    import gym
    import parl

    def run(agent, env):
        obs, done = env.reset(), False
        while not done:
            obs, reward, done, info = env.step(agent.sample(obs))

    def main():
        run(None, parl.env.ActionMappingWrapper(gym.make(
            "Pendulum-v1",
        )))
    """


def test_environments_of_the_old_loop_get_a_wrapper() -> None:
    new = changed(OLD_LOOP)
    assert new == dedent(
        """\
        '''Trains.'''
        from __future__ import annotations
        from parl.env import CompatWrapper
        import gymnasium as gym
        import parl

        def run(agent, env):
            obs, done = env.reset(), False
            while not done:
                obs, reward, done, info = env.step(agent.sample(obs))

        def main():
            run(None, parl.env.ActionMappingWrapper(CompatWrapper(gym.make(
                "Pendulum-v1",
            ))))
        """
    )
    assert lines_of(program(OLD_LOOP)) == [("train.py", 3, True), ("train.py", 9, True)]
    assert changed(new) == new  # nothing is left to do
    assert lines_of(program(new)) == []


def test_one_file_makes_what_another_one_steps() -> None:
    steps = program("def run(env):\n    obs, r, done, _ = env.step(0)\n", "run.py")
    makes = program("import gymnasium\nenv = gymnasium.make('CartPole-v1')\n", "make.py")
    assert list(rewrite([steps, makes])) == ["make.py"]
    assert "CompatWrapper(gymnasium.make('CartPole-v1'))" in rewrite([steps, makes])["make.py"]
    assert lines_of(steps, makes) == [("run.py", 2, True)]
    assert lines_of(steps) == [("run.py", 2, False)]  # alone: by hand
    wrapped = program("from parl.env import CompatWrapper\nenv = CompatWrapper(make())\n", "wrapped.py")
    assert lines_of(steps, wrapped) == []
    assert list(rewrite([steps, wrapped, makes])) == ["make.py"]  # a wrapper in one file is none in another
    assert lines_of(steps, wrapped, makes) == [("run.py", 2, True)]


def test_files_that_unpack_five_values_stay_as_they_are_beside_old_ones() -> None:
    old = program('import gym\nenv = gym.make("A")\no, r, d, i = env.step(0)\n', "old.py")
    new = program(
        'import gymnasium\nenv = gymnasium.make("A")\no, i = env.reset()\no, r, t, u, i = env.step(0)\n', "new.py"
    )
    assert list(rewrite([old, new])) == ["old.py"]
    assert 'CompatWrapper(gym.make("A"))' in rewrite([old, new])["old.py"]
    assert lines_of(old, new) == [("old.py", 1, True), ("old.py", 3, True)]
    both = program(f"{new.source}o, r, d, i = other.step(0)\n", "both.py")
    assert rewrite([both]) == {}
    assert lines_of(both) == [("both.py", 5, False)]


def test_what_files_of_both_apis_share_is_left_to_the_programmer() -> None:
    makes = program("import gymnasium\nenv = gymnasium.make('CartPole-v1')\n", "make.py")
    old = program("def run(env):\n    obs, r, done, _ = env.step(0)\n", "old.py")
    new = program("def run(env):\n    obs, r, end, cut, _ = env.step(0)\n", "new.py")
    assert rewrite([makes, old, new]) == {}
    assert lines_of(makes, old, new) == [("old.py", 2, False)]


@pytest.mark.parametrize(
    "wrapped",
    [
        "import parl\nenv = parl.env.CompatWrapper({})\n",
        "import parl.env as envs\nenv = envs.CompatWrapper({})\n",
        "from parl.env import CompatWrapper as Old\nenv = Old({})\n",
        "from .env import CompatWrapper\nenv = CompatWrapper({})\n",
    ],
)
def test_what_is_wrapped_by_any_name_of_the_wrapper_is_not_wrapped_again(wrapped: str) -> None:
    made = "from parl.env.multiagent_env import MAenv\n" + wrapped.format("MAenv('simple_spread')")
    text = f"{made}obs_n, reward_n, done_n, _ = env.step(0)\n"
    assert changed(text) == text
    assert lines_of(program(text)) == []


def test_a_program_that_takes_results_apart_itself_is_known_by_its_resets() -> None:
    text = """\
        import gym

        env = gym.make("CartPole-v1")
        obs = env.reset()
        result = env.step(0)
        obs, done = result[0], result[2]
        """
    assert ("train.py", 4, True) in lines_of(program(text))
    assert 'env = CompatWrapper(gym.make("CartPole-v1"))' in changed(text)
    new = changed(text.replace("obs = env.reset()", "obs, info = env.reset()"))
    assert "CompatWrapper" not in new


@pytest.mark.parametrize(
    "text",
    [
        """\
        import gymnasium as gym
        env = gym.make("CartPole-v1")
        answer = env.reset(seed=3)
        obs = answer[0]
        len(obs)
        out = env.step(0)
        terminated, truncated = out[2], out[3]
        """,
        'import gymnasium\nenv = gymnasium.make("CartPole-v1")\nanswer = env.reset()\n',
        'import gymnasium\nenv = gymnasium.make("CartPole-v1")\nenv = env.unwrapped\nanswer = env.reset()\n',
        """\
        from parl.env.multiagent_env import MAenv
        env = MAenv("simple_spread")
        result = env.reset()
        obs, info = result
        """,
        """\
        from parl.env.multiagent_env import MAenv

        class Runner:
            def start(self):
                self.env = MAenv("simple_spread")
                self.result = self.env.reset()

            def obs(self):
                return self.result[0]
        """,
        """\
        from parl.env.multiagent_env import MAenv
        env = MAenv("simple_spread")
        result = env.reset(seed=3)
        """,
        """\
        from parl.env.multiagent_env import MAenv
        env = MAenv("simple_spread")
        result = env.reset()
        obs, reward, terminated, truncated, info = env.step(0)
        """,
    ],
)
def test_a_reset_that_may_return_two_values_does_not_tell_of_gym(text: str) -> None:
    assert changed(text) == dedent(text)
    assert lines_of(program(text)) == []


def test_a_reset_tells_of_gym_through_wrappers_and_in_its_own_function() -> None:
    text = """\
        import gym

        def first(obs):
            return obs[0]

        def main():
            env = gym.make("CartPole-v1")
            env = env.unwrapped
            obs = env.reset()
        """
    assert "env = CompatWrapper(env.unwrapped)\n" in changed(text)
    assert ("train.py", 9, True) in lines_of(program(text))


def test_environments_of_several_agents_get_a_wrapper_as_well() -> None:
    text = """\
        from parl.env.multiagent_env import MAenv
        env = MAenv("simple_spread")
        obs_n, reward_n, done_n, _ = env.step(0)
        """
    assert 'env = CompatWrapper(MAenv("simple_spread"))' in changed(dedent(text))
    assert lines_of(program(text)) == [("train.py", 3, True)]


def test_the_wrapper_goes_around_those_of_gymnasium_which_unpack_five_values() -> None:
    text = """\
        import gym
        from gym.wrappers import TimeLimit

        class Scaled(gym.RewardWrapper):
            def reward(self, reward):
                return 0.1 * reward

        class Smaller(Scaled):
            pass

        def main():
            env = gym.make("CartPole-v1")
            env = Scaled(env)
            env = TimeLimit(env, 100)
            other = Smaller(TimeLimit(gym.make("Pendulum-v1"), max_episode_steps=10))
            plain = gym.make("Acrobot-v1")
            obs, reward, done, info = env.step(0)

        def wrapped(env):
            return Scaled(env)
        """
    new = changed(dedent(text))
    assert (
        '    env = gym.make("CartPole-v1")\n    env = Scaled(env)\n    env = CompatWrapper(TimeLimit(env, 100))\n'
        in new
    )
    assert 'other = CompatWrapper(Smaller(TimeLimit(gym.make("Pendulum-v1"), max_episode_steps=10)))\n' in new
    assert 'plain = CompatWrapper(gym.make("Acrobot-v1"))\n' in new
    (found,) = report([program(text)]).values()
    assert [(finding.line, finding.message) for finding in found if not finding.mechanical] == [
        (20, "wrappers of Gymnasium unpack five values from step(): put CompatWrapper around this one, not inside it")
    ]


def test_the_wrapper_goes_around_what_is_taken_out_of_a_wrapper() -> None:
    text = """\
        import gym

        env = gym.make("CartPole-v1").unwrapped
        other = gym.wrappers.TimeLimit(gym.make("CartPole-v1").env.env, 500)
        limit = gym.make("CartPole-v1").spec.max_episode_steps
        obs, reward, done, info = env.step(0)
        """
    new = changed(dedent(text))
    assert 'env = CompatWrapper(gym.make("CartPole-v1").unwrapped)\n' in new
    assert 'other = CompatWrapper(gym.wrappers.TimeLimit(gym.make("CartPole-v1").env.env, 500))\n' in new
    assert 'limit = CompatWrapper(gym.make("CartPole-v1")).spec.max_episode_steps\n' in new


OLD_STEP = "obs, reward, done, info = env.step(0)\n"


def test_environments_beside_one_that_the_program_wraps_are_wrapped_too() -> None:
    text = """\
        import gymnasium as gym
        from parl.env import CompatWrapper
        from parl.env.multiagent_env import MAenv

        train_env = CompatWrapper(gym.make("CartPole-v1"))
        test_env = gym.make("CartPole-v1")
        team = MAenv("simple_spread")
        obs, reward, done, info = test_env.step(0)
        """
    new = changed(text)
    assert 'train_env = CompatWrapper(gym.make("CartPole-v1"))\n' in new
    assert 'test_env = CompatWrapper(gym.make("CartPole-v1"))\n' in new
    assert 'team = CompatWrapper(MAenv("simple_spread"))\n' in new
    assert new.count("import CompatWrapper") == 1
    assert lines_of(program(text)) == [("train.py", 6, True), ("train.py", 7, True)]
    assert changed(new) == new


@pytest.mark.parametrize(
    "wrapped",
    [
        "env = CompatWrapper(env)\n",
        "env = ActionMappingWrapper(env)\nenv = CompatWrapper(env)\n",
        "other = CompatWrapper(ActionMappingWrapper(env))\n",
        "inner = env.unwrapped\nenv = CompatWrapper(inner)\n",
    ],
)
def test_what_is_wrapped_under_its_name_is_left_alone(wrapped: str) -> None:
    imports = "import gymnasium as gym\nfrom parl.env import ActionMappingWrapper, CompatWrapper\n"
    text = f"{imports}env = gym.make('CartPole-v1')\n{wrapped}{OLD_STEP}"
    assert changed(text) == text
    assert lines_of(program(text)) == []


def test_what_is_wrapped_too_late_or_in_some_cases_alone_is_wrapped_where_it_is_made() -> None:
    imports = "import gymnasium as gym\nfrom parl.env import CompatWrapper\n"
    late = f"{imports}env = gym.make('CartPole-v1')\nenv.seed(0)\nenv = CompatWrapper(env)\nenv.reset()\n"
    assert "env = CompatWrapper(gym.make('CartPole-v1'))\n" in changed(late)
    assert lines_of(program(late)) == [("train.py", 3, True), ("train.py", 4, True)]
    assert changed(changed(late)) == changed(late)
    in_a_class = """\
        import gymnasium as gym
        from parl.env import CompatWrapper

        class Runner:
            def __init__(self, name, test):
                self.env = gym.make(name)
                if not test:
                    self.env = CompatWrapper(self.env)

            def run(self):
                obs, reward, done, info = self.env.step(0)
        """
    assert "self.env = CompatWrapper(gym.make(name))\n" in changed(in_a_class)
    assert changed(changed(in_a_class)) == changed(in_a_class)


def test_a_seed_of_what_has_none_is_reported_where_no_wrapper_can_stand() -> None:
    text = """\
        import gymnasium as gym
        from parl.env import CompatWrapper

        class Negative(gym.RewardWrapper):
            def reward(self, reward):
                return -reward

        env = gym.make("CartPole-v1")
        env.seed(1)
        env = CompatWrapper(Negative(env))
        env.seed(1)
        env.action_space.seed(1)
        obs, reward, done, info = env.step(0)
        """
    assert changed(text) == dedent(text)
    assert lines_of(program(text)) == [("train.py", 9, False)]
    new = "import gymnasium\nenv = gymnasium.make('A')\nenv.seed(1)\nobs, r, te, tr, info = env.step(0)\n"
    assert lines_of(program(new)) == [("train.py", 3, False)]


def test_the_wrapper_goes_around_the_inside_that_takes_the_name_of_an_environment() -> None:
    text = f"import gymnasium as gym\nenv = gym.make('CartPole-v1')\nenv = env.unwrapped\n{OLD_STEP}"
    assert "env = gym.make('CartPole-v1')\nenv = CompatWrapper(env.unwrapped)\n" in changed(text)
    assert changed(changed(text)) == changed(text)
    imports = "import gymnasium as gym\nfrom parl.env import CompatWrapper\n"
    wrapped = f"{imports}env = CompatWrapper(gym.make('CartPole-v1'))\nenv = env.unwrapped\n{OLD_STEP}"
    assert "env = CompatWrapper(env.unwrapped)\n" in changed(wrapped)
    beside = text.replace("env = env.unwrapped", "inside = env.unwrapped")
    assert "env = CompatWrapper(gym.make('CartPole-v1'))\ninside = env.unwrapped\n" in changed(beside)


OWN_WRAPPERS = """\
    import gymnasium as gym
    from parl.env import CompatWrapper

    class Skip(gym.Wrapper):
        def step(self, action):
            obs, reward, done, info = self.env.step(action)
            return obs, reward, done, info

    class Seeded(Skip):
        def seed(self, seed):
            return self.env.seed(seed)

    class Double(gym.RewardWrapper):
        def reward(self, reward):
            return 2 * reward

    class Old(gym.Env):
        def reset(self):
            return 0

        def step(self, action):
            return 0, 0.0, False, {}

    """


def test_attributes_that_wrappers_do_not_pass_on_are_asked_of_what_they_wrap() -> None:
    text = dedent(OWN_WRAPPERS) + dedent(
        """\
        env = Skip(CompatWrapper(gym.make("CartPole-v1")))
        env.seed(0)
        limit = env._max_episode_steps
        Seeded(Old()).seed(1)
        """
    )
    new = changed(text)
    assert 'env.get_wrapper_attr("seed")(0)\nlimit = env.get_wrapper_attr("_max_episode_steps")\n' in new
    assert "Seeded(Old()).seed(1)\n" in new
    assert changed(new) == new


@pytest.mark.parametrize(
    "line",
    [
        "env._max_episode_steps = 5",
        "env._max_episode_steps += 1",
        "del env._max_episode_steps",
        "env._max_episode_steps: int = 5",
        "env.seed, limit = print, 5",
    ],
)
def test_attributes_that_wrappers_do_not_pass_on_are_set_by_hand(line: str) -> None:
    one = program(f'{dedent(OWN_WRAPPERS)}env = Skip(CompatWrapper(gym.make("CartPole-v1")))\n{line}\n')
    (found,) = [finding for finding in report([one])["train.py"] if "set_wrapper_attr" in finding.message]
    assert (one.source.splitlines()[found.line - 1], found.mechanical) == (line, False)
    new = rewrite([one]).get(one.path, one.source)
    assert new.endswith(f"\n{line}\n")
    ast.parse(new)


def test_f_strings_keep_their_quotes() -> None:
    line = 'print(f"{env._max_episode_steps} steps")'
    one = program(f'{dedent(OWN_WRAPPERS)}env = Skip(CompatWrapper(gym.make("CartPole-v1")))\n{line}\n')
    (found,) = [finding for finding in report([one])["train.py"] if "get_wrapper_attr" in finding.message]
    assert (one.source.splitlines()[found.line - 1], found.mechanical) == (line, False)
    assert rewrite([one]).get(one.path, one.source).endswith(f"\n{line}\n")


def test_wrappers_that_unpack_five_values_do_not_stand_around_those_that_return_four() -> None:
    made = (
        'Double(CompatWrapper(gym.make("CartPole-v1")))\n',
        'env = CompatWrapper(gym.make("CartPole-v1"))\nenv = Double(env)\n',
        "Double(Old())\n",
        "env = Old()\nenv = Double(env)\n",
        "CompatWrapper(Double(as_gymnasium(Old())))\n",
    )
    last_lines = [[(26, False)], [(27, False)], [(26, False)], [(27, False)], []]
    for text, expected in zip(made, last_lines, strict=True):
        one = program(dedent(OWN_WRAPPERS) + "\n\n" + text)
        assert [(line, mechanical) for _, line, mechanical in lines_of(one)] == expected
    (told,) = report([program(f"{dedent(OWN_WRAPPERS)}Double(Old())\n")])["train.py"]
    assert "write CompatWrapper(Double(as_gymnasium(Old())))" in told.message


def test_environments_with_gyms_api_need_no_wrapper() -> None:
    text = f"{dedent(OWN_WRAPPERS).replace('from parl.env import CompatWrapper', '')}env = Old()\n{OLD_STEP}"
    assert lines_of(program(text)) == []
    with_seed = text.replace("def reset(self)", "def reset(self, seed=None)")
    assert ("train.py", with_seed.count("\n"), False) in lines_of(program(with_seed))


def test_a_port_is_made_text_where_it_is_added_to_text() -> None:
    text = """\
        import parl
        from parl.utils import get_free_tcp_port
        port = get_free_tcp_port()
        parl.connect("localhost:" + get_free_tcp_port())
        address = host + ":" + port
        following = port + 1
        other = "localhost:" + str(port)
        """
    new = changed(text)
    assert 'parl.connect("localhost:" + str(get_free_tcp_port()))\naddress = host + ":" + str(port)\n' in new
    assert 'following = port + 1\nother = "localhost:" + str(port)\n' in new
    assert changed(new) == new


def test_algorithms_that_take_other_models_are_reported_in_programs_of_parl_2() -> None:
    make = program(
        """\
        from parl.algorithms import COMA, DecisionTransformer, MAPPO
        coma, dt, mappo = COMA(model), DecisionTransformer(model), MAPPO(model)
        """
    )
    assert lines_of(make) == []
    of_parl_2 = {"COMA": "agent.init_hidden(1)", "DecisionTransformer": "model.get_action()", "MAPPO": "f(cent_obs)"}
    for algorithm, use in of_parl_2.items():
        (told,) = report([make, program(f"{use}\n", "other.py")])["train.py"]
        assert (told.line, told.message.partition(" ")[0], told.mechanical) == (2, algorithm, False)


@pytest.mark.parametrize(
    ("made", "is_found"),
    [
        ("SAC(actor, critic, max_action=1.0, gamma=0.99)", True),
        ("SAC(actor, critic, 1.0, gamma=0.99)", True),
        ("TD3(model, max_action=1.0)", True),
        ("SAC(model, gamma=0.99)", False),
        ("SAC(model, 0.99, 0.005)", False),
    ],
)
def test_actor_and_critic_of_sac_are_one_model(made: str, is_found: bool) -> None:
    one = program(f"from parl.algorithms import SAC, TD3\nalg = {made}\n")
    assert lines_of(one) == ([("train.py", 2, False)] if is_found else [])


def test_results_of_static_programs_are_fetched_without_their_names() -> None:
    text = """\
        import parl
        from parl import layers

        class Agent(parl.Agent):
            def build_program(self):
                obs = layers.data(name="obs", shape=[4])
                loss, kl = self.alg.learn(obs)
                self.outputs, self.inputs = [loss.total_loss.name, kl.name], [obs.name]

            def learn(self, obs):
                self.fluid_executor.run(feed={"obs": obs}, fetch_list=[self.loss.name])
                return [self.name]
        """
    new = changed(text)
    assert "self.outputs, self.inputs = [loss.total_loss, kl], [obs.name]\n" in new
    assert "fetch_list=[self.loss])\n" in new
    assert "return [self.name]\n" in new


def test_initializers_of_fluid_are_reported_with_what_takes_their_place() -> None:
    text = "from paddle import fluid\nx = fluid.initializer.ConstantInitializer(0.1)\n"
    told = report([program(text)])["train.py"][-1]
    assert "default_initializer of create_parameter takes the number itself" in told.message


def test_numbers_of_paddle_lose_the_axis_that_they_had() -> None:
    text = """\
        import paddle
        import parl

        class Agent(parl.Agent):
            def predict(self, obs):
                pred_q = self.alg.predict(obs)
                return pred_q.argmax().numpy()[0], pred_q.argmax(axis=1).numpy()[0], pred_q.numpy()[0]

            def learn(self, *batch):
                critic_loss, actor_loss = self.alg.learn(*batch)
                return critic_loss.cpu().numpy()[0], actor_loss.numpy()[0]

            def vtrace(self, *batch):
                vtrace_loss, kl = self.alg.learn(*batch)
                pi_loss = vtrace_loss.pi_loss
                return vtrace_loss.vf_loss.numpy()[0], kl.numpy()[0], pi_loss.numpy()[0], self.learn(*batch).numpy()[0]
        """
    new = changed(text)
    assert "return pred_q.argmax().numpy().item(), pred_q.argmax(axis=1).numpy()[0], pred_q.numpy()[0]\n" in new
    assert "return critic_loss.cpu().numpy().item(), actor_loss.numpy().item()\n" in new
    assert (
        "return vtrace_loss.vf_loss.numpy().item(), kl.numpy().item(), pi_loss.numpy().item(), "
        "self.learn(*batch).numpy().item()\n" in new
    )
    assert [line for _, line, _ in lines_of(program(text))] == [7, *[11] * 2, *[16] * 4]
    assert changed(text.replace("import paddle", "import torch")) == dedent(
        text.replace("import paddle", "import torch")
    )


def test_the_mode_of_render_is_an_argument_of_make() -> None:
    one = program("import gym\nenv = gym.make('CartPole-v1')\nenv.render(mode='rgb_array')\nenv.render()\n")
    assert [(finding.line, finding.message) for finding in report([one])[one.path]][1:] == [
        (3, "render() takes no mode: pass render_mode to gym.make(...)")
    ]
    assert lines_of(program("import folium\nfolium.render(mode='x')\n")) == []


def test_ids_of_atari_name_the_package_that_has_them() -> None:
    text = "config = {'env': 'PongNoFrameskip-v4', 'other': r\"\"\"PongDeterministic-v4\"\"\"}\n"
    new = changed(text)
    assert new == text.replace("Pong", "ale_py:Pong")
    assert lines_of(program(text)) == [("train.py", 1, True)] * 2
    assert changed(new) == new
    text = "name = '\\x50ongNoFrameskip-v4', 'Pong-v4'\n"
    assert changed(text) == text


def test_what_was_different_on_paddle_is_not_told_to_programs_of_torch() -> None:
    text = "import parl\nimport {}\nvalue, action, log_prob, entropy = alg.sample(obs); action = action.numpy()[0]\n"
    assert [lines_of(program(text.format(name))) for name in ("torch", "paddle")] == [[], [("train.py", 3, False)]]


def test_programs_of_gymnasium_stay_as_they_are() -> None:
    text = "import gymnasium as gym\nenv = gym.make('A')\nobs, _ = env.reset()\no, r, te, tr, i = env.step(0)\n"
    assert changed(text) == text
    assert lines_of(program(text)) == []


def test_methods_get_the_names_that_they_have_now_in_programs_of_parl_alone() -> None:
    text = """\
        import parl

        class Mine(parl.Algorithm):
            def define_learn(self, obs):
                self.model.sync_params_to(self.target.a.b, decay=0.5)
                return self.get_params()
        """
    new = changed(text)
    assert "def learn(self, obs)" in new
    assert "self.model.sync_weights_to(self.target.a.b, decay=0.5)" in new
    assert "self.get_weights()" in new
    other = "from sklearn.svm import SVC\nSVC().get_params()\n"
    assert changed(other) == other


def test_methods_of_objects_that_may_be_of_others_are_reported_alone() -> None:
    text = """\
        import copy
        import parl
        from parl.algorithms import DQN
        from sklearn.svm import SVC
        from somewhere import CartpoleAgent, Base

        class Net(parl.Model):
            pass

        class Mine(parl.Algorithm):
            def __init__(self, model):
                self.model = model
                self.target_model = copy.deepcopy(model)
                self.clf = SVC()

            def params(self):
                params = self.model.get_params(), self.target_model.get_params()  # renamed
                return params, self.clf.get_params()  # reported

        class Child(Mine):
            def get_params(self):  # renamed
                return super().get_params()  # renamed

        class Replaced(parl.Agent):
            def __init__(self):
                self.model = SVC()

            def params(self):
                return self.alg.model.get_params()  # renamed

            def others(self):
                return self.model.get_params()  # reported

        @parl.remote_class
        class Actor(object):
            def __init__(self, clf):
                self.clf = clf

            def get_params(self):
                return self.clf.get_params()  # reported

        class Maybe(Base):
            def set_params(self, params):  # reported
                self.set_params(params)  # reported

        model = Net()
        target = copy.deepcopy(model)
        target.set_params(model.get_params())  # renamed
        agent = parl.Agent(DQN(model))
        agent.alg.model.set_params(agent.get_params())  # renamed
        agent = CartpoleAgent()
        agent.get_params()  # reported
        actor = Actor()
        actor.get_params()
        SVC().get_params()  # reported

        def run(model):
            model.get_params()  # reported
        """
    assert lines_of(program(text.replace("parl", "other"))) == []
    one, old = program(text), dedent(text).splitlines()
    new = changed(text).splitlines()
    assert [line for line, after in zip(old, new, strict=True) if line != after] == [
        line for line in old if line.endswith("renamed")
    ]
    assert not [line for line in new if line.endswith("renamed") and "_params" in line.replace("def params", "")]
    reported = [finding for finding in report([one])[one.path] if not finding.mechanical]
    assert [old[finding.line - 1] for finding in reported] == [line for line in old if line.endswith("reported")]
    assert reported[0].message == "get_params is now get_weights, if this object is a model, algorithm or agent of PARL"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(target, gpu_id=0)", "(target)"),
        ("(target, 0, 0.9)", "(target, 0.9)"),
        ("(target, self.gpu_id)", "(target)"),
        ("(target, gpu_id=0, decay=0.9)", "(target, decay=0.9)"),
        ("(gpu_id=0, target_net=target)", "(target_model=target)"),
        ("(\n    target,\n    gpu_id=0,\n    decay=0.9)", "(\n    target,\n    \n    decay=0.9)"),
        ("(\n    target,\n    gpu_id=0)", "(\n    target,\n    )"),
        ("(*targets)", "(*targets)"),
    ],
)
def test_models_are_copied_without_the_number_of_a_gpu(old: str, new: str) -> None:
    made = "import parl\nmodel = parl.Model()\n"
    assert changed(f"{made}model.sync_params_to{old}\n") == f"{made}model.sync_weights_to{new}\n"
    ast.parse(f"model.sync_weights_to{new}")


def test_arguments_of_layers_that_have_no_effect_are_dropped() -> None:
    new = changed(
        """\
        from parl import layers
        x = layers.conv_2d(8, 3, use_cudnn=False, act="relu", name="first")
        y = layers.relu(x, name="active")
        z = layers.softmax_with_cross_entropy(x, y, numeric_stable_mode=True, name="loss")
        def relu(x, name): ...
        relu(x, name="own")
        """
    )
    assert new == dedent(
        """\
        from parl import layers
        x = layers.conv_2d(8, 3, act="relu", name="first")
        y = layers.relu(x)
        z = layers.softmax_with_cross_entropy(x, y, )
        def relu(x, name): ...
        relu(x, name="own")
        """
    )
    ast.parse(new)


def test_arguments_of_layers_that_are_gone_are_reported_with_what_to_do_without_them() -> None:
    one = program(
        """\
        import parl
        fc = parl.layers.fc(8, param_attr=attr, act="relu")
        fc = parl.layers.fc(8, param_attr=None)
        x = parl.layers.elementwise_add(x, y, axis=0, act="relu")
        table = parl.layers.embedding(
            size=[8, 4],
            padding_idx=0,
        )
        other.layers.fc(8, param_attr=attr)
        """
    )
    assert [(finding.line, finding.message.partition(":")[0]) for finding in report([one])[one.path]] == [
        (2, "fc of parl.layers has no param_attr"),
        (4, "elementwise_add of parl.layers has no act"),
        (7, "embedding of parl.layers has no padding_idx"),
    ]


def test_a_created_parameter_is_no_longer_called() -> None:
    new = changed(
        """\
        import parl

        class Policy(parl.Model):
            def __init__(self):
                self.log_std = parl.layers.create_parameter([2], "float32", name="std")
                self.fc = parl.layers.fc(2)

            def policy(self, obs):
                return self.fc(obs), self.log_std()
        """
    )
    assert new.splitlines()[-1].strip() == "return self.fc(obs), self.log_std"


def test_ids_of_models_are_reported() -> None:
    text = "import parl\nalg = parl.algorithms.DQN(model)\nalg.get_model_ids(), alg.model_ids, other.model_ids\n"
    (found,) = report([program(text)]).values()
    assert [finding.message for finding in found] == [
        "get_model_ids is gone: use get_model_id() of each model",
        "model_ids is gone: use model_id of each model",
    ]


def test_what_is_gone_is_named_with_what_took_its_place() -> None:
    one = program(
        """\
        import parl
        from paddle.fluid import layers
        from parl.remote.master import Master
        from parl.utils.utils import to_str
        from parl.utils import isnotebook
        import parl.utils.utils as u

        parl.logger(1)
        u.kill_process("x")
        """
    )
    messages = [finding.message for finding in report([one])[one.path]]
    words = ["fluid", "parl.remote.master", "to_str", "isnotebook", "parl.logger", "kill_process"]
    assert len(messages) == len(words)
    assert all(word in message for word, message in zip(words, messages, strict=True))
    assert rewrite([one]) == {}


@pytest.mark.parametrize(
    ("imported", "fluid"),
    [
        ("from paddle import fluid", "fluid"),
        ("import paddle.fluid as fluid", "fluid"),
        ("from paddle import fluid as f", "f"),
        ("import paddle.fluid", "paddle.fluid"),
    ],
)
def test_static_programs_of_fluid_become_those_of_paddle(imported: str, fluid: str) -> None:
    one = program(
        f"""\
        {imported}
        import parl

        class Agent(parl.Agent):
            def build_program(self):
                self.program = {fluid}.Program()
                with {fluid}.program_guard(self.program, {fluid}.default_startup_program()):
                    {fluid}.optimizer.AdamOptimizer(1e-3, regularization=None).minimize(1, parameter_list=None)
                    {fluid}.optimizer.DecayedAdagrad(1e-3)
                    {fluid}.layers.fc(1, size=2)
                    {fluid}.dygraph.guard()
        """
    )
    (new,) = rewrite([one]).values()
    assert new == dedent(
        f"""\
        import paddle
        import parl

        class Agent(parl.Agent):
            def build_program(self):
                self.program = paddle.static.Program()
                with paddle.static.program_guard(self.program, paddle.static.default_startup_program()):
                    paddle.optimizer.Adam(1e-3, weight_decay=None).minimize(1, parameters=None)
                    {fluid}.optimizer.DecayedAdagrad(1e-3)
                    {fluid}.layers.fc(1, size=2)
                    {fluid}.dygraph.guard()
        """
    )
    by_hand = [(one.line, one.message) for one in report([one])[one.path] if not one.mechanical]
    assert [line for line, _ in by_hand] == [9, 10, 11]
    words = ["DecayedAdagrad is gone: use paddle.optimizer", "fluid.layers.fc is gone: parl.layers", "table"]
    assert all(word in message for word, (_, message) in zip(words, by_hand, strict=True))


def test_parts_of_fluid_that_paddle_has_kept_get_their_place_there() -> None:
    text = """\
        import paddle.fluid as fluid
        import parl

        place = fluid.CUDAPlace(0) if gpu else fluid.CPUPlace()
        weight = fluid.ParamAttr(name="w")
        obs = fluid.data(name="obs", shape=[None, 4])
        with fluid.scope_guard(fluid.Scope()):
            reader = fluid.layers.py_reader(capacity=32)
            fluid.io.save_params(executor, "folder")
            runs = fluid.ParallelExecutor(True)
            many = fluid.CompiledProgram(program).with_data_parallel(build_strategy=fluid.BuildStrategy())
        """
    new = changed(text)
    assert "place = paddle.CUDAPlace(0) if gpu else paddle.CPUPlace()\n" in new
    assert 'weight = paddle.ParamAttr(name="w")\nobs = paddle.static.data(name="obs"' in new
    assert "with paddle.static.scope_guard(paddle.static.Scope()):\n" in new
    (found,) = report([program(text)]).values()
    by_hand = [
        (finding.line, finding.message.partition(" is gone: ")[2]) for finding in found if not finding.mechanical
    ]
    assert [line for line, _ in by_hand] == [8, 9, 10, 11, 11]
    words = ("feed={...}", "agent.save", *["paddle.distributed.launch"] * 3)
    assert "many = fluid.CompiledProgram(program).with_data_parallel(build_strategy=fluid.BuildStrategy())\n" in new
    assert all(word in message for word, (_, message) in zip(words, by_hand, strict=True))


def test_a_static_program_is_used_without_being_compiled() -> None:
    text = """\
        import parl

        self.learn_program = parl.compile(self.learn_program, loss=cost)
        other = parl.compile(program=program)
        """
    one = program(text)
    assert lines_of(one) == [("train.py", 3, True), ("train.py", 4, False)]
    assert "self.learn_program = self.learn_program\n" in changed(text)
    assert "parl.compile(program=program)" in changed(text)


@pytest.mark.parametrize("line", ["parl.compile(*args)", "parl.compile(a if b else c, loss).x", "parl.compile(a or b)"])
def test_a_compiled_expression_that_cannot_stand_alone_is_reported(line: str) -> None:
    text = f"import parl\n{line}\n"
    assert changed(text) == text
    assert lines_of(program(text)) == [("train.py", 2, False)]


def test_the_state_of_a_worker_is_told_once_whichever_way_a_program_names_it() -> None:
    text = """\
        import parl
        from parl.remote import WorkerStatus
        from parl.remote.status import WorkerStatus
        print(parl.remote.WorkerStatus)
        print(parl.remote.status.WorkerStatus)
        """
    (found,) = report([program(text)]).values()
    assert [finding.line for finding in found] == [2, 3, 4, 5]
    assert all("LoopbackCluster" in finding.message for finding in found)


def test_lines_and_columns_are_those_of_python() -> None:
    text = "import parl\r\nname = 'näme\x0c'; parl.Model().get_params()  # ü\r\nx = 1\x0c\r\nimport gym\r\n"
    new = changed(text)
    assert new == text.replace("get_params", "get_weights").replace("import gym", "import gymnasium as gym")
    ast.parse(new)


def test_the_command_shows_a_diff_and_writes_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "train.py"
    file.parent.mkdir()
    file.write_text(dedent(OLD_LOOP))
    run = CliRunner()
    shown = run.invoke(parl, ["migrate", str(tmp_path)])
    assert shown.exit_code == 0
    assert f"{file}:3: gym is now Gymnasium" in shown.stdout
    assert "+import gymnasium as gym" in shown.stdout
    assert "1 file: 1 would change with --write, 0 lines to change by hand" in shown.stderr
    assert "import gym\n" in file.read_text()
    written = run.invoke(parl, ["migrate", "--write", str(file)])
    assert written.exit_code == 0
    assert "CompatWrapper(gym.make(" in file.read_text()
    assert run.invoke(parl, ["migrate", str(file)]).stdout == ""


def test_files_of_other_projects_in_a_folder_are_left_out(tmp_path: Path) -> None:
    project = tmp_path / ".work" / "project"  # a hidden folder above the one that is named does not count
    inside = ("a.py", "deep/b.py", "venv/site.py")
    others = (".venv/c.py", "env/lib/d.py", "conda/e.py", "vendor/site-packages/f.py", "__pycache__/g.py")
    for name in (*inside, *others):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("import gym\n")
    (project / "env" / "pyvenv.cfg").touch()
    (project / "conda" / "conda-meta").mkdir()
    assert CliRunner().invoke(parl, ["migrate", "--write", str(project)]).exit_code == 0
    assert [name for name in (*inside, *others) if "gymnasium" in (project / name).read_text()] == [*inside]


def test_lines_are_numbered_as_the_written_file_has_them(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{dedent(OLD_LOOP)}\nparl.logger(1)\n")
    written = CliRunner().invoke(parl, ["migrate", "--write", str(file)])
    lines = file.read_text().splitlines()
    numbers = [int(row.split(":")[1]) for row in written.stdout.splitlines()]
    assert [lines[number - 1].strip() for number in numbers] == [
        "import gymnasium as gym",
        "obs, reward, done, info = env.step(agent.sample(obs))",
        "parl.logger(1)",
    ]


def test_a_folder_without_programs_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(parl, ["migrate", str(tmp_path)])
    assert result.exit_code == 1
    assert f"no Python file in {tmp_path}" in result.stderr


def test_what_is_left_to_do_is_the_exit_status(tmp_path: Path) -> None:
    file = tmp_path / "old.py"
    file.write_text("import parl\nparl.logger(1)\n")
    result = CliRunner().invoke(parl, ["migrate", str(file)])
    assert result.exit_code == 1
    assert "1 line to change by hand" in result.stderr


def test_files_that_cannot_be_read_are_named_beside_the_report_of_the_others(tmp_path: Path) -> None:
    for name, content in {"a.py": "print 'two'\n", "b.py": "import parl\nparl.logger(1)\n", "c.py": "x = \n"}.items():
        (tmp_path / name).write_text(content)
    result = CliRunner().invoke(parl, ["migrate", str(tmp_path)])
    assert result.exit_code == 1
    assert f"{tmp_path / 'b.py'}:2:" in result.stdout
    for name in ("a.py", "c.py"):
        assert f"{tmp_path / name} is not Python 3 in UTF-8" in result.stderr
    assert "2 files not read" in result.stderr


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("old.py", b"print 'two'\n", "is not Python 3 in UTF-8"),
        ("old.py", b"\xff\xfe", "is not Python 3 in UTF-8"),
        ("old.py", b"x = 1\0\n", "is not Python 3 in UTF-8"),
        ("old.ipynb", b'{"cells": [{"cell_type": "code", "source": ["import gym"]}]}', "is a notebook: make a script"),
    ],
)
def test_what_is_no_python_is_an_error_of_one_line(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    result = CliRunner().invoke(parl, ["migrate", str(file)])
    assert result.exit_code == 1
    assert f"{file} {said}" in result.stderr
    assert result.stdout == ""


def test_a_byte_order_mark_stays_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "old.py"
    file.write_bytes(b"\xef\xbb\xbfimport gym\n")
    shown = CliRunner().invoke(parl, ["migrate", str(file)])
    assert "-\ufeffimport gym\n+\ufeffimport gymnasium as gym\n" in shown.stdout
    assert CliRunner().invoke(parl, ["migrate", "--write", str(file)]).exit_code == 0
    assert file.read_bytes() == b"\xef\xbb\xbfimport gymnasium as gym\n"


@pytest.mark.parametrize(
    "content",
    [
        b"import os\n\x0c\nimport gym\n\x0c\nx = 'a\xe2\x80\xa8b'\n",
        b"import gym",
        b"import gym\n\nprint(gym)",
        b"import gym\r\nprint(gym)\r\n",
        b"\xef\xbb\xbfimport gym\n",
        b"import os\rimport gym\rprint(gym)\r",
    ],
    ids=["form feed", "no newline", "no newline below", "windows", "byte order mark", "old mac"],
)
def test_patch_makes_of_the_diff_what_the_command_writes(tmp_path: Path, content: bytes) -> None:
    written, patched = tmp_path / "written.py", tmp_path / "patched.py"
    for file in (written, patched):
        file.write_bytes(content)
    assert CliRunner().invoke(parl, ["migrate", "--write", str(written)]).exit_code == 0
    diff = CliRunner().invoke(parl, ["migrate", str(patched)]).stdout_bytes
    if (patch := shutil.which("patch")) is None:
        pytest.skip("there is no patch")
    subprocess.run([patch, "--binary", "--fuzz=0", str(patched)], input=diff, check=True, capture_output=True)
    assert patched.read_bytes() == written.read_bytes() != content


def test_a_link_stays_a_link_and_its_file_is_changed_once(tmp_path: Path) -> None:
    file, link = tmp_path / "train.py", tmp_path / "main.py"
    file.write_text("import gym\n")
    link.symlink_to(file.name)
    done = CliRunner().invoke(parl, ["migrate", "--write", str(tmp_path)])
    assert done.exit_code == 0
    assert "1 file: 1 changed" in done.stderr
    assert link.is_symlink()
    assert file.read_text() == "import gymnasium as gym\n"


def test_what_cannot_be_opened_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / ".#train.py").symlink_to("somebody@somewhere")  # an editor's lock
    (tmp_path / "deep.py").write_text(f"x = {'-' * 3000}1\n")
    (tmp_path / "train.py").write_text("import gym\n")
    done = CliRunner().invoke(parl, ["migrate", str(tmp_path)])
    assert done.exit_code == 1
    assert "+import gymnasium as gym" in done.stdout
    assert f"{tmp_path / '.#train.py'} cannot be read: No such file or directory" in done.stderr
    assert f"{tmp_path / 'deep.py'} has an expression that is nested too deeply" in done.stderr
    assert "2 files not read" in done.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'''Trains.'''; import gym", "'''Trains.'''; from parl.env import CompatWrapper; import gymnasium as gym"),
        (
            "from __future__ import annotations; import gym",
            "from __future__ import annotations; from parl.env import CompatWrapper; import gymnasium as gym",
        ),
        (
            "@print\nclass Empty: pass\nimport gym",
            "from parl.env import CompatWrapper\n@print\nclass Empty: pass\nimport gymnasium as gym",
        ),
    ],
    ids=["docstring", "future", "decorator"],
)
def test_the_import_of_the_wrapper_is_the_first_statement_that_may_be(old: str, new: str) -> None:
    loop = "\nenv = {}\nobs, reward, done, info = env.step(0)\n"
    assert changed(old + loop.format("gym.make('A')")) == new + loop.format("CompatWrapper(gym.make('A'))")


def test_a_program_that_takes_the_rest_of_a_step_in_a_list_may_have_either_api() -> None:
    new_api = "import gymnasium as gym\nenv = gym.make('A')\nobs, info = env.reset()\n"
    assert changed(new_api + "obs, reward, terminated, *rest = env.step(0)\n") == (
        new_api + "obs, reward, terminated, *rest = env.step(0)\n"
    )
    old_api = "import gym\nenv = gym.make('A')\n[obs, reward, done, info] = env.step(0)\n"
    assert "CompatWrapper(gym.make('A'))" in changed(old_api)


def test_a_step_may_be_unpacked_after_it_has_a_name() -> None:
    old = """\
        import gym
        env: gym.Env = gym.make('A')
        env.seed(1)
        taken = env.step(0)
        obs, reward, done, info = taken
        """
    assert lines_of(program(old)) == [("train.py", line, True) for line in (1, 3, 5)]
    assert "CompatWrapper(gym.make('A'))" in changed(old)
    assert "CompatWrapper" not in changed(old.replace("done, info", "done, _, info").replace("env.seed(1)", "pass"))
    assert "CompatWrapper" not in changed(old.replace("taken\n", "other\n").replace("env.seed(1)", "pass"))


def test_an_environment_that_is_used_before_its_inside_takes_its_name_gets_a_wrapper() -> None:
    text = """\
        import gym
        env = gym.make('A')
        obs, reward, done, info = env.step(0)
        env = env.unwrapped
        """
    new = changed(text)
    assert "env = CompatWrapper(gym.make('A'))\n" in new
    assert "env = CompatWrapper(env.unwrapped)\n" in new
    assert changed(new) == new


def test_wrappers_that_take_other_arguments_in_gymnasium_are_reported() -> None:
    text = """\
        import gymnasium as gym
        from gymnasium.wrappers import ResizeObservation, TransformObservation
        env = TransformObservation(gym.make('A'), abs)
        env = TransformObservation(gym.make('A'), abs, None)
        env = gym.wrappers.TransformObservation(gym.make('A'), abs, observation_space=None)
        env = ResizeObservation(gym.make('A'), 84)
        env = ResizeObservation(gym.make('A'), (84, 84))
        """
    assert lines_of(program(text)) == [("train.py", 3, False), ("train.py", 6, False)]


def test_a_notebook_in_a_folder_is_named_if_it_uses_gym_or_parl(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import gym\n")
    for name, line in (("one.ipynb", "import gym"), ("two.ipynb", "import gymnasium")):
        (tmp_path / name).write_text(f'{{"cells": [{{"cell_type": "code", "source": ["{line}"]}}]}}')
    done = CliRunner().invoke(parl, ["migrate", str(tmp_path)])
    assert done.exit_code == 1
    assert f"{tmp_path / 'one.ipynb'} is a notebook: make a script of it" in done.stderr
    assert "two.ipynb" not in done.stderr
    assert "1 file: 1 would change with --write" in done.stderr


def test_what_python_would_warn_of_is_read() -> None:
    assert changed("import gym\nx = '\\d'\n") == "import gymnasium as gym\nx = '\\d'\n"


def test_what_is_written_in_parts_is_reported() -> None:
    found = lines_of(program("from \\\n    gym import spaces\nimport gym\nenv = gym.make('Pendulum' '-v0')\n"))
    assert found == [("train.py", 1, False), ("train.py", 3, True), ("train.py", 4, False)]


@pytest.mark.parametrize(
    ("content", "end"),
    [
        (b"# -*- coding: latin-1 -*-\nimport gym  # caf\xe9\n", b"\n"),
        (b"import gym\r\n", b"\r\n"),
    ],
)
def test_what_is_written_has_the_encoding_and_the_ends_of_lines_of_the_file(
    tmp_path: Path, content: bytes, end: bytes
) -> None:
    file = tmp_path / "old.py"
    steps = b"obs, r, done, _ = gym.make('A').step(0)" + end
    file.write_bytes(content + steps)
    assert CliRunner().invoke(parl, ["migrate", "--write", str(file)]).exit_code == 0
    new = content.replace(b"import gym", b"from parl.env import CompatWrapper" + end + b"import gymnasium as gym")
    assert file.read_bytes() == new + steps.replace(b"gym.make('A')", b"CompatWrapper(gym.make('A'))")


def test_the_axis_that_actions_of_ppo_had_is_told_where_the_program_takes_it_away() -> None:
    text = """\
        import paddle
        import parl

        class Agent(parl.Agent):
            def sample(self, obs):
                value, action, log_prob, entropy = self.alg.sample(obs)
                first = value.numpy()[0], entropy.numpy()[0]
                return action.detach().numpy()[0], log_prob.numpy()[0]

            def sample_all(self, obs):
                value, action, log_prob, entropy = self.alg.sample(obs)
                return action.numpy(), action.numpy()[1]
        """
    (found,) = report([program(text)]).values()
    assert [(finding.line, finding.message.partition(" ")[0]) for finding in found] == [(8, "PPO.sample")] * 2


def test_an_algorithm_is_known_by_the_class_that_made_it() -> None:
    text = """\
        import parl
        from parl.algorithms import A2C

        alg = A2C(model, vf_loss_coeff=0.5)
        alg.learn(obs, act, adv, value, lr=1e-3, entropy_coeff=-0.01)
        ppo = parl.algorithms.PPO(model)
        ppo.learn(obs, act, value, returns, log_prob, adv, lr=1e-3)

        class Agent(parl.Agent):
            def learn(self, *batch):
                self.alg.learn(*batch, lr=self.lr, entropy_coeff=-0.01)

            def run(self, agent):
                agent.learn(1, lr=1, entropy_coeff=2)

        def run(alg):
            alg.learn(1, lr=1)
        """
    one = program(text)
    assert lines_of(one) == [("train.py", 5, True), ("train.py", 11, False)]
    assert "alg.learn(obs, act, adv, value, learning_rate=1e-3, entropy_coeff=-0.01)\n" in rewrite([one])["train.py"]


def test_steps_of_parl_2_that_learn_does_not_call_are_found_where_a_subclass_defines_them() -> None:
    text = """\
        import parl

        class Own(parl.algorithms.TD3):
            def _critic_learn(self, obs, action, reward, next_obs, terminal):
                return 0.0

        class Whole(parl.algorithms.TD3):
            def learn(self, *batch):
                return self._critic_learn(*batch)

            def _critic_learn(self, *batch):
                return 0.0

        class Other(parl.Algorithm):
            def _actor_learn(self, obs):
                return 0.0
        """
    (found,) = report([program(text)]).values()
    assert [(finding.line, finding.message.partition(":")[0]) for finding in found] == [
        (4, "learn does not call _critic_learn")
    ]


def test_steps_of_the_optimizers_of_algorithms_are_found_where_they_are_taken_by_hand() -> None:
    text = """\
        import parl
        import torch
        from parl.algorithms import DDPG

        class Own(DDPG):
            def learn(self, obs):
                loss = self.model(obs)
                self.critic_optimizer.zero_grad()
                loss.backward()
                self.critic_optimizer.step()
                return loss

        class OwnAgain(Own):
            def learn(self, obs):
                self.critic_optimizer.minimize(loss)
                self.actor_optimizer.clear_grad()

        class WithItsOwn(DDPG):
            def __init__(self, model):
                self.optimizer = torch.optim.SGD(model.parameters(), 0.1)

            def learn(self, obs):
                self.optimizer.zero_grad()
                self.optimizer.step()

        class Other(parl.Algorithm):
            def learn(self, obs):
                self.optimizer.step()

        class Agent(parl.Agent):
            def learn(self, obs):
                self.alg.optimizer.step()
                self.env.step(obs)

        alg = DDPG(None, gamma=0.9, tau=0.01)
        alg.critic_optimizer.step()
        other = Other(None)
        other.optimizer.step()
        torch.save(alg.actor_optimizer.state_dict(), "file")
        torch.optim.lr_scheduler.LinearLR(alg.actor_optimizer)
        torch.optim.lr_scheduler.LinearLR(other.optimizer)
        """
    (found,) = report([program(text)]).values()
    lines = {finding.line: finding.message for finding in found}
    steps = "write minimize(loss) for zero_grad() or clear_grad(), loss.backward() and step()"
    assert lines == {
        8: f"optimizers of parl.algorithms have no zero_grad: {steps}",
        10: f"optimizers of parl.algorithms have no step: {steps}",
        16: f"optimizers of parl.algorithms have no clear_grad: {steps}",
        32: f"optimizers of parl.algorithms have no step: {steps}, if self.alg is one of them and optimizer is its own",
        36: f"optimizers of parl.algorithms have no step: {steps}",
        39: "optimizers of parl.algorithms have no state_dict: use get_state()",
        40: "PyTorch's schedulers take no optimizer of parl.algorithms: pass a schedule as the algorithm's lr, or call "
        "set_lr",
    }
    assert not any(finding.mechanical for finding in found)
    assert lines_of(program("import torch\n\ndef step(trainer):\n    trainer.alg.optimizer.step()\n")) == []


def test_attributes_of_algorithms_that_are_gone_are_found_unless_the_program_defines_them() -> None:
    text = """\
        import parl

        class Own(parl.algorithms.CQL):
            target_action_gap = 1.0

            def __init__(self, model):
                super().__init__(model, gamma=0.9)
                self.num_random = 5

            def learn(self, obs):
                return self.alpha_prime * self.num_random * self.target_action_gap + self._critic_learn(obs)

        alg = parl.algorithms.DQN(None, gamma=0.9, lr=1e-3)
        loss = alg.mse_loss(1, 2)
        print(Own(None).num_random, Own(None).log_alpha_prime, loss.mse_loss)
        """
    (found,) = report([program(text)]).values()
    assert [(finding.line, finding.message.partition(":")[0]) for finding in found] == [
        (11, "_critic_learn is gone"),
        (11, "alpha_prime is gone"),
        (14, "mse_loss is gone"),
        (15, "log_alpha_prime is gone"),
    ]


def test_attributes_of_the_client_that_are_gone_are_found() -> None:
    text = """\
        import parl
        from parl.remote.client import get_global_client

        client = parl.get_global_client()
        client.destroy()
        get_global_client().destroy()
        window.destroy()
        assert client.master_is_alive
        print(client.master_address)
        """
    (found,) = report([program(text)]).values()
    assert [(finding.line, finding.message) for finding in found] == [
        (5, "get_global_client().destroy is gone: use parl.disconnect()"),
        (6, "get_global_client().destroy is gone: use parl.disconnect()"),
        (8, "get_global_client().master_is_alive is gone: use is_gone, its opposite"),
        (9, "get_global_client().master_address is gone: use address"),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import gym\nenv = gym.wrappers.Monitor(env, 'folder')\n", 2),
        ("from gym.wrappers import Monitor, TimeLimit\n", 1),
        ("from gymnasium.wrappers import Monitor\n", 1),
        ("from gym import wrappers\nenv = wrappers.Monitor(env, 'folder')\n", 2),
    ],
)
def test_the_monitor_of_gym_is_left_to_the_programmer(text: str, line: int) -> None:
    assert ("train.py", line, False) in lines_of(program(text))
    assert "from gymnasium.wrappers import Monitor" not in rewrite([program(text)]).get("train.py", "")


def test_wrappers_of_gym_are_found_in_the_module_that_gymnasium_has() -> None:
    assert changed("from gym.wrappers.time_limit import TimeLimit\n") == "from gymnasium.wrappers import TimeLimit\n"
    same = "from gymnasium.wrappers.atari_preprocessing import AtariPreprocessing\n"
    assert changed(same.replace("gymnasium", "gym")) == same


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("from gym.wrappers import FrameStack\n", "FrameStackObservation"),
        ("from gym.wrappers.frame_stack import LazyFrames\n", "numpy.asarray"),
        ("import gym\ngym.wrappers.GrayScaleObservation(env)\n", "GrayscaleObservation"),
        ("import gym\nclass Goals(gym.GoalEnv): ...\n", "gymnasium-robotics"),
        ("from gym.core import GoalEnv\n", "gymnasium-robotics"),
        ("import gym\ngym.logger.set_level(40)\n", "min_level"),
        ("from gym.wrappers.monitoring.video_recorder import VideoRecorder\n", "RecordVideo"),
        ("from gym.envs.classic_control import rendering\n", "pygame"),
        ("from gym.envs.toy_text import discrete\n", "gymnasium.Env"),
        ("from gym.envs.registration import registry\nregistry.all()\n", "dictionary"),
        ("from gym.utils import seeding\nseeding.hash_seed(1)\n", "SeedSequence"),
        ("import gym\ngym.vector.make('A', num_envs=2)\n", "make_vec"),
    ],
)
def test_names_of_gym_that_gymnasium_lacks_are_reported_with_what_it_has(text: str, word: str) -> None:
    (found,) = report([program(text)]).values()
    assert [word in finding.message for finding in found if not finding.mechanical] == [True]


def test_the_generator_of_an_environment_gets_the_methods_that_it_has_in_gymnasium() -> None:
    text = """\
        import gymnasium as gym

        class Own(gym.Env):
            def reset(self):
                self.goal = self.np_random.randint(0, 10, size=(2,))
                noise = self.np_random.rand() + env.np_random.randn(4)
                other = np.random.randint(3) + self.rng.rand()
                return np_random.random_sample((2, 3)), self.np_random.uniform(0, 1)
        """
    new = changed(text)
    assert "self.np_random.integers(0, 10, size=(2,))\n" in new
    assert "self.np_random.random() + env.np_random.standard_normal(4)\n" in new
    assert "np.random.randint(3) + self.rng.rand()\n" in new
    assert "np_random.random((2, 3)), self.np_random.uniform(0, 1)\n" in new
    by_hand = program("import gym\nself.np_random.rand(2, 3)\nself.np_random.randn(*shape)\n")
    assert lines_of(by_hand)[1:] == [("train.py", 2, False), ("train.py", 3, False)]


@pytest.mark.parametrize(
    "made",
    [
        "self.np_random = np.random.RandomState(seed)",
        "self.np_random: RandomState = RandomState(seed)",
        "self.np_random, self.seeds = numpy.random.RandomState(seed), [seed]",
        "self.np_random = self.other = rng or np.random.RandomState()",
    ],
)
def test_a_generator_of_the_environments_own_keeps_its_methods(made: str) -> None:
    text = f"""\
        import gymnasium as gym

        class Own(gym.Env):
            def reset(self):
                return self.np_random.randint(0, 5) + self.np_random.rand(2, 3)

            def seed(self, seed=None):
                {made}
        """
    assert changed(text) == dedent(text)
    assert lines_of(program(text)) == []
    outside = f"{dedent(text)}env.np_random.randint(0, 5)\n"
    assert changed(outside) == outside
    assert lines_of(program(outside)) == [("train.py", 9, False)]


@pytest.mark.parametrize("line", ["from numpy import random as np_random", "from .generators import np_random"])
def test_an_imported_generator_keeps_its_methods(line: str) -> None:
    text = f"import gymnasium\n{line}\nnp_random.randint(0, 5)\n"
    assert changed(text) == text
    assert lines_of(program(text)) == []
    of_gym = "from gymnasium.utils.seeding import np_random\nself.np_random.randint(0, 5)\n"
    assert changed(of_gym) == of_gym.replace("randint", "integers")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("HalfCheetah-v2", "HalfCheetah-v5"),
        ("Walker2d-v3", "Walker2d-v5"),
        ("Ant-v4", "Ant-v4"),
        ("Pendulum-v0", "Pendulum-v1"),
        ("CliffWalking-v0", "CliffWalking-v1"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("BipedalWalkerHardcore-v2", "BipedalWalkerHardcore-v3"),
        ("Taxi-v3", "Taxi-v4"),
        ("CartPole-v0", "CartPole-v0"),
        ("InvertedPendulum-v0", "InvertedPendulum-v5"),
        ("halfcheetah-medium-v2", "halfcheetah-medium-v2"),
    ],
)
def test_ids_that_gymnasium_refuses_are_replaced(old: str, new: str) -> None:
    assert changed(f"env = make('{old}')\n") == f"env = make('{new}')\n"


def test_versions_that_gymnasium_lacks_are_replaced_by_one_that_it_has() -> None:
    own = (name for name, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("gymnasium.envs."))
    there = {name for name in own if "/" not in name}
    newest: dict[str, int] = {}
    for name, _, version in (one.rpartition("-v") for one in there):
        newest[name] = max(newest.get(name, 0), int(version))
    lacking = {f"{name}-v{old}" for name, version in newest.items() for old in range(version)} - there
    assert {"Pendulum-v0", "Taxi-v3", "Ant-v3"} <= lacking
    assert {one for one in lacking if changed(f"{one!r}\n")[1:-2] not in there} == set()


@pytest.mark.parametrize("name", ["Thrower-v2", "NChain-v0", "FetchReach-v1", "HandManipulateBlockRotateZ-v0"])
def test_ids_that_gymnasium_has_in_no_version_are_reported(name: str) -> None:
    one = program(f"env = make('{name}')\n")
    assert lines_of(one) == [("train.py", 1, False)]
    assert name in report([one])[one.path][0].message


def test_what_stands_in_for_a_missing_gymnasium_is_left_alone() -> None:
    text = "try:\n    import gymnasium as gym\nexcept ImportError:\n    import gym\nfinally:\n    pass\n"
    assert changed(text) == text
    assert lines_of(program(text)) == []
