"""Programs in unusual surroundings: closed descriptors, low limits, a directory that is gone."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parl_remote._transport.unix import UnixChannel, UnixListener, private_directory
from parl_remote.errors import ChannelClosed

Run = Callable[..., subprocess.CompletedProcess[str]]

ONE_CALL = """
import sys
import parl_remote as parl

@parl.remote_class
class Adder:
    def add(self, a, b):
        return a + b

parl.connect(cpu_num=1)
total = Adder().add(1, 2)
with open("total", "w") as file:
    file.write(str(total))
"""


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "0<&- 1>&- 2>&-"])
def test_a_program_without_stdin_or_stdout_has_its_cluster(tmp_path: Path, closed: str) -> None:
    (tmp_path / "program.py").write_text(ONE_CALL)
    command = ["bash", "-c", f'exec "$0" program.py {closed}', sys.executable]
    subprocess.run(command, cwd=tmp_path, timeout=240, check=False)
    assert (tmp_path / "total").read_text() == "3"


@pytest.mark.parametrize("name", ["contextvars", "secrets"])
def test_a_program_named_like_a_standard_module_is_not_imported_for_it(tmp_path: Path, name: str) -> None:
    program = tmp_path / f"{name}.py"
    program.write_text(f"assert __name__ == '__main__', 'imported'\n{ONE_CALL}")
    ran = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, timeout=240, check=False)
    assert (ran.stderr, (tmp_path / "total").read_text()) == (b"", "3")


@pytest.mark.slow
def test_more_actors_than_the_soft_limit_of_descriptors_do_not_end_the_node(run_program: Run) -> None:
    # The soft limit is for the program's own sake; the node takes what the hard one allows.
    result = run_program(
        program="""
import resource
import parl_remote as parl

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (32, hard))

@parl.remote_class(n_cpu=0)
class Adder:
    def add(self, a, b):
        return a + b

parl.connect(cpu_num=1)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
print(sum(adder.add(1, 1) for adder in [Adder() for _ in range(30)]))
"""
    )
    assert (result.stdout, result.stderr) == ("60\n", "")


def test_a_program_whose_directory_was_removed_makes_actors(run_program: Run, tmp_path: Path) -> None:
    result = run_program(
        program="""
import os
import parl_remote as parl

@parl.remote_class
class Adder:
    def add(self, a, b):
        return a + b

os.mkdir("gone")
os.chdir("gone")
os.rmdir("../gone")
parl.connect(cpu_num=1)
print(Adder().add(1, 2))
"""
    )
    assert (result.stdout, result.stderr) == ("3\n", "")


@pytest.mark.skipif(sys.version_info[:3] == (3, 13, 0), reason="this Python cannot import socket there")
@pytest.mark.parametrize("connect", ["", "parl.connect(cpu_num=1); "])
def test_a_program_whose_directory_was_removed_calls_functions(run_program: Run, connect: str) -> None:
    gone = "import os, parl; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')"
    result = run_program("-c", f"{gone}; {connect}print(list(parl.map(abs, [-1])))")
    assert (result.stdout, result.stderr) == ("[1]\n", "")


def test_actors_have_the_interpreter_options_of_the_program(run_program: Run) -> None:
    result = run_program(
        *("-O", "-W", "ignore:only here", "-X", "utf8"),
        "-c",
        """
import sys
import parl_remote as parl

def options(_):
    return sys.flags.optimize, sys.flags.utf8_mode, sys.warnoptions

parl.connect(cpu_num=1)
print(options(0), list(parl.map(options, [0])))
""",
    )
    options = "(1, 1, ['ignore:only here'])"
    assert (result.stdout, result.stderr) == (f"{options} [{options}]\n", "")


def test_an_actor_that_its_host_cannot_start_names_the_file_that_is_missing(run_program: Run) -> None:
    # As after a service that removes old files from /tmp.
    result = run_program(
        program="""
import os, shutil, tempfile
import parl_remote as parl

@parl.remote_class(n_cpu=0)
class Adder:
    pass

tempfile.tempdir = os.environ["TMPDIR"] = os.getcwd()
before = set(os.listdir())
parl.connect(cpu_num=1)
first = Adder()
[made] = set(os.listdir()) - before
shutil.rmtree(made)
try:
    Adder()
except parl.ActorLost as error:
    print("No such file or directory: " + os.path.join(os.getcwd(), made) in str(error))
"""
    )
    assert (result.stdout, result.stderr) == ("True\n", "")


def test_actors_see_the_program_s_arguments(run_program: Run, tmp_path: Path) -> None:
    (tmp_path / "arguments.py").write_text(
        """
import sys
import parl_remote as parl

@parl.remote_class
class Reader:
    def arguments(self):
        return sys.argv

parl.connect(cpu_num=1)
print(Reader().arguments() == sys.argv, sys.argv[1:])
"""
    )
    result = run_program("arguments.py", "--lr", "0.1")
    assert (result.stdout, result.stderr) == ("True ['--lr', '0.1']\n", "")


NO_DESCRIPTORS_LEFT = """
import os, resource, sys
import parl_remote as parl

@parl.remote_class(n_cpu=0)
class Adder:
    def add(self, a, b):
        return a + b

    def parent(self):
        return os.getppid()

parl.connect(cpu_num=1)
first = Adder()
zygote = first.parent()
node = int(open(f"/proc/{zygote}/stat").read().rpartition(")")[2].split()[1])
process = {"node": node, "zygote": zygote}[sys.argv[1]]
before = resource.prlimit(process, resource.RLIMIT_NOFILE)
resource.prlimit(process, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{process}/fd")) + 4, before[1]))
adders = []
try:
    while True:
        adders.append(Adder())
except parl.ActorLost as error:
    print(error)
print(all(adder.add(1, 1) == 2 for adder in [first, *adders]), 0 < len(adders) < 10)
for limited in [process, *open(f"/proc/{process}/task/{process}/children").read().split()]:  # a process forked ahead
    resource.prlimit(int(limited), resource.RLIMIT_NOFILE, before)
print(Adder().add(1, 1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("process", ["node", "zygote"])
def test_without_descriptors_one_actor_is_refused_and_the_others_go_on(
    run_program: Run, tmp_path: Path, process: str
) -> None:
    (tmp_path / "limited.py").write_text(NO_DESCRIPTORS_LEFT)
    result = run_program("limited.py", process)
    refused, *others = result.stdout.splitlines()
    # It could not be forked, or was forked with the limit and could not accept the connection.
    assert "could not start it (Too many open files)" in refused or "refused the connection: Too many" in refused
    assert (others, result.stderr) == (["True True", "2"], "")


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Within it this process can open nothing."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in taken:
            os.close(descriptor)


def test_a_listener_without_descriptors_turns_connections_away(tmp_path: Path) -> None:
    listener = UnixListener(tmp_path / "listener.sock")
    channel = UnixChannel.connect(listener.address)
    with no_descriptors():
        assert listener.poll() == []
    with pytest.raises(ChannelClosed):
        channel.receive(5.0)
    later = UnixChannel.connect(listener.address)
    assert len(listener.poll()) == 1
    for end in (channel, later, listener):
        end.close()


def test_sockets_go_below_tmp_where_the_directory_asked_for_is_too_long_or_read_only(tmp_path: Path) -> None:
    too_long = tmp_path / ("x" * 120)
    too_long.mkdir()
    for parent in (too_long, Path("/proc"), tmp_path / "missing"):
        directory = private_directory(parent)
        assert directory.parent == Path("/tmp")
        assert directory.stat().st_mode & 0o777 == 0o700
        directory.rmdir()
