"""Tests of Ray alone; those of all engines are in `test_engines_conformance`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import parl_remote

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="ray is not installed")
WITHIN_S = 100.0


def run(directory: Path, program: str) -> str:
    (directory / "main.py").write_text(textwrap.dedent(program))
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(HAS_RAY, reason="ray is installed")
@pytest.mark.parametrize("address", ["ray", "ray://localhost:10001"])
def test_without_ray_the_error_says_what_to_install(unconnected: None, address: str) -> None:
    with pytest.raises(ImportError, match=r'pip install "parl-remote\[ray\]"'):
        parl_remote.connect(address)


@pytest.mark.parametrize(
    ("address", "options", "message"),
    [
        ("ray", {"preload": ["json"]}, "preload makes no sense for Ray at ray"),
        ("ray", {"key_file": "key", "log_dir": "logs"}, "log_dir and key_file makes no sense"),
        ("ray://localhost:10001", {"cpu_num": 2}, "cpu_num makes no sense for Ray at ray://localhost:10001"),
    ],
)
def test_options_of_other_clusters_are_refused(address: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parl_remote.connect(address, **options)


def test_a_host_whose_name_begins_with_ray_is_a_host() -> None:
    with pytest.raises(parl_remote.RemoteError) as refused:
        parl_remote.connect("ray-of-light.invalid:8037")
    assert not isinstance(refused.value, ImportError)


@needs_ray
def test_actors_find_distributed_files_and_the_programs_modules(tmp_path: Path) -> None:
    (tmp_path / "data/empty").mkdir(parents=True)
    (tmp_path / "data/a.txt").write_text("data")
    (tmp_path / "other.txt").touch()
    (tmp_path / "helper.py").write_text("VALUE = 'its module'")
    program = """
        import os
        import parl_remote as parl
        import helper

        @parl.remote_class
        class Actor:
            def look(self):
                return helper.VALUE, open("data/a.txt").read(), os.path.isdir("data/empty"), os.path.exists("other.txt")

        for files in (["data"], []):
            parl.connect("ray", files, cpu_num=1)
            print(*Actor().look())
            parl.disconnect()
    """
    assert run(tmp_path, program).splitlines() == ["its module data True False", "its module data True True"]


@needs_ray
def test_a_connection_that_the_program_made_itself_is_used_and_left_open(tmp_path: Path) -> None:
    program = """
        import ray
        import parl_remote as parl

        @parl.remote_class
        class Actor:
            def add(self, a, b):
                return a + b

        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        parl.connect("ray")
        print(Actor().add(1, 2))
        parl.disconnect()
        print(ray.is_initialized(), ray.get(ray.remote(lambda: 4).remote()))
    """
    assert run(tmp_path, program).splitlines() == ["3", "True 4"]


@needs_ray
def test_options_that_ray_lacks_are_refused_and_conflicts_are_reported(tmp_path: Path) -> None:
    program = """
        import parl_remote as parl

        @parl.remote_class
        class Actor:
            def nothing(self):
                pass

        parl.connect("ray", cpu_num=2)
        short = {"lease_timeout_s": 0.5}
        for options in ({"max_memory": 100}, {"n_gpu": 1, **short}, {"labels": {"x": 1}, **short}):
            try:
                Actor.options(**options)()
            except (ValueError, parl.NoResources) as error:
                print(type(error).__name__, error)
    """
    refused, *waited = run(tmp_path, program).splitlines()
    assert refused.startswith("ValueError on Ray actors have no max_memory")
    assert all(line.startswith("NoResources Actor asked for 1 CPU") for line in waited)
    assert all("got no resources within 0.5 s; Ray has " in line for line in waited)
