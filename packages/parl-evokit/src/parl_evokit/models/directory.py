"""Models that a directory itself tells: built-in ones by the name in `solver.json`, and paddle's inference programs.

Neither is code: a name of ours, and a graph. Models of a user's own are given by the user.
"""

from pathlib import Path

from parl_evokit import solver_dir
from parl_evokit.models.adapter import ModelAdapter
from parl_evokit.models.built_in import built_in

__all__ = ["has_program", "model_in"]


def model_in(directory: Path) -> ModelAdapter | None:
    """The model of a directory, if no code of the user's is needed for it.

    Raises:
        SolverError: `solver.json` is damaged, or the inference program cannot be read.
    """
    if (directory / solver_dir.SUMMARY).exists():
        name = solver_dir.read_summary(directory).get("model")
        found = built_in(name) if isinstance(name, str) else None
        if found is not None:
            return found
    if has_program(directory):
        from parl_evokit.models.paddle_program import PaddleProgram

        return PaddleProgram(directory)
    return None


def has_program(directory: Path) -> bool:
    """Whether there is an inference program of paddle; told by names, so that paddle is not imported to find out."""
    return any(directory.glob("*.pdiparams")) or all((directory / name).is_file() for name in ("model", "params"))
