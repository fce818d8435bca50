"""One offline update of a model directory, as `evokit offline-update` does it: alone, whole or not at all.

lock the new directory ─► read the model ─► read what is new in the logs ─► update ─► write the new directory
"""

from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path

from parl_evokit.agent import ESAgent
from parl_evokit.directories import read_unchanged
from parl_evokit.locking import update_lock
from parl_evokit.log import LogContents
from parl_evokit.report import UpdateReport

__all__ = ["offline_update"]


def offline_update(
    open_agent: Callable[[], ESAgent],
    logs: Iterable[str | PathLike[str]],
    model_dir: Path,
    updated_model_dir: Path,
    *,
    max_damage: float = 0.01,
    wait_s: float = 0.0,
    waiting: Callable[[str], None] | None = None,
) -> tuple[UpdateReport, LogContents]:
    """Update the model in a directory from logs, and write it into a directory, which may be the same.

    Args:
        open_agent: Makes an agent with the model and the solver of `model_dir`.
        logs: See `ESAgent.update_from_log`.
        model_dir: Of the present model.
        updated_model_dir: Of the new one.
        max_damage: See `ESAgent.update_from_log`.
        wait_s: How long to wait for another update of `updated_model_dir`, in seconds.
        waiting: See `update_lock`.

    Raises:
        UpdateLocked: Another update of that directory goes on.
        NothingToUpdate: Too few new samples; nothing was written.
        LogError: See `read_log`.
        StorageError: The new directory cannot be written; it is as it was.
    """
    with update_lock(updated_model_dir, wait_s, waiting):
        agent = read_unchanged(model_dir, open_agent)
        report, contents = agent.update_from_log(logs, max_damage=max_damage)
        agent.save(updated_model_dir)
    return report, contents
