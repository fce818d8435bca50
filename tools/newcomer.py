"""Run the commands of the READMEs exactly as they are on the pages.

    python tools/newcomer.py                    all journeys, and all other commands of the READMEs
    python tools/newcomer.py remote cluster     some journeys
    python tools/newcomer.py --list             the commands, and which journey runs each

A journey begins in an environment with Python and pip, an empty folder and an empty home. pip finds the wheels of this
checkout as if they were on the index, and torch and paddle in the versions of `tools/constraints.txt`. Commands that
need a clone run in one.

| journey | from | to |
| --- | --- | --- |
| `remote` | `pip install parl-remote` | the first remote call |
| `agent` | `pip install parl-torch ...` | the README's agent, trained |
| `train` | the same | the result of `parl train` |
| `quickstart` | `git clone` | `hatch run quickstart` |
| `notebook` | `git clone` | the course's first notebook, run |
| `cluster` | `pip install parl-remote` on two hosts (network namespaces) | actors on both |
| `evolution` | `pip install parl-evokit` | its loop of commands, up to the third update |
| `docs` | `git clone` | `hatch run docs:build` |
| `rest` | everything installed | the commands of the READMEs that no other journey runs |

`NOT_RUN` has the reasons for commands that are not run. A journey fails if its command is not on its page.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
READMES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("packages/*/README.md")))
COURSE, CLUSTER = "examples/course/README.md", "docs/how-to/cluster.md"
NOT_RUN = {
    r"hatch run (test|check|cov)\b": "the suites are run separately",
    r"^parl (play|resume|export)\b|runs/…": "needs a run of the user",
    r"hosts\.toml|\bscp\b|\bssh\b": "needs hosts with ssh",
    r"^xparl (start|connect|status|stop)|my_program\.py": "the journey `cluster` does it on two hosts",
    r"^evokit (init-solver|online-sampling)|^for \(\(epoch": "the journey `evolution` does it for three rounds",
    r"^git clone": "journeys clone this checkout instead",
}
_COMMAND_S = 3600.0
_SHELL = ("sh", "bash", "shell", "console")
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PROGRAMS = re.compile(r"(python -m )?(pip|hatch|parl|xparl|evokit|git|cd|export|python)\b")


class JourneyError(RuntimeError):
    """A command failed, or is not on its page."""


class Page:
    """The commands and programs of a page, in order."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.text = (ROOT / path).read_text(encoding="utf-8")
        self.commands = [command for kind, text in self._blocks() for command in _commands(kind, text)]
        self.programs = [text for kind, text in self._blocks() if kind == "python"]

    def _blocks(self) -> Iterator[tuple[str, str]]:
        for found in _BLOCK.finditer(self.text):
            yield found[1], textwrap.dedent(found[2])

    def command(self, pattern: str) -> str:
        """Return the first command that contains the pattern, in a block or in a sentence.

        Raises:
            JourneyError: There is none.
        """
        spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", _BLOCK.sub("", self.text))]
        for command in [*self.commands, *(span for span in spans if _PROGRAMS.match(span))]:
            if re.search(pattern, command):
                return command
        raise JourneyError(f"{self.path} has no command with {pattern!r} any more; it has {self.commands}")

    def block(self, words: str) -> str:
        """Return the first block that begins with the words.

        Raises:
            JourneyError: There is none.
        """
        for _, text in self._blocks():
            if text.startswith(words):
                return text
        raise JourneyError(f"{self.path} has no block that begins with {words!r} any more")

    def program(self, words: str) -> str:
        """Return the first Python block that contains the words.

        Raises:
            JourneyError: There is none.
        """
        for program in self.programs:
            if words in program:
                return program
        raise JourneyError(f"{self.path} has no Python block with {words!r} any more")


