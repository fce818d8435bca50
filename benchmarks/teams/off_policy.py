"""QMIX, VDN and MADDPG side by side, and independent learners: matrix games, and games of MPE.

    python benchmarks/teams/off_policy.py two_step cued_two_step --algorithms QMIX VDN --seeds 3
    python benchmarks/teams/off_policy.py mpe2:simple_speaker_listener_v4 --algorithms MADDPG independent --steps 200000

`independent` is MADDPG whose critics see what their own agent sees and does, which is DDPG for each agent. Every run
begins from its own seed, 100 and on, which no setting was chosen with; the recipe is that of `parl train`. A line of
JSON for each run goes to results/<env>.jsonl: the mean team's return of 100 greedy episodes with unseen seeds after
training, and of 20 while training.
"""

from typing import Any

from runs import Row, main, measured

import parl
from parl import training
from parl.env import make_joint_env
from parl_core.training.trained import Trained


def independent(agent: parl.Agent, env: str, hidden: tuple[int, ...], seed: int, arguments: dict[str, Any]) -> Any:
    """Return the same agent with critics that see one agent alone."""

    class Alone(type(agent.alg.model)):  # type: ignore[misc]  # a class of the backend
        def value(self, obs: Any, action: Any, agent: int) -> Any:
            rows = parl.layers.concat([obs["obs"][:, agent], action[:, agent]], axis=-1)
            return self.critic.of_agent(agent, rows)

    training.seed_everything(seed)
    game = make_joint_env(env)
    agents, width = len(game.agents), max(game.act_sizes)
    model = Alone(agents, width, hidden, continuous=not game.discrete)
    model.obs_ndim, model.action_kind = agent.alg.model.obs_ndim, agent.alg.model.action_kind
    return parl.Agent(parl.algorithms.MADDPG(model, **arguments), seed=seed)


def run(name: str, env: str, steps: int | None, seed: int, backend: str) -> Row:
    algorithm = "MADDPG" if name == "independent" else name
    recipe = training.find_recipe(algorithm, env)
    if steps is not None:
        recipe = recipe.with_steps(steps)
    arguments, sizes = dict(recipe.algorithm), dict(recipe.sizes)
    agent = Trained(algorithm, env, backend, arguments=arguments, seed=seed, network=sizes).make_agent()
    if name == "independent":
        agent = independent(agent, env, sizes["hidden"], seed, arguments)
    return measured(name, env, agent, recipe, training.train_off_policy, backend=backend, seed=seed)


if __name__ == "__main__":
    main(__doc__, ["QMIX", "VDN"], 3, None, run)
