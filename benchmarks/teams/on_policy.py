"""MAPPO, IPPO and COMA side by side: matrix games whose optimum is known, and a game of MPE.

    python benchmarks/teams/on_policy.py climbing penalty --steps 12800 --seeds 3
    python benchmarks/teams/on_policy.py mpe2:simple_spread_v3 --algorithms MAPPO IPPO --steps 300000 --seeds 1

Every run begins from its own seed, 100 and on, which no setting was chosen with; the recipe is that of `parl train`. A
line of JSON for each run goes to results/<env>.jsonl: the mean team's return of 100 greedy episodes with unseen seeds
after training, and of 20 while training.
"""

from runs import Row, main, measured

from parl import training
from parl_core.training.trained import Trained


def run(algorithm: str, env: str, steps: int, seed: int, backend: str) -> Row:
    recipe = training.find_recipe(algorithm, env).with_steps(steps)
    arguments, sizes = dict(recipe.algorithm), dict(recipe.sizes)
    agent = Trained(algorithm, env, backend, arguments=arguments, seed=seed, network=sizes).make_agent()
    return measured(algorithm, env, agent, recipe, training.train_on_policy, backend=backend, seed=seed)


if __name__ == "__main__":
    main(__doc__, ["MAPPO", "IPPO", "COMA"], 5, 40_000, run)
