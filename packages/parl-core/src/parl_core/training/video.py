"""Videos of the agent, one episode each, recorded by Gymnasium."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import gymnasium

from parl_core.checks import check_int
from parl_core.env.vector_group import EnvMaker, make_env
from parl_core.training.acting import PredictingAgent
from parl_core.training.evaluation import evaluate
from parl_core.training.events import Callback, Evaluation
from parl_core.training.run import Run

__all__ = ["RecordVideo"]


class RecordVideo(Callback):
    """Plays one more episode after an evaluation, without exploration, and records it.

    The files are `videos/step-<step>/agent-episode-0.mp4` in the run's folder.

    Args:
        run: whose folder takes the videos.
        agent: plays.
        env: a registered id, or a function that returns an environment; either is given `render_mode="rgb_array"`.
        every: evaluations from one video to the next; the first one has a video.
        seed: of the episode.
        env_kwargs: passed to `gymnasium.make` or to the function.

    Raises:
        ImportError: moviepy is not installed, which writes the files.
        HyperparameterError: `every` is not at least 1.
    """

    def __init__(
        self,
        run: Run,
        agent: PredictingAgent,
        env: EnvMaker,
        every: int = 1,
        *,
        seed: int = 0,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if find_spec("moviepy") is None:
            raise ImportError('videos are written by moviepy: pip install "parl-core[video]"')
        self._run, self._agent, self._env = run, agent, env
        self._every, self._seed = check_int("every", every), seed
        self._env_kwargs = {**(env_kwargs or {}), "render_mode": "rgb_array"}
        self._evaluations = 0

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._evaluations += 1
        if (self._evaluations - 1) % self._every:
            return
        folder = self._run.path / "videos" / f"step-{evaluation.step:012d}"
        number = 1
        while folder.exists():  # of a run that was resumed from before
            number += 1
            folder = folder.with_name(f"step-{evaluation.step:012d}-{number}")

        def recorded() -> Any:
            env = make_env(self._env, self._env_kwargs)
            return gymnasium.wrappers.RecordVideo(
                env, str(folder), episode_trigger=lambda _episode: True, name_prefix="agent"
            )

        evaluate(self._agent, recorded, 1, seed=self._seed)
        self._run.saved(folder.parent, f"videos of the agent, the latest after {evaluation.step} steps")

    def get_state(self) -> int:
        """What a checkpoint holds."""
        return self._evaluations

    def set_state(self, state: Any) -> None:
        """Go on from what `get_state` returned."""
        self._evaluations = int(state)
