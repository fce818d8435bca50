"""QMIX and VDN side by side on matrix games whose optimum is known.

    python benchmarks/teams/off_policy.py two_step cued_two_step --algorithms QMIX VDN --seeds 3

Every run begins from its own seed, 100 and on, which no setting was chosen with; the recipe is that of `parl train`. A
line of JSON for each run goes to results/<env>.jsonl: the mean team's return of 100 greedy episodes with unseen seeds
after training, and of 20 while training. `mpe.py` has MADDPG and the games of MPE.
"""

from runs import Row, main, measured

from parl import training
from parl_core.training.trained import Trained


def run(algorithm: str, env: str, steps: int | None, seed: int, backend: str) -> Row:
    recipe = training.find_recipe(algorithm, env)
    if steps is not None:
        recipe = recipe.with_steps(steps)
    arguments, sizes = dict(recipe.algorithm), dict(recipe.sizes)
    agent = Trained(algorithm, env, backend, arguments=arguments, seed=seed, network=sizes).make_agent()
    return measured(algorithm, env, agent, recipe, training.train_off_policy, backend=backend, seed=seed)


if __name__ == "__main__":
    main(__doc__, ["QMIX", "VDN"], 3, None, run)
