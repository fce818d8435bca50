"""The rules and queries of `examples/deploy/prometheus` with a real Prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.ports import unused_port

DEPLOY = Path(__file__).parents[4] / "examples" / "deploy" / "prometheus"
DASHBOARD = DEPLOY / "dashboard.json"
PATIENCE_S = 120.0
NEEDS_A_GPU = "parl_gpu_"

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="no prometheus: apt-get install prometheus"
)

PROGRAM = """
import os, sys
import parl_remote as parl

@parl.remote_class(max_restarts=-1)
class Worker:
    def work(self): return 1
    def fail(self): raise ValueError("on purpose")
    def die(self): os._exit(3)

parl.connect(sys.argv[1])
workers = [Worker() for _ in range(2)]
for kind in ("die", "fail"):
    try:
        getattr(workers[0], kind)()
    except Exception:  # as meant
        pass
print("ready", flush=True)
while True:
    for worker in workers:
        try:
            worker.work()
        except parl.ActorLost:
            pass
"""


def queries() -> list[tuple[str, str]]:
    """All queries of the dashboard with the panels that they are in, variables filled in."""
    filled = {"$instance": ".*", "$__rate_interval": "30s"}
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in filled.items():
                query = query.replace(name, value)
            assert "$" not in query, query
            found.append((panel["title"], query))
    return found


def test_the_dashboard_and_the_rules_name_only_metrics_that_there_are(monitor: Any) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    from parl_remote._monitor.app import metrics_of

    families = text_string_to_metric_families(metrics_of(monitor.store).decode())
    known = {f"{one.name}_total" if one.type == "counter" else one.name for one in families}
    used = {name for _, query in queries() for name in re.findall(r"parl_\w+", query)}
    rules = re.sub(r"#.*", "", (DEPLOY / "alerts.yml").read_text())
    used |= {name for line in re.findall(r"expr:(.*(?:\n {10}.*)*)", rules) for name in re.findall(r"parl_\w+", line)}
    assert len(used) > 20
    assert used - known == set()


def test_panels_of_the_dashboard_have_places_and_numbers_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells


@needs_prometheus
def test_the_alert_rules_pass_their_own_tests() -> None:
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=DEPLOY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


class Site:
    """A cluster of two nodes with a program, its monitor, and a Prometheus that scrapes it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port, self.monitor_port, self.prometheus_port = unused_port(), unused_port(), unused_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PARL_", "XDG_"))}
        paths = os.pathsep.join(path for path in sys.path if path)
        self.environment = {**kept, "HOME": str(home), "PARL_RUN_DIR": str(home / "run"), "PYTHONPATH": paths}
        self.running: list[subprocess.Popen[str]] = []

    def xparl(self, *arguments: object) -> str:
        command = [sys.executable, "-m", "parl_remote.cli", *map(str, arguments)]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=240, check=True
        ).stdout

    def spawn(self, *command: object, log: str) -> subprocess.Popen[str]:
        with (self.home / log).open("w") as file:
            running = subprocess.Popen(
                list(map(str, command)), env=self.environment, stdout=subprocess.PIPE, stderr=file, text=True
            )
        self.running.append(running)
        return running

    def scrape(self) -> None:
        """Start Prometheus with the configuration of the example, for this cluster and in a hurry."""
        config = (DEPLOY / "prometheus.yml").read_text()
        token = next((self.home / "run").glob(f"*-{self.port}/monitor.token"))
        for old, new in (
            ('"first:8137"', f'"127.0.0.1:{self.monitor_port}"'),
            ("credentials_file: monitor.token", f"credentials_file: {token}"),
            ("- alerts.yml", f"- {DEPLOY / 'alerts.yml'}"),
            ("15s", "1s"),
        ):
            assert old in config
            config = config.replace(old, new)
        (self.home / "prometheus.yml").write_text(config)
        self.spawn(
            "prometheus",
            f"--config.file={self.home / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.home / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.prometheus_port}",
            log="prometheus.log",
        )

    def ask(self, query: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        rows: list[dict[str, Any]] = found["data"]["result"]
        return rows

    def answered(self, query: str) -> list[dict[str, Any]]:
        """The answer to a query, once there is one."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if found := self.ask(query):
                    return found
            except (urllib.error.URLError, ConnectionError):
                pass
            if time.monotonic() > deadline:
                pytest.fail(f"no answer to {query}: {(self.home / 'prometheus.log').read_text()[-2000:]}")
            time.sleep(0.2)

    def close(self) -> None:
        for running in self.running:
            running.kill()
            running.communicate()
        self.xparl("stop", "--port", self.port)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


@needs_prometheus
@pytest.mark.slow
def test_a_real_prometheus_answers_every_query_of_the_dashboard(site: Site) -> None:
    site.xparl("start", "--port", site.port, "--cpu_num", 2, "--monitor_port", site.monitor_port)
    site.xparl("connect", "--address", f"localhost:{site.port}", "--cpu_num", 2)
    site.scrape()
    assert len(site.answered("parl_node_cpus")) == 2
    assert len(site.answered("parl_host_memory_bytes")) == 1, "two nodes of one host are one host"
    program = site.spawn(sys.executable, "-c", PROGRAM, f"localhost:{site.port}", log="program.log")
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n", (site.home / "program.log").read_text()
    (worker,) = [node for node in json.loads(site.xparl("list", "nodes", "--json"))["nodes"] if not node["is_master"]]
    os.kill(worker["pid"], signal.SIGKILL)
    for panel, query in queries():
        if NEEDS_A_GPU in query:
            assert site.ask(query) == [], "there is no GPU here"
        else:
            assert site.answered(query), panel
    (lost,) = site.answered('ALERTS{alertname="ParlNodeLost", alertstate="firing"}')
    assert lost["metric"]["node_id"] == worker["node_id"]
    assert lost["metric"]["cause"]