def _commands(kind: str, text: str) -> Iterator[str]:
    """Yield the commands of a block: the texts after prompts, or all lines; commands may span several lines."""
    if kind not in _SHELL and not (kind == "" and _PROGRAMS.match(text)):
        return
    prompted = re.search(r"^\$ ", text, re.MULTILINE)
    command = ""
    for line in text.splitlines():
        if prompted and not command and not line.startswith("$ "):
            continue  # output of the command
        command += line.removeprefix("$ ") + "\n"
        if line.endswith("\\") or subprocess.run(["bash", "-n", "-c", command], stderr=subprocess.DEVNULL).returncode:
            continue
        if uncommented := re.sub(r"(^|\s)#[^\n]*", "", command).strip():
            yield uncommented
        command = ""
    if command:
        raise JourneyError(f"bash does not understand {command!r}")


class Row(NamedTuple):
    """A command that ran."""

    journey: str
    command: str
    seconds: float


class Traveller:
    """A user with Python, pip and an empty folder."""

    def __init__(self, journey: str, folder: Path, wheels: Path, rows: list[Row]) -> None:
        self.folder = folder / journey
        self._journey = journey
        self._rows = rows
        self._environment = folder / f"{journey}-environment"
        self.clone = folder / f"{journey}-clone"
        home = folder / f"{journey}-home"
        for made in (self.folder, home):
            made.mkdir()
        self.variables = {
            "HOME": str(home),
            "PARL_RUN_DIR": str(home / ".parl"),  # parl-remote gets the home folder from the system, not from HOME
            "PATH": f"{self._environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PIP_CONSTRAINT": str(ROOT / "tools" / "constraints.txt"),
            "PIP_FIND_LINKS": f"{wheels} {os.environ.get('PIP_FIND_LINKS', '')}".strip(),
            "PIP_CACHE_DIR": _pip_cache(),
            "PIP_QUIET": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            **{name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")},
            **{name: os.environ[name] for name in ("PIP_CERT", "PIP_INDEX_URL", "SSL_CERT_FILE") if name in os.environ},
        }
        self.run(f"{sys.executable} -m venv {self._environment}")

    def run(self, command: str, *before: str, folder: Path | None = None, within: float = _COMMAND_S) -> str:
        """Run a command in bash, and return its output.

        Args:
            command: The command as on the page.
            before: Words of a program that runs it, such as one that enters a network namespace.
            folder: Working directory; default: the traveller's own folder.
            within: Time limit in seconds.

        Raises:
            JourneyError: It fails, or takes longer.
        """
        print(f"{self._journey}$ {command}", flush=True)
        began = time.monotonic()
        output = self.folder / ".output"  # a file, because processes that a command leaves behind may keep a pipe open
        with output.open("w+") as stream:
            running = subprocess.Popen(
                [*before, "bash", "-c", command],
                cwd=folder or self.folder,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
            try:
                code: int | str = running.wait(within)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
                code = f"not done after {within:.0f} s"
        said = output.read_text(errors="replace")
        self._rows.append(Row(self._journey, command, time.monotonic() - began))
        if code:
            raise JourneyError(f"{command!r}: {code}\n{said[-4000:]}")
        return said

    def program(self, text: str, export: str = "true", *before: str) -> str:
        """Run a Python block of a page as a file, after a command that sets variables."""
        (self.folder / "program.py").write_text(text, encoding="utf-8")
        return self.run(f"{export}; python program.py", *before)

    def cloned(self) -> Path:
        """Return a clone of this checkout."""
        if not self.clone.exists():
            self.run(f"git clone --quiet {ROOT} {self.clone}")
        return self.clone


def remote(traveller: Traveller) -> None:
    """Install parl-remote and make the first remote call."""
    page = Page("README.md")
    traveller.run(Page("packages/parl-remote/README.md").command(r"^pip install parl-remote$"))
    said = traveller.program(page.program("@parl.remote_class"))
    _expect(said.strip(), "the remote program prints something")


def agent(traveller: Traveller) -> None:
    """Install a backend and train the README's agent."""
    page = Page("README.md")
    traveller.run(page.command(r"^pip install .*parl-torch"))
    traveller.program(page.program("parl.Agent("))
    _expect([*traveller.folder.glob("*.ckpt")], "the program saves its agent")


def train(traveller: Traveller) -> None:
    """Install a backend and train with one command."""
    page = Page("README.md")
    traveller.run(page.command(r"^pip install .*parl-torch"))
    said = traveller.run(page.command(r"^parl train ppo CartPole-v1$"))
    print(textwrap.indent("\n".join(said.splitlines()[-6:]), "  "))
    (run,) = {path.parent for path in (traveller.folder / "runs").rglob("*.ckpt")} or {Path("runs")}
    traveller.run(f"parl evaluate {run}")


def quickstart(traveller: Traveller) -> None:
    """Clone, and train the quickstart."""
    clone = _clone_with_hatch(traveller)
    said = traveller.run(Page("README.md").command("hatch run quickstart"), folder=clone)
    print(textwrap.indent("\n".join(said.splitlines()[-6:]), "  "))


def notebook(traveller: Traveller) -> None:
    """Clone, and run the course's first notebook from its first cell to its last."""
    page = Page(COURSE)
    (name, *_) = re.findall(r"\(([\w/.]+\.ipynb)\)", page.text) or [""]
    _expect(name, f"{COURSE} links a notebook")
    traveller.run(page.command(r"^pip install .* notebook$"))
    # The command on the page opens a browser and waits.
    traveller.run(f"jupyter execute {name}", folder=traveller.cloned() / Path(COURSE).parent)


def cluster(traveller: Traveller) -> None:
    """Start a cluster of two hosts that find each other by name, and use both."""
    page = Page(CLUSTER)
    traveller.run(Page("packages/parl-remote/README.md").command(r"^pip install parl-remote$"))
    sys.path[:0] = [str(ROOT / "tests"), *map(str, ROOT.glob("packages/*/src"))]
    from faults.packet_network import PacketNetwork  # its imports are missing in the environments of other journeys

    names = (re.findall(r"--address (\w+):", page.text)[0], "second")
    traveller.variables["PARL_FORCE_TCP"] = "1"  # namespaces share a file system, hosts do not
    with PacketNetwork(names) as network, contextlib.ExitStack() as undo:
        hosts = network.hosts
        known = "".join(f"{host.address} {name}\n" for name, host in hosts.items())
        for host in hosts.values():
            place = Path("/etc/netns") / host.namespace  # `ip netns exec` mounts the files of this folder over /etc
            place.mkdir(parents=True)
            undo.callback(shutil.rmtree, place)
            (place / "hosts").write_text(f"127.0.0.1 localhost\n{known}", encoding="utf-8")
        first, second = (
            host.command("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name)
            for name, host in hosts.items()
        )
        join = page.command(r"^xparl connect --address")
        port = re.findall(r":(\d+)", join)[0]
        undo.callback(traveller.run, f"xparl stop --port {port}", *first)
        traveller.run(page.command(r"^xparl start .*--host 0\.0\.0\.0"), *first)
        copy = page.command(r"^scp \w+:")  # the hosts share a file system, so cp is enough
        traveller.run(re.sub(r"^scp \w+:(~/)?", "cp ~/", copy), *second)
        export = page.command("^export PARL_KEY_FILE=")
        traveller.run(f"{export}; {join}", *second)
        said = traveller.program(_BOTH_HOSTS.format(address=f"{names[0]}:{port}"), export, *first)
        _expect("2 hosts" in said, f"actors run on both hosts: {said}")


_BOTH_HOSTS = """
import os
import parl


@parl.remote_class(wait=False)
class Where:
    def network(self):
        return os.readlink("/proc/self/ns/net")


if __name__ == "__main__":
    parl.connect("{address}")
    actors = [Where() for _ in range(2 * os.cpu_count())]
    print(len({{actor.network().result() for actor in actors}}), "hosts")
"""


def evolution(traveller: Traveller) -> None:
    """Run evokit's loop of commands, with the model and settings of the page but fewer rounds."""
    traveller.run(Page("packages/parl-evokit/README.md").command(r"^pip install .*parl-evokit\[loop\]"))
    page = Page("docs/reference/evokit/command_line.md")
    (made, *_) = re.findall(r"`(mlp\([^`]+\.save\(directory\))`", page.text) or [""]
    _expect(made, f"{page.path} says how the first model is saved")
    loop = page.command(r"evokit online-sampling")
    directory = re.findall(r"--model_dir=(\S+)", page.command("evokit init-solver"))[0]
    config = re.findall(r"--config_path=(\S+)", loop)[0]
    (traveller.folder / config).write_text(page.block("solver {"), encoding="utf-8")
    traveller.program(f"from parl_evokit import mlp\ndirectory = {directory!r}\n{made}\n")
    traveller.run(page.command("evokit init-solver"))
    traveller.run(re.sub(r"epoch<\d+", "epoch<3", loop))
    last = re.sub(r"0$", "3", directory)
    _expect((traveller.folder / last).is_dir(), f"the loop writes {last}")


def docs(traveller: Traveller) -> None:
    """Clone, and build the documentation."""
    clone = _clone_with_hatch(traveller)
    traveller.run(Page("README.md").command("hatch run docs:build"), folder=clone)
    _expect([*clone.glob("dist/docs/index.html")], "the site has a home")


def rest(traveller: Traveller) -> None:
    """Run all commands of the READMEs that no journey has run."""
    done = {row.command for row in traveller._rows}
    left = [command for path in READMES for command in Page(path).commands if command not in done]
    traveller.run("pip install parl-torch parl-remote parl-evokit hatch")
    for command in dict.fromkeys(left):
        if not reason_not_to_run(command):
            needs_clone = re.search(r"\bhatch\b|(^|\s)(examples|benchmarks|tools)/", command)
            traveller.run(command, folder=traveller.cloned() if needs_clone else None)


def reason_not_to_run(command: str) -> str | None:
    """Return the reason not to run a command; None for commands that are run."""
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, command)), None)


