"""A simulated population: visitors ask for a ranking, look at its head, and tell later what they clicked, or never do.

What they like is a secret of this file: the service sees clicks only.
"""

import http.client
import json
from collections import deque
from typing import Any

import numpy as np
from ranking import ITEM_FEATURES, VISITOR_FEATURES, catalogue

SHOWN, CANDIDATES = 5, 12
ATTENTION = np.array([1.0, 0.8, 0.65, 0.5, 0.4])  # the part of visitors who look as far down as that
LOST = 0.05  # of the visitors leave without a word


class Population:
    """Visitors of one service, one after the other; their feedback arrives up to `delay` visits later.

    Args:
        port: Of the service on this machine.
        seed: Of who comes and what they click.
        delay: Feedback comes back after 0 to this many further visits.
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
        """One visitor comes; returns the clicks and the model that ranked."""
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
        """The answer of the service.

        Raises:
            RuntimeError: It is not content with the request.
        """
        self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"{path} answered {response.status}: {answer}")
        return answer

    def close(self) -> None:
        """Hang up."""
        self._connection.close()
