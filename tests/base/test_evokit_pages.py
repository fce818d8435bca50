"""Statements of the pages of evolution hold: vectors of the noise page, algorithms, files of the tutorial."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from parl_evokit import Config, ESAgent, GaussianNoise, LogWriter, NoiseSpec, mlp
from parl_evokit.agent import solver_class
from parl_evokit.cli import main
from parl_evokit.config import SolverKind

DOCS = Path(__file__).parents[2] / "docs"
VECTORS: dict[str, Any] = json.loads(files("parl_evokit.noise").joinpath("vectors_v1.json").read_text())


def shown() -> dict[str, str]:
    """The table of test vectors."""
    page = (DOCS / "reference" / "evokit" / "noise.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", page.split("## Test vectors")[1], re.MULTILINE)
    return dict(rows[2:])


def test_the_noise_page_shows_the_vectors_that_ship() -> None:
    table = shown()
    assert " ".join(VECTORS["philox4x64_10"][0]["words"]) in table.values()
    assert VECTORS["splitmix64"][0]["value"] in table.values()
    plain, odd = VECTORS["noise"][0]["units"], VECTORS["noise"][1]["units"]
    assert " ".join(map(str, plain[:6])) in table.values()
    assert " ".join(map(str, odd[:6])) in table.values()
    assert " ".join(map(str, VECTORS["noise"][0]["perturbed"][:3])) in table.values()
    assert " ".join(map(str, VECTORS["windows"][1]["starts"])) in table.values()
    cached = GaussianNoise(NoiseSpec(18, cached=True, cache_size=64)).units(2, 0, 3)
    assert " ".join(map(str, cached)) in table.values()
    record = next(text for what, text in table.items() if what.startswith("record"))
    assert record.replace(" ", "") == VECTORS["records"][1]["record"]
    frame = next(text for what, text in table.items() if what == "its frame").split(" followed")[0].replace(" ", "")
    assert VECTORS["records"][1]["frame"] == frame + VECTORS["records"][1]["record"]


@pytest.mark.parametrize("kind", [kind.name for kind in SolverKind])
def test_every_algorithm_has_a_page_that_names_its_class_and_module(kind: str) -> None:
    folder = DOCS / "reference" / "evokit" / "algorithms"
    row = re.search(rf"^\| {kind} \| `(\w+)` .*\(([\w-]+\.md)\) \|$", (folder / "index.md").read_text(), re.MULTILINE)
    assert row is not None
    cls = solver_class(SolverKind[kind])
    assert row[1] == cls.__name__
    page = (folder / row[2]).read_text()
    assert f"`{kind}`" in page
    assert f"{cls.__module__.rpartition('.')[2]}.py`" in page
    for heading in ("## Equations", "## Settings", "## Sources"):
        assert heading in page


def test_the_page_of_commands_has_all_fields_of_an_update(tmp_path: Path) -> None:
    agent = ESAgent({}, mlp([2, 2]))
    agent.save(tmp_path / "model")
    with LogWriter(tmp_path / "log") as log:
        for number, info in enumerate(agent.clone().draw(4)):
            log.reward(info, number)
    (tmp_path / "c.prototxt").write_text(Config().to_prototxt())
    paths = {"log_path": "log", "model_dir": "model", "updated_model_dir": "next", "config_path": "c.prototxt"}
    arguments = [f"--{name}={tmp_path / path}" for name, path in paths.items()]
    done = CliRunner().invoke(main, ["offline-update", *arguments, "--model=mlp:2-2", "--json"])
    fields = json.loads(done.output)
    page = (DOCS / "reference" / "evokit" / "command_line.md").read_text()
    names = re.findall(r"`(\w+)`", page.split("## What `offline-update --json` prints")[1])
    assert sorted(names) == sorted([*fields, *fields["set_aside"]])


def test_the_tutorials_configuration_is_that_of_the_example(tmp_path: Path) -> None:
    page = (DOCS / "tutorials" / "evolution-online.md").read_text()
    block = re.search(r"^```\n(solver \{.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert block is not None
    (tmp_path / "config.prototxt").write_text(block[1])
    example = DOCS.parent / "examples" / "evolution" / "service"
    assert Config.load(tmp_path / "config.prototxt") == Config.load(example / "config.prototxt")
    for link in re.findall(r"\]\(([^)#]+)\)", page):
        assert (DOCS / "tutorials" / link).exists(), link
