"""Files and code where actors run: on a worker that does not see the program's directories, and on those that do.

A worker on another host is one that the program must not take the short cut to (`PARL_FORCE_TCP`); where this user may
mount things, the program's directory exists for the program only, so that nothing can be found by accident.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults.ports import unused_port

XPARL = [sys.executable, "-m", "parl_remote.cli"]
WITHIN_S = 60.0


def write(directory: Path, **files: str) -> None:
    """Files by their paths with "__" for "/"; Python unless the name says otherwise with a last "_txt"."""
    for name, content in files.items():
        path = name.replace("__", "/")
        path = f"{path[:-4]}.txt" if path.endswith("_txt") else f"{path}.py"
        path = path.replace("/init.py", "/__init__.py")
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(textwrap.dedent(content))


@dataclass
class Cluster:
    """A cluster of this host, with slots for four actors."""

    home: Path
    port: int
    scratch: Path
    variables: dict[str, str]

    def xparl(self, *arguments: str) -> None:
        command = [*XPARL, *arguments]
        done = subprocess.run(
            command, cwd=self.home, env=self.environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PARL_", "XDG_", "TMPDIR"))}
        paths = os.pathsep.join(path for path in sys.path if path and "tests" not in path)
        kept |= self.variables
        return {
            **kept,
            "PARL_MONITOR": "0",
            "PARL_SHUTDOWN_GRACE": "60",  # a node that is killed leaves its files to the next one
            "PARL_RUN_DIR": str(self.home / "run"),
            "TMPDIR": str(self.scratch),
            "PYTHONPATH": paths,
        }

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def contents(self) -> dict[str, int]:
        """Hashes that the worker keeps, with the files' numbers."""
        return {
            path.name: path.stat().st_ino for path in self.scratch.glob("parl-*/files/contents/*") if path.is_file()
        }

    def folders(self) -> list[Path]:
        """The jobs' folders."""
        return list(self.scratch.glob("parl-*/files/jobs/*"))

    def run(self, project: Path, *command: str, hidden: bool = False, program: str = "") -> str:
        """Run a program that does not see the worker's way to its files; `hidden` ones are seen by no one else."""
        words = [sys.executable, *command]
        if hidden:
            # The project is copied to where only this process and its children see it.
            script = 'mount -t tmpfs none "$1" && cp -r "$2"/. "$1" && cd "$1" && shift 2 && exec "$@"'
            place = self.home / "seen only by the program"
            place.mkdir(exist_ok=True)
            words = ["unshare", "-m", "sh", "-c", script, "sh", str(place), str(project), *words]
        done = subprocess.run(
            words,
            cwd=project,
            env={**self.environment, "PARL_FORCE_TCP": "1", "ADDRESS": self.address},
            input=program,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


def start_cluster(home: Path, scratch: Path, **variables: str) -> Cluster:
    port = unused_port()
    home.mkdir(exist_ok=True)
    # What lies around at the worker must not be taken for the program's own.
    write(home, utils="WHOSE = 'the worker'", settings__init="WHOSE = 'the worker'")
    cluster = Cluster(home, port, scratch, variables)
    cluster.xparl("start", "--port", str(port), "--cpu_num", "4")
    return cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="parl-files-") as directory:
        scratch = Path(directory, "scratch")
        scratch.mkdir()
        cluster = start_cluster(Path(directory, "home"), scratch)
        yield cluster
        cluster.xparl("stop", "--all")
        assert not list(scratch.iterdir())


@pytest.fixture
def may_mount() -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount anything")


PROJECT = {
    "utils": "WHOSE = 'the program'",
    "settings__init": "WHOSE_ELSE = 1\nfrom . import deep\nWHOSE = 'the program'",
    "settings__deep__init": "from .. import WHOSE_ELSE",
    "settings__computed__one": "VALUE = 'computed'",
    "space__inner__part": "class OwnError(Exception): pass\ndef fail(): raise OwnError('on purpose')",
    "beside": "VALUE = 'beside'",
    "model": """
        import parl_remote as parl
        import utils

        @parl.remote_class
        class Model:
            def whose(self):
                from settings import WHOSE
                return utils.WHOSE, WHOSE
            def beside(self):
                import importlib
                return importlib.import_module("be" + "side").VALUE
            def computed(self, name):
                import importlib
                return importlib.import_module(f"settings.computed.{name}").VALUE
            def fail(self):
                import importlib
                importlib.import_module("space.inner.part").fail()
            def where(self):
                import os
                return os.path.dirname(os.path.abspath(utils.__file__)), os.getcwd()
    """,
    "main": """
        import os
        import parl_remote as parl
        from model import Model
        from space.inner.part import OwnError

        @parl.remote_class
        class InMain:
            def whose(self):
                import utils
                return utils.WHOSE

        parl.connect(os.environ["ADDRESS"])
        model = Model()
        print(*model.whose(), InMain().whose(), model.beside(), model.computed("one"))
        try:
            model.fail()
        except OwnError as error:
            print("OwnError", error)
        where, directory = model.where()
        print(where == directory, directory != os.getcwd())
    """,
}
SEEN = ["the program the program the program beside computed", "OwnError on purpose", "True True"]