JOURNEYS: dict[str, Callable[[Traveller], None]] = {
    "remote": remote,
    "agent": agent,
    "train": train,
    "quickstart": quickstart,
    "notebook": notebook,
    "cluster": cluster,
    "evolution": evolution,
    "docs": docs,
    "rest": rest,
}


def _clone_with_hatch(traveller: Traveller) -> Path:
    """Return a clone, after installing hatch as in the README."""
    traveller.run(Page("README.md").command(r"pip install hatch$"))
    return traveller.cloned()


def _expect(found: object, what: str) -> None:
    if not found:
        raise JourneyError(f"not so: {what}")


def _pip_cache() -> str:
    done = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or tempfile.gettempdir()


def _wheels(folder: Path) -> Path:
    """Return a folder with the wheels of the committed packages, built from the sdists."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    for package in sorted(clone.glob("packages/*")):
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "wheels"), str(package)]
        subprocess.run(command, check=True, capture_output=True)
    return folder / "wheels"


def main(chosen: list[str]) -> int:
    """Run the journeys, and print the seconds of each command."""
    rows: list[Row] = []
    failed = []
    with tempfile.TemporaryDirectory(prefix="parl-newcomer-") as place:
        folder = Path(place)
        wheels = _wheels(folder)
        for name in chosen or JOURNEYS:
            try:
                JOURNEYS[name](Traveller(name, folder, wheels, rows))
            except JourneyError as error:
                failed.append(f"{name}: {error}")
    print("\n| journey | command | seconds |\n| --- | --- | --- |")
    for row in rows:
        shown = " ".join(row.command.split())
        print(f"| {row.journey} | `{shown if len(shown) < 100 else shown[:97] + '...'}` | {row.seconds:.1f} |")
    for name in {row.journey: None for row in rows}:
        print(f"| {name} | in all | {sum(row.seconds for row in rows if row.journey == name):.0f} |")
    print("".join(f"\nFAILED {what}" for what in failed))
    return int(bool(failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journey", nargs="*", choices=[[], *JOURNEYS], help="journeys to run; default: all")
    parser.add_argument("--list", action="store_true", help="print the commands of the READMEs")
    arguments = parser.parse_args()
    if arguments.list:
        for page in READMES:
            for line in Page(page).commands:
                print(f"{page}: {line!r}  {reason_not_to_run(line) or ''}")
        sys.exit()
    sys.exit(main(arguments.journey))
