"""The service: ranks items with a perturbed model, and logs the key of its noise and the visitors' later feedback.

    evokit secret new secret
    python server.py --config config.prototxt --log log --secret secret --port 8080

    POST /rank      {"visitor": [four numbers], "items": [numbers of items]}
                    -> {"items": [the best first], "sample": "…", "model": 3}
    POST /feedback  {"sample": "…", "clicks": 2}     when the visitor leaves, maybe minutes later, maybe to another host
    GET  /status    -> {"model": 3, "parameters": 30}
    GET  /refused   -> {"forged": 1}                 numbers of rejected tokens, by reason

The answer to /rank contains the sample's token of 56 characters, so the service stores nothing about its visitors. Only
the service can make tokens, so only the clicks of its own visitors count, once each.
"""

import argparse
import secrets
import threading
from pathlib import Path
from typing import Any

import flask
import numpy as np
from ranking import VISITOR_FEATURES, catalogue, model

from parl_evokit import AsyncESAgent, EvolutionError, InvalidToken, LogWriter, RecordError, SamplingAgent, Tokens

LOOK_FOR_NEW_MODELS_S = 0.5
LARGEST_FEATURE = 1000.0


class Desk(threading.local):
    """The state of one thread of the server: a clone of the agent, and a segment of the log."""

    def __init__(self, agent: AsyncESAgent, log: Path, tokens: Tokens) -> None:
        self.clone: SamplingAgent = agent.clone()
        self.log = LogWriter(log, tokens=tokens)


def application(agent: AsyncESAgent, log: Path, tokens: Tokens | None = None) -> flask.Flask:
    """Return the service as a WSGI application; without `tokens` it makes a secret that no other process knows."""
    tokens = tokens or Tokens([secrets.token_bytes(32)])
    app, desk, items = flask.Flask(__name__), Desk(agent, log, tokens), catalogue()

    @app.post("/rank")
    def rank() -> Any:
        asked = flask.request.get_json()
        try:
            visitor, wanted = np.array(asked["visitor"], float), asked["items"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            return {"error": f"visitor and items are needed, as lists of numbers: {error}"}, 400
        if visitor.shape != (VISITOR_FEATURES,) or not (np.abs(visitor) <= LARGEST_FEATURE).all():
            return {"error": f"a visitor is {VISITOR_FEATURES} numbers up to {LARGEST_FEATURE:g}"}, 400
        if not isinstance(wanted, list) or not wanted or not all(number in range(len(items)) for number in wanted):
            return {"error": f"items are a list of one or more numbers from 0 to {len(items) - 1}"}, 400
        numbers = np.array(wanted, int)
        info = desk.clone.add_noise()
        order = np.argsort(-desk.clone.predict((visitor, items[numbers])), kind="stable")
        token = desk.log.sampled(info)
        return {"items": numbers[order].tolist(), "sample": token, "model": info.model_iter_id}

    @app.post("/feedback")
    def feedback() -> Any:
        told = flask.request.get_json()
        try:
            clicks = told["clicks"]
            if isinstance(clicks, int | float) and not 0 <= clicks <= len(items):
                return {"error": f"clicks are 0 to {len(items)}, not {clicks}"}, 400  # a token does not limit them
            desk.log.reward(told["sample"], clicks)
        except InvalidToken as error:
            return {"error": str(error), "reason": error.reason.name.lower()}, 400
        except (KeyError, TypeError, ValueError, RecordError) as error:
            return {"error": f"sample and clicks are needed: {error}"}, 400
        return {}

    @app.get("/status")
    def status() -> Any:
        return {"model": agent.model_iter_id, "parameters": agent.param_size()}

    @app.get("/refused")
    def refused() -> Any:
        return {reason.name.lower(): count for reason, count in tokens.refused.items()}

    return app


def keep_up(agent: AsyncESAgent, stop: threading.Event) -> None:
    """Load new models as they appear in the warehouse; requests in progress keep theirs."""
    while not stop.wait(LOOK_FOR_NEW_MODELS_S):
        try:
            agent.refresh()
        except EvolutionError as error:  # a damaged directory: continue with the present model
            print(f"no new model: {error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A service that ranks items with an evolving model.")
    parser.add_argument("--config", default="config.prototxt")
    parser.add_argument("--log", type=Path, default=Path("log"))
    parser.add_argument("--secret", type=Path, default=None, help="default: EVOKIT_SECRET_FILE, else EVOKIT_SECRET")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--threads", type=int, default=4)
    arguments = parser.parse_args()

    from waitress.server import create_server

    agent = AsyncESAgent(model(), arguments.config)
    app = application(agent, arguments.log, Tokens.load(arguments.secret, lifetime_s=3600.0))
    stop = threading.Event()
    threading.Thread(target=keep_up, args=(agent, stop), daemon=True).start()
    server: Any = create_server(app, host="127.0.0.1", port=arguments.port, threads=arguments.threads)
    print(f"model {agent.model_iter_id} online at http://127.0.0.1:{server.effective_port}", flush=True)
    try:
        server.run()
    finally:
        stop.set()


if __name__ == "__main__":
    main()
