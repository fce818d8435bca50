"""A simulated population: visitors request a ranking, look at its head, and report their clicks later or never.

Their preferences are known only in this file: the service sees clicks only.
"""

import http.client
import json
from collections import deque
from typing import Any

import numpy as np
from ranking import ITEM_FEATURES, VISITOR_FEATURES, catalogue

SHOWN, CANDIDATES = 5, 12
ATTENTION = np.array([1.0, 0.8, 0.65, 0.5, 0.4])  # share of visitors who look at each position
LOST = 0.05  # share of visitors without feedback


class Population:
    """Visitors of one service, one after another; their feedback arrives up to `delay` visits later.

    Args:
        port: Port of the service on this machine.
        seed: Seed of visitors and clicks.
        delay: Maximum number of visits before feedback arrives.
    """

    def __init__(self, port: int, seed: int = 0, delay: int = 200) -> None:
        taste = np.random.default_rng(42)
        self.taste = taste.normal(size=(VISITOR_FEATURES, ITEM_FEATURES)) * 0.6
        self.fashion = taste.normal(size=ITEM_FEATURES) * 0.6
        self.items = catalogue()
        self.delay = delay
        self._random = np.random.default_rng(seed)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._on_their_way: deque[tuple[int, str, int]] = deque()
        self._visits = 0

    def visit(self) -> tuple[int, int]:
        """Simulate one visit, and return the clicks and the model that ranked."""
        visitor = self._random.normal(size=VISITOR_FEATURES)
        candidates = self._random.choice(len(self.items), CANDIDATES, replace=False)
        answer = self.post("/rank", {"visitor": visitor.tolist(), "items": candidates.tolist()})
        liking = self.items[answer["items"][:SHOWN]] @ (visitor @ self.taste + self.fashion) - 1.0
        clicks = int((self._random.random(SHOWN) < ATTENTION / (1.0 + np.exp(-liking))).sum())
        if self._random.random() >= LOST:
            due = self._visits + int(self._random.integers(0, self.delay + 1))
            self._on_their_way.append((due, answer["sample"], clicks))
        self._visits += 1
        self.tell(self._visits)
        return clicks, answer["model"]

    def tell(self, until: float = float("inf")) -> None:
        """Deliver the feedback that is due; without `until`, all of it."""
        for _ in range(len(self._on_their_way)):
            due, sample, clicks = self._on_their_way.popleft()
            if due <= until:
                self.post("/feedback", {"sample": sample, "clicks": clicks})
            else:
                self._on_their_way.append((due, sample, clicks))

    def post(self, path: str, body: object) -> Any:
        """Return the answer of the service.

        Raises:
            RuntimeError: The service rejects the request.
        """
        self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"{path} answered {response.status}: {answer}")
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
