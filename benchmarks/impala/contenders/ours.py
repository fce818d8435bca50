"""This project's loop with remote actors, as in a user's program."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also for actors, which get the program's path


def main(task: str, warm_up_s: float, seconds: float, compute_dtype: str = "float32") -> None:
    """Run until the rates are measured."""
    import functools

    import tasks
    import torch
    from our_agent import make_agent
    from rates import Rates

    from parl_core import training

    torch.set_num_threads(1)
    rates = Rates(warm_up_s, seconds)

    class Watch(training.Callback):
        metrics: Any = None

        def on_update(self, update: training.Update) -> str | None:
            self.metrics = update.metrics
            return "enough" if rates.update(update.step) else None

    watch = Watch()
    settings = training.ActorLearnerSettings(
        total_steps=10**9,
        n_actors=tasks.N_ACTORS,
        envs_per_group=tasks.ENVS,
        n_steps=tasks.STEPS,
        batch_fragments=tasks.BATCH // (tasks.ENVS * tasks.STEPS),
        report_every=tasks.BATCH if tasks.TASKS[task].images else 10 * tasks.BATCH,
    )
    make = functools.partial(make_agent, task, compute_dtype)
    with training.open_actors("remote", cpu_num=tasks.N_ACTORS, preload=["torch"]) as actors:
        training.train_actor_learner(make(), make, tasks.TASKS[task].env, settings, actors=actors, callbacks=[watch])
    rates.print()
    print({name: round(value, 3) for name, value in watch.metrics.items()}, file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
