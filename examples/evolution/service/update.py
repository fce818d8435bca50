"""The offline job: updates the model periodically from new records of the log.

    python update.py --config config.prototxt --log log --every 5        for ever
    python update.py --config config.prototxt --log log --once           from cron

It may be killed at any moment: model, solver and the position in the log change together or not at all.
"""

import argparse
import time
from pathlib import Path

from ranking import model

from parl_evokit import AsyncESAgent, LogError, NothingToUpdate


def update(agent: AsyncESAgent, log: Path) -> bool:
    """Update once, and return whether there were enough samples."""
    try:
        report, _ = agent.update_from_log(log)
    except (NothingToUpdate, LogError) as error:  # too few samples, or no log yet
        print(f"not yet: {error}", flush=True)
        return False
    stale = sum(report.stale.values())
    control = "" if report.control_mean is None else f", {report.control_mean:.2f} without noise ({report.control})"
    print(
        f"model {report.model_iter_id}: {report.used} samples ({stale} of older models), "
        f"{report.mean_reward:.2f} clicks a visit{control}, set aside: {report.set_aside}",
        flush=True,
    )
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="Updates the model of the service from its log.")
    parser.add_argument("--config", default="config.prototxt")
    parser.add_argument("--log", type=Path, default=Path("log"))
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two attempts to update")
    parser.add_argument("--once", action="store_true", help="try once, then exit")
    arguments = parser.parse_args()

    agent = AsyncESAgent(model(), arguments.config, logs=[arguments.log])
    update(agent, arguments.log)
    while not arguments.once:
        time.sleep(arguments.every)
        update(agent, arguments.log)


if __name__ == "__main__":
    main()
