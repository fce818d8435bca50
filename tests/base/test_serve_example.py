"""The example that serves a policy, as its README says, without a framework."""

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_core.policy import load, pack

PROGRAM = Path(__file__).parents[2] / "examples" / "serve" / "serve.py"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A policy of two actions, the second one where the first number of an observation is above 0."""
    description = {
        "algorithm": "DQN",
        "observation": {"shape": [3], "dtype": "float32"},
        "mask": False,
        "network": {"kind": "fc", "weight": "head.weight", "bias": None, "act": None},
        "sizes": [2],
        "action": {"choice": 0},
    }
    weight = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]], np.float32)
    path = tmp_path / "agent.policy"
    path.write_bytes(pack(description, {"head.weight": weight}))
    return path


@pytest.fixture
def port(file: Path) -> Iterator[int]:
    """The port of a server in a process of its own, which ends in order."""
    server = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(file), "--port", "0", "--patience", "60"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    line = server.stdout.readline()
    assert line.startswith(f"{file} is served at http://127.0.0.1:"), line
    try:
        yield int(line.rpartition(":")[2])
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait() == 0
        server.stdout.close()


def _asked(connection: http.client.HTTPConnection, body: Any, path: str = "/act") -> tuple[int, Any]:
    connection.request("POST", path, body if isinstance(body, (str, bytes)) else json.dumps(body))
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_it_answers_one_observation_and_batches_and_says_what_is_wrong(port: int) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        _check_answers(connection)


def _check_answers(connection: http.client.HTTPConnection) -> None:
    assert _asked(connection, {"observation": [1.0, 0.0, 0.0]}) == (200, {"action": 1})
    assert _asked(connection, {"observation": [[1, 0, 0], [-1, 0, 0]]}) == (200, {"action": [1, 0]})
    assert _asked(connection, {"observation": [1, 0, 0], "action_mask": [1, 0]}) == (200, {"action": 0})
    for wrong, told in [
        ({"observation": [1.0]}, "must have shape [3]"),
        ({"observation": [1.0, 0.0, float("nan")]}, "NaN"),
        ({"observation": "none"}, "must hold numbers"),
        ({"observation": ["a", "b", "c"]}, "must hold numbers"),
        ({"observation": [1, 0, 0], "action_mask": [0, 0]}, "leaves no action"),
        ({"obs": 1}, "observation"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ]:
        status, answer = _asked(connection, wrong)
        assert (status, told in answer["error"]) == (400, True), answer
    assert _asked(connection, {}, "/other")[0] == 404
    connection.request("GET", "/health")
    found = connection.getresponse()
    health = json.loads(found.read())
    assert (found.status, health["status"], health["algorithm"]) == (200, "ok", "DQN")
    assert (health["answered"], health["failed"], health["refused"]) == (3, 6, 0)


def test_many_connections_at_once_get_their_own_answers(port: int) -> None:
    def client(seed: int) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            for first in np.random.default_rng(seed).normal(size=20):
                assert _asked(connection, {"observation": [first, 0.0, 0.0]}) == (200, {"action": int(first > 0.0)})

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(client, range(12)))


def test_requests_above_the_limit_are_asked_to_try_again(file: Path) -> None:
    description = spec_from_file_location("serve", PROGRAM)
    assert description is not None
    assert description.loader is not None
    serve = module_from_spec(description)
    description.loader.exec_module(serve)
    service = serve.Service(load(file), "agent.policy", concurrency=1, patience=0.0)
    request = {"observation": [1.0, 0.0, 0.0]}
    assert service.act(request) == (200, {"action": 1})
    with service._slots:
        assert service.act(request)[0] == 503
        assert service.health()[0] == 503
    assert service.health()[0] == 200
    assert service.health()[1]["refused"] == 1
