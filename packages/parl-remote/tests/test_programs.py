"""Programs as users write and start them, and what is left of them afterwards: nothing."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

DOCUMENTED = """
import threading
import parl_remote as parl

@parl.remote_class
class Actor(object):
    def hello_world(self):
        print("Hello world.")

    def add(self, a, b):
        return a + b

parl.connect()
actor = Actor()
actor.hello_world()  # no log in the current terminal
threads = [threading.Thread(target=actor.hello_world) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(actor.add(1, 2))
"""

# Says who it is and then waits in a way that the test chooses.
WAITING = """
import json, os, sys, time
import parl_remote as parl

@parl.remote_class
class Sleeper:
    def process(self):
        return os.getpid()

    def sleep(self):
        time.sleep(600)

parl.connect(cpu_num=3)
sleepers = [Sleeper() for _ in range(3)]
from parl_remote import _current
cluster = _current.client()._cluster
print(json.dumps({"session": cluster.pid, "directory": str(cluster.directory),
                  "actors": [s.process() for s in sleepers]}), flush=True)
"""


def test_the_documented_program_runs_and_what_actors_print_stays_with_them(run_program: Run) -> None:
    done = run_program(program=DOCUMENTED)
    assert (done.stdout, done.stderr, done.returncode) == ("3\n", "", 0)


def test_a_program_given_on_the_command_line_runs(run_program: Run) -> None:
    done = run_program("-c", DOCUMENTED)
    assert (done.stdout, done.stderr, done.returncode) == ("3\n", "", 0)


def test_a_program_runs_where_comparing_bytes_with_text_is_an_error(run_program: Run) -> None:
    program = """
import parl_remote

@parl_remote.remote_class
class Actor:
    def double(self, number):
        return 2 * number

parl_remote.connect(cpu_num=2)
print(Actor().double(4), list(parl_remote.map(lambda number: number + 1, [1, 2])))
"""
    done = run_program("-bb", program=program)
    assert (done.stdout, done.stderr) == ("8 [2, 3]\n", "")


def test_a_module_inside_a_package_runs_with_its_relative_imports(run_program: Run, tmp_path: Path) -> None:
    package = tmp_path / "kitchen"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tools.py").write_text("def sharpen(word):\n    return word.upper()\n")
    (package / "cook.py").write_text(
        textwrap.dedent(
            """
            import parl_remote as parl
            from .tools import sharpen

            @parl.remote_class
            class Cook:
                def cook(self, word):
                    return sharpen(word)
            """
        )
    )
    (package / "main.py").write_text(
        textwrap.dedent(
            """
            import parl_remote as parl
            from .cook import Cook
            from .tools import sharpen

            @parl.remote_class
            class Helper(Cook):
                def help(self, word):
                    return sharpen(word) + self.cook("!x")

            parl.connect()
            print(Cook().cook("soup"), Helper().help("tea"))
            """
        )
    )
    done = run_program("-m", "kitchen.main")
    assert (done.stdout, done.stderr, done.returncode) == ("SOUP TEA!X\n", "", 0)


def test_modules_beside_the_program_are_found_by_actors(run_program: Run, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(
        "import parl_remote as parl\n\n@parl.remote_class\nclass Neighbour:\n"
        "    def where(self):\n        import os\n        return os.getcwd()\n"
    )
    done = run_program(
        program="import os, parl_remote as parl, beside\n"
        "parl.connect()\nprint(beside.Neighbour().where() == os.getcwd())\n"
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_handle_that_ends_with_the_interpreter_does_nothing(run_program: Run) -> None:
    result = run_program(
        program="""
import os, sys
import parl_remote as parl
from parl_remote._program.proxy import reference_of
from parl_remote._system.interrupts import finalizer

@parl.remote_class
class Actor:
    pass

parl.connect(cpu_num=1)
sys.kept = Actor()  # until modules are emptied
reference_of(sys.kept)._finalize = finalizer(lambda write=os.write: write(1, b"let go"))
"""
    )
    assert (result.stdout, result.stderr) == ("", "")


def test_a_program_that_raises_ends_with_its_own_error_alone(run_program: Run) -> None:
    done = run_program(program=DOCUMENTED + "\nraise SystemExit('that was all')\n")
    assert done.stderr == "that was all\n"
    assert done.returncode == 1


def test_the_last_words_of_a_crashed_actor_are_in_the_error(run_program: Run) -> None:
    done = run_program(
        program=textwrap.dedent(
            """
            import ctypes
            import parl_remote as parl

            @parl.remote_class
            class Actor:
                def say(self):
                    print("last words")

                def crash(self):
                    ctypes.string_at(0)

            parl.connect(cpu_num=1)
            actor = Actor()
            actor.say()
            try:
                actor.crash()
            except parl.ActorLost as error:
                print(error)
            """
        ),
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    assert "its process was killed by a signal (SIGSEGV); its last call was crash()" in done.stdout
    assert "  | last words" in done.stdout
    assert "in crash" in done.stdout


@pytest.mark.slow
def test_a_notebook_s_own_classes_work_and_can_be_changed(tmp_path: Path) -> None:
    nbclient, nbformat = importlib.import_module("nbclient"), importlib.import_module("nbformat")

    def cell(source: str) -> Any:
        return nbformat.v4.new_code_cell(textwrap.dedent(source))

    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        cell("import parl_remote as parl\nparl.connect(cpu_num=2)\nfactor = 2"),
        cell(
            """
            class Oops(Exception):
                pass

            @parl.remote_class
            class Cell:
                def work(self, x):
                    if x < 0:
                        raise Oops("negative")
                    return x * factor
            """
        ),
        cell("print(Cell().work(4))"),
        cell("try:\n    Cell().work(-1)\nexcept Oops as error:\n    print('own type', error)"),
        cell("factor = 10\nprint(Cell().work(4))"),
        cell("import asyncio\nprint(await parl.submit(Cell().work, 5))"),
        cell("parl.disconnect()"),
    ]
    client = nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    said = [output["text"] for one in notebook.cells for output in one.get("outputs", []) if "text" in output]
    assert said == ["8\n", "own type negative\n", "40\n", "50\n"]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], dict[str, Any]]]]:
    """Start a program that goes on; returns it with what it said about itself."""
    running: list[subprocess.Popen[str]] = []

    def start(ending: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        (tmp_path / "waiting.py").write_text(WAITING + ending)
        process = subprocess.Popen(
            [sys.executable, "waiting.py"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("ending", ["time.sleep(600)", "sleepers[0].sleep()"], ids=["idle", "within a call"])
def test_a_killed_program_takes_its_actors_along(
    started: Callable[[str], tuple[subprocess.Popen[str], dict[str, Any]]],
    ending: str,
    session_processes: Callable[[int], dict[int, str]],
    await_end: Callable[..., float],
) -> None:
    program, told = started(ending)
    processes = session_processes(told["session"])
    assert set(told["actors"]) <= set(processes)
    program.kill()
    await_end(told["actors"])
    await_end(list(processes))
    assert not Path(told["directory"]).exists()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["time.sleep(600)", "sleepers[0].sleep()"], ids=["idle", "within a call"])
def test_ctrl_c_ends_the_program_with_its_own_traceback_and_all_its_processes(
    started: Callable[[str], tuple[subprocess.Popen[str], dict[str, Any]]],
    ending: str,
    session_processes: Callable[[int], dict[int, str]],
    await_end: Callable[..., float],
) -> None:
    program, told = started(ending)
    processes = session_processes(told["session"])
    os.killpg(program.pid, signal.SIGINT)
    _, shown = program.communicate(timeout=240)
    assert shown.count("KeyboardInterrupt") == 1
    assert program.returncode == -signal.SIGINT  # a shell's loop ends at that, and goes on at an exit code
    await_end(list(processes))
    assert not Path(told["directory"]).exists()


def test_a_program_that_ends_without_disconnecting_leaves_nothing(
    started: Callable[[str], tuple[subprocess.Popen[str], dict[str, Any]]],
    session_processes: Callable[[int], dict[int, str]],
    await_end: Callable[..., float],
) -> None:
    program, told = started("sys.exit(0)")
    _, shown = program.communicate(timeout=240)
    assert (program.returncode, shown) == (0, "")
    await_end(list(session_processes(told["session"])))
    assert not Path(told["directory"]).exists()


def test_a_program_that_leaves_by_os_exit_leaves_nothing(
    started: Callable[[str], tuple[subprocess.Popen[str], dict[str, Any]]], await_end: Callable[..., float]
) -> None:
    program, told = started("os._exit(0)")
    program.communicate(timeout=240)
    await_end([*told["actors"], told["session"]])
    assert not Path(told["directory"]).exists()


@pytest.mark.slow
def test_actors_use_as_many_numeric_threads_as_they_have_cpus(run_program: Run) -> None:
    program = textwrap.dedent(
        """
        import os
        import parl_remote as parl

        @parl.remote_class
        class Actor:
            def threads(self):
                return os.environ["OMP_NUM_THREADS"]

        parl.connect(cpu_num=4)
        print(Actor().threads(), parl.with_options(Actor, n_cpu=3)().threads())
        """
    )
    mine = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    assert run_program(program=program, env=mine).stdout == "1 3\n"
    assert run_program(program=program, env={**mine, "OMP_NUM_THREADS": "2"}).stdout == "2 2\n"


def test_modules_named_in_preload_are_there_when_an_actor_starts(run_program: Run, tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text("import os\nloaded_by = os.getpid()\n")
    done = run_program(
        program=textwrap.dedent(
            """
            import os
            import parl_remote as parl

            @parl.remote_class
            class Actor:
                def loaded_by_another(self):
                    import heavy
                    return heavy.loaded_by != os.getpid()

            parl.connect(preload=["heavy"])
            print(Actor().loaded_by_another())
            """
        )
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_log_files_stay_where_they_were_asked_for(run_program: Run, tmp_path: Path) -> None:
    done = run_program(program=DOCUMENTED.replace("parl.connect()", "parl.connect(log_dir='logs')"))
    assert done.returncode == 0
    [log] = (tmp_path / "logs").iterdir()
    assert log.read_text() == "Hello world.\n" * 4
