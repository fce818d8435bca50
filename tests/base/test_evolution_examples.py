"""The examples of evolution run: a service that learns while it serves, and MuJoCo with remote actors."""

import csv
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "evolution"


def run(*command: object) -> str:
    """Return a program's output."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_service_gets_new_models_from_delayed_clicks_while_it_serves(tmp_path: Path) -> None:
    pytest.importorskip("flask", reason="the service needs flask")
    pytest.importorskip("waitress", reason="the service needs waitress")
    shop = tmp_path / "shop"
    said = run(EXAMPLES / "service" / "run.py", "--smoke", "--out", tmp_path, "--place", shop)
    with (tmp_path / "curve.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    models = [int(row["model"]) for row in rows]
    assert models == sorted(models)
    assert models[-1] >= 2, "no visitor saw an updated model"
    updates = re.findall(r"model (\d+): (\d+) samples .* set aside: (.+)", said)
    assert [int(model) for model, _, _ in updates] == list(range(1, len(updates) + 1))
    assert {aside for _, _, aside in updates} == {"none"}
    names = " ".join(path.name for path in (shop / "warehouse").iterdir())  # one may be of a job that ended amidst
    newest = max(map(int, re.findall(r"model_iter_id-(\d+)(?= |$)", names)))
    settings = {
        "log_path": "log",
        "model_dir": f"warehouse/model_iter_id-{newest}",
        "updated_model_dir": f"warehouse/model_iter_id-{newest + 1}",
        "config_path": "config.prototxt",
        "model": "ranking:model",
    }
    told = subprocess.run(  # the tutorial's command
        [
            sys.executable,
            "-m",
            "parl_evokit",
            "offline-update",
            *(f"--{name}={value}" for name, value in settings.items()),
        ],
        cwd=shop,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(EXAMPLES / "service"), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert told.returncode in (0, 3), told.stderr  # 3: the job had seen all visitors


def test_the_service_refuses_nonsense_and_stays_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flask", reason="the service needs flask")
    monkeypatch.syspath_prepend(str(EXAMPLES / "service"))
    monkeypatch.chdir(tmp_path)
    import server
    from ranking import model

    from parl_evokit import AsyncESAgent, Tokens, read_log

    agent = AsyncESAgent(model(), EXAMPLES / "service" / "config.prototxt")
    client = server.application(agent, tmp_path / "log").test_client()
    visitor = {"visitor": [0.1, 0.2, 0.3, 0.4], "items": [3, 1, 2]}
    answer = client.post("/rank", json=visitor).get_json()
    assert sorted(answer["items"]) == [1, 2, 3]
    assert len(answer["sample"]) == 56
    for _ in range(3):  # a message that is delivered again is no error
        assert client.post("/feedback", json={"sample": answer["sample"], "clicks": 2}).status_code == 200
    forged = Tokens([bytes(32)]).issue(agent.clone().add_noise())
    for path, body in [
        ("/rank", {}),
        ("/rank", {"visitor": [1, 2], "items": [1]}),
        ("/rank", {**visitor, "items": [99]}),
        ("/rank", {**visitor, "items": []}),
        ("/rank", {**visitor, "items": 1}),
        ("/rank", {**visitor, "items": [-1]}),
        ("/rank", {**visitor, "items": [0.5]}),
        ("/rank", {**visitor, "items": ["1"]}),
        ("/rank", {**visitor, "items": [10**30]}),
        ("/rank", {**visitor, "items": [[1, 2], [2, 3]]}),
        ("/rank", {**visitor, "visitor": [0.1, 0.2, 0.3, float("nan")]}),
        ("/rank", {**visitor, "visitor": [0.1, 0.2, 0.3, 1e300]}),
        ("/rank", {**visitor, "visitor": [0.1, 0.2, 0.3, 10**400]}),
        ("/feedback", {"sample": answer["sample"], "clicks": 1e30}),
        ("/feedback", {"sample": answer["sample"], "clicks": -1}),
        ("/feedback", {"sample": answer["sample"], "clicks": float("nan")}),
        ("/feedback", {"sample": "zz", "clicks": 1}),
        ("/feedback", {"sample": "ff", "clicks": 1}),
        ("/feedback", {"sample": answer["sample"], "clicks": "many"}),
        ("/feedback", {"sample": forged, "clicks": 3}),
        ("/feedback", {"sample": answer["sample"][:-1] + "~", "clicks": 3}),
    ]:
        assert client.post(path, json=body).status_code == 400, (path, body)
    assert client.get("/status").get_json() == {"model": 0, "parameters": 30}
    assert client.get("/refused").get_json() == {"malformed": 3, "unknown_secret": 1, "bad_reward": 1}
    assert read_log(tmp_path / "log").rewards == [2.0]


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["remote", "processes"])
def test_a_policy_of_mujoco_evolves_in_other_processes(pool: str, tmp_path: Path) -> None:
    for package in ("mujoco", "imageio", "matplotlib", "tqdm"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the example needs {package}")
    program = EXAMPLES / "mujoco" / "train.py"
    said = run(program, "--smoke", "--workers", "2", "--pool", pool, "--out", tmp_path / "out")
    assert re.search(r"model without noise, 2 episodes: -?\d+\.\d \+- \d", said)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "curve.csv",
        "curve.png",
        "model",
        "observations.npz",
    }
