"""Multi-head bootstrapped DDPG learns to keep a target speed, from simulators in remote actors; `--help` lists more."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

# Networks this small are slower on several threads; read by torch and paddle.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
from learner import LearnerSettings, train_with_simulators

import parl
from parl import training
from parl_core.errors import HyperparameterError

SMOKE: dict[str, Any] = {"total_steps": 300, "learning_starts": 100, "updates_per_step": 0.1, "report_every": 50}
SMOKE_EPISODE = 30


@dataclass(frozen=True)
class Settings:
    """Trains several heads of DDPG on a MuJoCo walker, or on the simulator of the NeurIPS 2018 challenge."""

    seed: Annotated[int, "seed of weights, episodes, heads, masks and batches"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    env: Annotated[str, "walker (MuJoCo) or prosthetics (osim-rl, which must be installed)"] = "walker"
    steps: Annotated[int, "environment steps of all simulators together"] = 100_000
    actors: Annotated[int, "remote actors with a simulator each; 0 keeps one in this process"] = 2
    address: Annotated[str, "address of a running cluster for the actors; empty starts a private one"] = ""
    heads: Annotated[int, "pairs of actor and critic; 1 is plain DDPG"] = 5
    share: Annotated[
        float, "share of the transitions that each head learns from (with poisson, the mean count of each)"
    ] = 0.5
    masks: Annotated[str, "distribution of the masks: bernoulli or poisson"] = "bernoulli"
    ensemble: Annotated[str, "how the heads act together without exploration: mean or vote"] = "vote"
    size: Annotated[int, "size of the shared layers"] = 128
    noise: Annotated[float, "standard deviation of the exploration noise"] = 0.1
    updates: Annotated[float, "updates per environment step"] = 0.5
    batch_size: Annotated[int, "transitions per update"] = 128
    n_step: Annotated[int, "rewards that are summed before bootstrapping"] = 5
    timeout: Annotated[float, "maximum seconds of an episode; a slower simulator is replaced"] = 120.0
    episodes: Annotated[
        int, "episodes per evaluation, of which there are 20, in this process; 0 for no evaluations"
    ] = 10
    restore: Annotated[str, "saved agent to start from; empty starts from scratch"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    smoke: Annotated[bool, "a few episodes and updates only, to see that everything runs"] = False


def make_env(name: str, max_steps: int) -> Any:
    if name == "walker":
        from walker import TargetSpeedWalker

        return gymnasium.wrappers.TimeLimit(TargetSpeedWalker(), max_steps)
    if name == "prosthetics":
        from osim_env import OsimProsthetics

        return gymnasium.wrappers.TimeLimit(OsimProsthetics(), max_steps)
    raise HyperparameterError(f"env must be walker or prosthetics, got {name!r}")


def make_agent(settings: Settings, act_dim: int) -> Any:
    if settings.backend:
        parl.set_backend(settings.backend)
    from model import MultiHead  # its base class is the backend's

    model = MultiHead(settings.heads, act_dim, settings.size)
    algorithm = parl.algorithms.BootstrappedDDPG(
        model, gamma=0.99, tau=0.005, actor_lr=3e-4, critic_lr=1e-3, ensemble=settings.ensemble
    )
    return parl.Agent(algorithm)


def loop_settings(settings: Settings) -> LearnerSettings:
    loop = LearnerSettings(
        total_steps=settings.steps,
        simulators=max(1, settings.actors),
        heads=settings.heads,
        share=settings.share,
        masks=settings.masks,
        noise=settings.noise,
        updates_per_step=settings.updates,
        batch_size=settings.batch_size,
        n_step=settings.n_step,
        timeout_s=settings.timeout if settings.actors else None,
    )
    return replace(loop, **SMOKE) if settings.smoke else loop


class SpeedErrors(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records the difference between speed and target of each step."""

    def __init__(self, env: Any, errors: list[float]) -> None:
        super().__init__(env)
        self.errors = errors

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.errors.append(abs(result[4]["speed"] - result[4]["target_speed"]))
        return result


def report(agent: Any, environment: Callable[[], Any], episodes: int) -> None:
    errors: list[float] = []
    played = training.evaluate(agent, lambda: SpeedErrors(environment(), errors), episodes, seed=1)
    print(f"Mean return of {episodes} evaluation episodes: {played.mean:.1f}")
    print(f"Mean distance from the target speed: {np.mean(errors):.2f} m/s")


def main(settings: Settings) -> None:
    if settings.smoke:
        settings = replace(settings, actors=min(settings.actors, 1))
    with training.Run("prosthetics", settings.runs) as run:
        training.seed_everything(settings.seed)
        loop = loop_settings(settings)
        environment = partial(make_env, settings.env, SMOKE_EPISODE if settings.smoke else 250)
        env = environment()
        agent_maker = partial(make_agent, settings, env.action_space.shape[0])
        agent = agent_maker()
        agent.predict(env.observation_space.sample())  # layers get their shapes
        env.close()
        if settings.restore:
            agent.restore(settings.restore)
        episodes = min(2, settings.episodes) if settings.smoke else settings.episodes

        def check() -> training.Evaluation:
            return training.evaluate(agent, environment, episodes, seed=2)

        title = f"{settings.heads}-head DDPG, {settings.env}, seed {settings.seed}"
        with training.choose_actors(settings.actors, settings.address) as actors:
            train_with_simulators(
                agent,
                actors,
                environment,
                agent_maker,
                loop,
                evaluator=check if episodes else None,
                evaluate_every=max(1, loop.total_steps // (2 if settings.smoke else 20)),
                callbacks=training.standard_callbacks(run, agent, title=title),
                seed=settings.seed,
            )
        run.save(agent)
        if episodes:
            report(agent, environment, 2 * episodes)
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