@pytest.mark.slow
def test_all_of_the_users_modules_travel(cluster: Cluster, tmp_path: Path) -> None:
    write(tmp_path, **PROJECT)
    assert cluster.run(tmp_path, "main.py").splitlines() == SEEN


def test_they_are_sent_where_the_programs_directory_is_invisible(
    cluster: Cluster, tmp_path: Path, may_mount: None
) -> None:
    write(tmp_path, **PROJECT)
    assert cluster.run(tmp_path, "main.py", hidden=True).splitlines() == SEEN


def test_a_worker_of_this_host_that_cannot_see_the_directory_is_sent_it(
    cluster: Cluster, tmp_path: Path, may_mount: None
) -> None:
    write(tmp_path, **PROJECT)
    source = (tmp_path / "main.py").read_text()
    (tmp_path / "main.py").write_text("import os; del os.environ['PARL_FORCE_TCP']\n" + source)
    assert cluster.run(tmp_path, "main.py", hidden=True).splitlines() == SEEN


def test_the_main_program_may_be_a_module_of_a_package(cluster: Cluster, tmp_path: Path) -> None:
    write(tmp_path, app__init="", app__helper="VALUE = 'of the package'", app__sub__init="", app__sub__more="VALUE = 7")
    write(
        tmp_path,
        app__main="""
            import os
            import parl_remote as parl
            from . import helper

            @parl.remote_class
            class Actor:
                def look(self):
                    from app.sub import more
                    return helper.VALUE, more.VALUE

            parl.connect(os.environ["ADDRESS"])
            print(*Actor().look())
        """,
    )
    assert cluster.run(tmp_path, "-m", "app.main") == "of the package 7"


def test_a_script_elsewhere_finds_the_modules_beside_it_and_the_files_of_its_directory(
    cluster: Cluster, tmp_path: Path
) -> None:
    write(tmp_path, scripts__helper="VALUE = 'beside the script'", work__data__a_txt="of the directory")
    write(
        tmp_path,
        scripts__main="""
            import os
            import parl_remote as parl
            import helper

            @parl.remote_class
            class Actor:
                def look(self):
                    return helper.VALUE, open("data/a.txt").read()

            parl.connect(os.environ["ADDRESS"], ["data"])
            print(*Actor().look())
        """,
    )
    assert cluster.run(tmp_path / "work", "../scripts/main.py") == "beside the script of the directory"


PIPED = """
import os
import parl_remote as parl

@parl.remote_class
class Actor:
    def look(self):
        from inner.helper import VALUE
        import beside
        return VALUE, beside.VALUE

parl.connect(os.environ["ADDRESS"])
print(*Actor().look())
"""


@pytest.mark.parametrize("how", ["-c", "-"])
def test_a_program_without_a_file_brings_the_modules_of_its_directory(
    cluster: Cluster, tmp_path: Path, how: str
) -> None:
    write(tmp_path, inner__helper="VALUE = 'from below'", beside="import inner.helper\nVALUE = 'from here'")
    import_first = "import beside\n" if how == "-" else ""  # what came through a pipe is not kept
    program = import_first + PIPED
    out = cluster.run(tmp_path, "-c", program) if how == "-c" else cluster.run(tmp_path, "-", program=program)
    assert out == "from below from here"


def test_a_notebook_brings_the_modules_that_its_cells_import(cluster: Cluster, tmp_path: Path) -> None:
    """IPython keeps what was entered in a list; a shell that runs cells is enough to have that."""
    pytest.importorskip("IPython")
    write(tmp_path, inner__helper="VALUE = 'from below'", beside="VALUE = 'from here'")
    write(
        tmp_path,
        shell=f"""
            from IPython.core.interactiveshell import InteractiveShell
            import sys
            sys.path.insert(0, "")
            del sys.modules["__main__"].__file__
            shell = InteractiveShell.instance(user_module=sys.modules["__main__"])
            for cell in ["%time 1\\n", {PIPED!r}]:
                shell.run_cell(cell, store_history=True).raise_error()
        """,
    )
    assert cluster.run(tmp_path, "shell.py").splitlines()[-1] == "from below from here"


