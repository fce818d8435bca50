"""The clients in other languages, which ship with the package, give the shipped test vectors."""

import hashlib
import json
import shutil
import struct
import subprocess
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

VECTORS: dict[str, Any] = json.loads(files("parl_evokit.noise").joinpath("vectors_v1.json").read_text())


@pytest.fixture(params=["c", "javascript"], scope="module")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs a client."""
    if request.param == "javascript":
        node = shutil.which("node")
        if node is None:
            pytest.skip("node is not installed")
        with as_file(files("parl_evokit").joinpath("clients/evokit_client.js")) as source:
            return [node, str(source)]
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        pytest.skip("there is no C compiler")
    program = tmp_path_factory.mktemp("client") / "client"
    with as_file(files("parl_evokit").joinpath("clients/evokit_client.c")) as source:
        flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([compiler, *flags, "-o", program, source], check=True, timeout=240)
    return [str(program)]


def said(client: list[str], *arguments: object) -> list[str]:
    done = subprocess.run([*client, *map(str, arguments)], capture_output=True, text=True, timeout=240, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("case", VECTORS["noise"], ids=lambda case: f"key {case['key']} table {case['cache_size']}")
def test_a_client_makes_the_noise_and_the_parameters_of_the_vectors(client: list[str], case: dict[str, Any]) -> None:
    with as_file(files("parl_evokit.noise").joinpath("quantiles_v1.i2")) as quantiles:
        place = (case["seed"], case["cache_size"], case["key"], case["start"], case["count"])
        lines = [line.split() for line in said(client, "noise", quantiles, *place, 0.3)]
    units = [int(unit) for unit, _ in lines]
    assert units[:40] == case["units"]
    assert hashlib.sha256(struct.pack(f"<{len(units)}h", *units)).hexdigest() == case["units_sha256"]
    perturbed = b"".join(struct.pack("<I", int(bits, 16)) for _, bits in lines)
    assert hashlib.sha256(perturbed).hexdigest() == case["perturbed_sha256"]


@pytest.mark.parametrize("case", VECTORS["records"], ids=lambda case: case["key"])
def test_a_client_writes_the_records_of_the_vectors(client: list[str], case: dict[str, Any]) -> None:
    numbers = (case["key"], case["model_iter_id"], case["fingerprint"], case["reward"])
    assert said(client, "record", *numbers) == [case["record"], case["frame"]]


def test_a_client_says_how_it_is_called_and_that_a_file_is_missing(client: list[str], tmp_path: Path) -> None:
    done = subprocess.run([*client, "nonsense"], capture_output=True, timeout=240, check=False)
    assert done.returncode == 2
    missing = subprocess.run(
        [*client, "noise", tmp_path / "none", "1", "0", "2", "0", "1", "0.3"],
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert missing.returncode != 0
