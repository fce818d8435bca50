"""An HTTP server for an exported policy, with only numpy and the standard library.

    parl export runs/cartpole --out agent.policy
    python serve.py agent.policy --port 8080
    curl -d '{"observation": [0.0, 0.1, 0.0, -0.1]}' localhost:8080/act

    POST /act      {"observation": ...}, one or a batch, and "action_mask" where actions are masked -> {"action": ...}
    GET /health    200 while the server answers in time, else 503: policy, number of answers, latency

Threads answer requests with one shared policy; more than `--concurrency` at once wait, and those that would wait longer
than `--patience` seconds get the status 503.
"""

import argparse
import json
import threading
import time
from collections import deque
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from parl_core.policy import Policy, load

MOST_BYTES = 16 * 2**20  # limit of one request


class Service:
    """Answers observations, several at a time, and keeps statistics.

    Args:
        policy: The policy, which threads share.
        name: Name of its file.
        concurrency: Maximum number of maximum number of requests that compute at once.
        patience: Maximum maximum seconds that a request waits for its turn.
    """

    def __init__(self, policy: Policy, name: str, concurrency: int, patience: float) -> None:
        self._policy, self._name, self._patience = policy, name, patience
        self._slots = threading.BoundedSemaphore(concurrency)
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._answered = self._refused = self._failed = 0
        self._seconds: deque[float] = deque(maxlen=1000)

    def act(self, request: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the answer for a request."""
        if not isinstance(request, dict) or "observation" not in request:
            return self._told(400, 'send {"observation": ...}')
        if not self._slots.acquire(timeout=self._patience):
            return self._told(503, "too many requests at once: try again later")
        began = time.perf_counter()
        try:
            action = self._policy(request["observation"], action_mask=request.get("action_mask"))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            return self._told(400, str(error))
        finally:
            self._slots.release()
        with self._lock:
            self._answered += 1
            self._seconds.append(time.perf_counter() - began)
        return 200, {"action": _plain(action)}

    def health(self) -> tuple[int, dict[str, Any]]:
        """Return the status and the data of the health page; 503 while no slot becomes free in time."""
        is_free = self._slots.acquire(timeout=self._patience)
        if is_free:
            self._slots.release()
        with self._lock:
            seconds = sorted(self._seconds)
            counts = {"answered": self._answered, "refused": self._refused, "failed": self._failed}
        taken = {f"p{share}": round(1e6 * seconds[len(seconds) * share // 100]) for share in (50, 99) if seconds}
        found = {"policy": self._name, "algorithm": self._policy.description["algorithm"]}
        status = "ok" if is_free else "busy"
        uptime = round(time.monotonic() - self._began, 1)
        return 200 if is_free else 503, {
            "status": status,
            **found,
            **counts,
            "microseconds": taken,
            "uptime_s": uptime,
        }

    def _told(self, status: int, error: str) -> tuple[int, dict[str, Any]]:
        with self._lock:
            if status == 503:
                self._refused += 1
            else:
                self._failed += 1
        return status, {"error": error}


class Handler(BaseHTTPRequestHandler):
    """One connection; the service is an attribute of the server."""

    protocol_version = "HTTP/1.1"  # connections stay open from one request to the next
    disable_nagle_algorithm = True
    timeout = 60
    server: "Server"

    def do_GET(self) -> None:
        """Send the health page."""
        if self.path == "/health":
            self._answer(*self.server.service.health())
        else:
            self._answer(404, {"error": "there are POST /act and GET /health"})

    def do_POST(self) -> None:
        """Answer an observation."""
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            length = -1
        if not 0 <= length <= MOST_BYTES:
            self.close_connection = True  # the rest of the connection is not read
            self._answer(413, {"error": f"a request has a Content-Length, of at most {MOST_BYTES} bytes"})
            return
        body = self.rfile.read(length)
        if self.path != "/act":
            self._answer(404, {"error": "there are POST /act and GET /health"})
            return
        try:
            request = json.loads(body)
        except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
            self._answer(400, {"error": f"the body is not JSON: {error}"})
            return
        self._answer(*self.server.service.act(request))

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing, because the health page has statistics."""

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Answers each connection in a separate thread.

    Args:
        address: Host and port; port 0 for any free one.
        service: The service that answers.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], service: Service) -> None:
        super().__init__(address, Handler)
        self.service = service


def _plain(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: _plain(part) for key, part in action.items()}
    if isinstance(action, tuple):
        return [_plain(part) for part in action]
    return action.tolist() if isinstance(action, (np.ndarray, np.generic)) else action


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("policy", help="file of `parl export --to numpy`")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 for every interface, behind a proxy")
    parser.add_argument("--port", type=int, default=8080, help="0 for any free port, which is printed")
    parser.add_argument("--concurrency", type=int, default=8, help="maximum number of requests that compute at once")
    parser.add_argument("--patience", type=float, default=1.0, help="maximum seconds that a request waits for its turn")
    given = parser.parse_args()
    service = Service(load(given.policy), given.policy, given.concurrency, given.patience)
    with Server((given.host, given.port), service) as server:
        print(f"{given.policy} is served at http://{given.host}:{server.server_port}", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