FILES = """
import hashlib, os, sys
import parl_remote as parl

@parl.remote_class
class Actor:
    def tree(self):
        found = []
        for directory, inner, files in os.walk("."):
            inner[:] = [name for name in inner if name != "__pycache__"]
            found += [os.path.relpath(os.path.join(directory, name)) for name in inner]
            for name in files:
                path = os.path.join(directory, name)
                found.append((os.path.relpath(path), open(path).read(), os.access(path, os.X_OK)))
        return sorted(found, key=str)
    def write(self):
        with open("data/a.txt", "w") as file:
            file.write("changed by the actor")

address = {"cluster": os.environ["ADDRESS"], "same host": os.environ["ADDRESS"], "local": None}[sys.argv[1]]
if sys.argv[1] == "same host":
    del os.environ["PARL_FORCE_TCP"]
parl.connect(address, distributed_files=["data", "conf*/*.txt", "!*.tmp.txt"])
actor = Actor()
print(*(entry for entry in actor.tree() if "main.py" not in entry), sep="\\n")
actor.write()
print(open("data/a.txt").read())
"""


@pytest.mark.parametrize("where", ["cluster", "same host", "local"])
def test_files_lie_at_the_same_relative_paths_wherever_the_actor_runs(
    cluster: Cluster, tmp_path: Path, where: str
) -> None:
    write(tmp_path, data__a_txt="a", data__deep__b_txt="b", config__c_txt="c", data__d__tmp_txt="", other_txt="no")
    (tmp_path / "data/x.tmp.txt").touch()
    (tmp_path / "data/deep/b.txt").chmod(0o755)
    (tmp_path / "data/empty").mkdir()
    (tmp_path / "main.py").write_text(FILES)
    assert cluster.run(tmp_path, "main.py", where).splitlines() == [
        "('config/c.txt', 'c', False)",
        "('data/a.txt', 'a', False)",
        "('data/d/tmp.txt', '', False)",
        "('data/deep/b.txt', 'b', True)",
        "config",
        "data",
        "data/d",
        "data/deep",
        "data/empty",
        "a",
    ]


LOOK = """
import os
import parl_remote as parl
import changing

@parl.remote_class
class Actor:
    def look(self):
        return changing.VALUE, open("data.txt").read()

parl.connect(os.environ["ADDRESS"], ["data.txt"])
print(*Actor().look())
"""


def test_what_changed_between_two_runs_is_seen_as_changed(cluster: Cluster, tmp_path: Path) -> None:
    seen = []
    (tmp_path / "main.py").write_text(LOOK)
    for value in "12":
        write(tmp_path, changing=f"VALUE = {value}", data_txt=value)
        os.utime(tmp_path / "changing.py", (1e9, 1e9))  # same time, same size: only the content tells
        os.utime(tmp_path / "data.txt", (1e9, 1e9))
        seen.append(cluster.run(tmp_path, "main.py"))
    assert seen == ["1 1", "2 2"]


def test_a_module_that_changes_while_the_program_runs_is_seen_by_the_next_actor(
    cluster: Cluster, tmp_path: Path
) -> None:
    write(tmp_path, changing="VALUE = 'before'", data_txt="data")
    (tmp_path / "main.py").write_text(
        LOOK + "open('changing.py', 'w').write('VALUE = \"after\"')\nprint(*Actor().look())\n"
    )
    assert cluster.run(tmp_path, "main.py").splitlines() == ["before data", "after data"]


@pytest.mark.slow
def test_contents_are_sent_once_and_folders_go_with_their_program(cluster: Cluster, tmp_path: Path) -> None:
    write(tmp_path, changing="VALUE = 1", data_txt="once" * 1000)
    (tmp_path / "main.py").write_text(LOOK)
    cluster.run(tmp_path, "main.py")
    first = cluster.contents
    assert hashlib.sha256(b"once" * 1000).hexdigest() in first
    cluster.run(tmp_path, "main.py")
    assert cluster.contents == first
    await_no_folders(cluster)


def await_no_folders(cluster: Cluster) -> None:
    """The worker removes them in a thread of its own; there is nothing to wait on but the directory."""
    deadline = time.monotonic() + WITHIN_S
    while cluster.folders():
        assert time.monotonic() < deadline, cluster.folders()
        os.sched_yield()


def test_folders_go_when_the_program_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    write(tmp_path, changing="VALUE = 1", data_txt="data")
    (tmp_path / "main.py").write_text(LOOK + f"import os, signal; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    with pytest.raises(AssertionError):
        cluster.run(tmp_path, "main.py")
    await_no_folders(cluster)


@pytest.mark.slow
def test_many_and_large_files_arrive_whole(cluster: Cluster, tmp_path: Path) -> None:
    large = os.urandom(2**20) * 37 + b"!"
    (tmp_path / "data").mkdir()
    (tmp_path / "data/large").write_bytes(large)
    for number in range(3000):
        (tmp_path / f"data/{number}.txt").write_text(str(number))
    write(
        tmp_path,
        main="""
            import hashlib, os
            import parl_remote as parl

            @parl.remote_class
            class Actor:
                def look(self):
                    with open("data/large", "rb") as file:
                        digest = hashlib.file_digest(file, "sha256").hexdigest()
                    return digest, sum(int(open(f"data/{number}.txt").read()) for number in range(3000))

            parl.connect(os.environ["ADDRESS"], ["data"])
            print(*Actor().look())
        """,
    )
    assert cluster.run(tmp_path, "main.py") == f"{hashlib.sha256(large).hexdigest()} {sum(range(3000))}"


@pytest.mark.slow
def test_what_an_actor_got_it_passes_on_to_actors_that_it_makes_elsewhere(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="parl-files-") as directory:
        cluster = start_cluster(Path(directory, "home"), Path(directory), PARL_FORCE_TCP="1")
        write(tmp_path, data__a_txt="from the program", helper="VALUE = 'its module'")
        write(
            tmp_path,
            scripts__main="""
                import os, sys
                import parl_remote as parl
                sys.path.append("")
                import helper, beside

                @parl.remote_class
                class Inner:
                    def look(self):
                        return helper.VALUE, beside.VALUE, open("data/a.txt").read(), os.getcwd()

                @parl.remote_class
                class Outer:
                    def look(self):
                        os.chdir("/")
                        return *Inner().look(), os.getcwd()

                parl.connect(os.environ["ADDRESS"], ["data"])
                *seen, inner, outer = Outer().look()
                print(*seen, inner != os.getcwd())
            """,
            scripts__beside="VALUE = 'the one beside it'",
        )
        try:
            out = cluster.run(tmp_path, "scripts/main.py")
        finally:
            cluster.xparl("stop", "--all")
    assert out == "its module the one beside it from the program True"


def test_a_file_that_changed_since_connect_is_named(cluster: Cluster, tmp_path: Path) -> None:
    write(tmp_path, changing="VALUE = 1", data_txt="as it was at connect, and never sent before")
    source = LOOK.replace("print(*Actor()", "open('data.txt', 'a').write('more')\nprint(*Actor()")
    (tmp_path / "main.py").write_text(source)
    with pytest.raises(AssertionError, match=r"RemoteError: .*data\.txt was changed or removed after parl\.connect"):
        cluster.run(tmp_path, "main.py")


@pytest.mark.slow
def test_a_full_disk_fails_the_call_with_the_figures_and_the_worker_goes_on(tmp_path: Path, small_disk: Path) -> None:
    cluster = start_cluster(tmp_path / "home", small_disk)
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "data/large").write_bytes(os.urandom(5 * 2**20))
    write(
        project,
        main="""
            import json, os
            import parl_remote as parl

            @parl.remote_class
            class Actor:
                def answer(self):
                    return 42

            told = []
            for files in (["data"], []):
                parl.connect(os.environ["ADDRESS"], files)
                try:
                    told.append(Actor().answer())
                except parl.RemoteError as error:
                    told.append([type(error).__name__, str(error)])
                parl.disconnect()
            print(json.dumps(told))
        """,
    )
    try:
        (kind, text), answer = json.loads(cluster.run(project, "main.py"))
    finally:
        cluster.xparl("stop", "--all")
    assert kind == "RemoteError"
    assert "No space left on device" in text or "MiB are needed" in text
    assert "MiB are needed and" in text
    assert answer == 42


def test_debug_actors_get_the_same_errors_and_see_the_files_themselves(
    connect: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import parl_remote

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="nothing matches 'data'"):
        connect(debug=True, distributed_files=["data"])
    (tmp_path / "data").mkdir()
    connect(debug=True, distributed_files=["data"])
    assert parl_remote.get_global_client().address == "debug"


def test_other_files_need_another_connection(
    connect: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import parl_remote

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").touch()
    connect()
    with pytest.raises(parl_remote.RemoteError, match="only the call that connects takes distributed_files"):
        parl_remote.connect(distributed_files=["a.txt"])
