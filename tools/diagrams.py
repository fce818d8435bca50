"""The diagrams of the documentation, as SVG files.

    python tools/diagrams.py          compare with docs/pictures; exit 1 if a file differs
    python tools/diagrams.py --write  write the files

A diagram consists of boxes and arrows on a light card, so that it is readable in the light and the dark theme of the
site, on GitHub and on the package index.
"""

import html
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_COLOURS = {
    "program": ("#e8eaf6", "#3f51b5"),
    "actor": ("#e0f2f1", "#00796b"),
    "memory": ("#fff3e0", "#ef6c00"),
    "plain": ("#f5f5f5", "#757575"),
}


@dataclass(frozen=True)
class Box:
    """A box; positions and sizes are in pixels.

    Attributes:
        lines: Its text; the first line is bold.
        kind: Its colours: `program`, `actor`, `memory` or `plain`.
        dashed: True for a frame around other boxes, with its text at the top.
    """

    x: int
    y: int
    width: int
    height: int
    lines: Sequence[str]
    kind: str = "plain"
    dashed: bool = False

    def svg(self) -> Iterator[str]:
        """Yield its SVG elements."""
        fill, stroke = _COLOURS[self.kind]
        dash = ' stroke-dasharray="5 4" fill-opacity="0.4"' if self.dashed else ""
        yield (
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="8" '
            f'fill="{fill}" stroke="{stroke}" stroke-width="1.5"{dash}/>'
        )
        middle = self.x + self.width / 2
        top = self.y + 20 if self.dashed else self.y + self.height / 2 - 9 * (len(self.lines) - 1) + 5
        for number, line in enumerate(self.lines):
            weight, size = ("600", 14) if number == 0 else ("400", 12.5)
            yield _text(middle, top + 18 * number, line, size=size, weight=weight)


@dataclass(frozen=True)
class Arrow:
    """An arrow through points, with a text at `at` or above its middle.

    Attributes:
        both: True for a head at each end.
        dashed: True for a control path rather than a data path.
        anchor: Anchor of the text: `middle`, `start` or `end`.
    """

    points: Sequence[tuple[int, int]]
    text: str = ""
    at: tuple[int, int] | None = None
    both: bool = False
    dashed: bool = False
    anchor: str = "middle"

    def svg(self) -> Iterator[str]:
        """Yield its SVG elements."""
        path = " ".join(f"{x},{y}" for x, y in self.points)
        start = ' marker-start="url(#head)"' if self.both else ""
        dash = ' stroke-dasharray="5 4"' if self.dashed else ""
        yield (
            f'<polyline points="{path}" fill="none" stroke="#455a64" stroke-width="1.6" marker-end="url(#head)"'
            f"{start}{dash}/>"
        )
        if self.text:
            (x1, y1), (x2, y2) = self.points[0], self.points[-1]
            x, y = self.at or ((x1 + x2) / 2, (y1 + y2) / 2 - 8)
            for number, line in enumerate(self.text.split("\n")):
                yield _text(x, y + 15 * number, line, size=12, anchor=self.anchor)


def _text(x: float, y: float, text: str, *, size: float, weight: str = "400", anchor: str = "middle") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="#263238">{html.escape(text)}</text>'
    )


@dataclass(frozen=True)
class Diagram:
    """A picture with a description for screen readers."""

    width: int
    height: int
    title: str
    parts: Sequence[Box | Arrow]

    def svg(self) -> str:
        """Return the text of the SVG file."""
        rows = [row for part in self.parts for row in part.svg()]
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img" font-family="{_FONT}">',
                f"<title>{html.escape(self.title)}</title>",
                '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
                'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="#455a64"/></marker></defs>',
                f'<rect width="{self.width}" height="{self.height}" rx="10" fill="#ffffff"/>',
                *rows,
                "</svg>",
                "",
            ]
        )


DIAGRAMS = {
    "packages": Diagram(
        760,
        330,
        "The five packages: the facade parl on parl-torch, parl-paddle and parl-remote, all on parl-core; "
        "parl-evokit beside them",
        [
            Box(20, 20, 530, 56, ["import parl", "the facade: names only, each loaded at first use"], "program"),
            Box(20, 130, 160, 66, ["parl-torch", "PyTorch"], "actor"),
            Box(205, 130, 160, 66, ["parl-paddle", "PaddlePaddle"], "actor"),
            Box(390, 130, 160, 66, ["parl-remote", "pyzmq, cloudpickle"], "actor"),
            Box(580, 130, 160, 66, ["parl-evokit", "evolution strategies"], "actor"),
            Box(
                20,
                250,
                720,
                60,
                ["parl-core", "contracts, loops, environments, replay: numpy, no framework, no network"],
            ),
            Arrow([(100, 76), (100, 130)]),
            Arrow([(285, 76), (285, 130)]),
            Arrow([(470, 76), (470, 130)]),
            Arrow([(100, 196), (100, 250)]),
            Arrow([(285, 196), (285, 250)]),
            Arrow([(470, 196), (470, 250)]),
            Arrow([(660, 196), (660, 250)]),
        ],
    ),
    "training": Diagram(
        760,
        390,
        "A sample's way through training: environments in actors, vector environment, loop, agent, algorithm, model",
        [
            Box(20, 20, 200, 350, ["actors"], "actor", dashed=True),
            Box(40, 60, 160, 56, ["environments", "1 … n"], "actor"),
            Box(40, 140, 160, 56, ["environments", "n+1 … 2n"], "actor"),
            Box(40, 230, 160, 110, ["one message", "a step and actor:", "actions out,", "obs, rewards back"], "plain"),
            Box(300, 20, 440, 350, ["learner's process"], "program", dashed=True),
            Box(320, 80, 180, 70, ["vector environment", "numpy [n, …]"], "program"),
            Box(540, 80, 180, 70, ["training loop", "rollouts, replay, GAE"], "program"),
            Box(540, 190, 180, 60, ["Agent", "numpy in, numpy out"], "program"),
            Box(320, 190, 180, 60, ["Algorithm", "tensors: losses, updates"], "memory"),
            Box(320, 290, 180, 60, ["Model", "the framework's module"], "memory"),
            Arrow([(200, 88), (320, 105)], both=True),
            Arrow([(200, 168), (320, 125)], both=True),
            Arrow([(500, 115), (540, 115)], both=True),
            Arrow([(630, 150), (630, 190)], both=True),
            Arrow([(540, 220), (500, 220)], both=True),
            Arrow([(410, 250), (410, 290)], both=True),
        ],
    ),
    "call": Diagram(
        760,
        380,
        "A call goes from the program's socket straight to the actor; master and workers only place and watch actors",
        [
            Box(20, 20, 220, 340, ["your program"], "program", dashed=True),
            Box(40, 70, 180, 60, ["proxy", "actor.method(x)"], "program"),
            Box(40, 170, 180, 60, ["outbox", "order, back-pressure"], "program"),
            Box(40, 270, 180, 60, ["future", "result or error"], "program"),
            Box(510, 20, 230, 340, ["a host of the cluster"], "actor", dashed=True),
            Box(535, 70, 180, 60, ["actor's process", "your object"], "actor"),
            Box(535, 170, 180, 60, ["zygote", "forks actors"], "actor"),
            Box(535, 270, 180, 60, ["worker", "leases, health, logs"], "actor"),
            Box(290, 270, 170, 60, ["master", "places, never relays"], "plain"),
            Arrow([(130, 130), (130, 170)]),
            Arrow([(220, 190), (535, 105)], "call: unix socket on one host,\nsealed TCP between hosts", (375, 105)),
            Arrow([(560, 130), (220, 290)], "result", (440, 172)),
            Arrow([(220, 310), (290, 310)], dashed=True, both=True),
            Arrow([(460, 300), (535, 300)], dashed=True, both=True),
            Arrow([(625, 270), (625, 230)], dashed=True),
            Arrow([(625, 170), (625, 130)], dashed=True),
        ],
    ),
    "data": Diagram(
        760,
        420,
        "Ways of a value: inside the message, in recycled shared memory, stored once by parl.put, sealed between hosts",
        [
            Box(20, 20, 470, 380, ["one host"], "plain", dashed=True),
            Box(40, 70, 130, 300, ["program"], "program"),
            Box(340, 70, 130, 130, ["actor A"], "actor"),
            Box(340, 240, 130, 130, ["actor B"], "actor"),
            Box(200, 70, 110, 50, ["message", "below 128 KB"], "plain"),
            Box(200, 150, 110, 56, ["segment", "one reader"], "memory"),
            Box(200, 250, 110, 70, ["parl.put", "memfd, read-", "only, shared"], "memory"),
            Arrow([(170, 95), (200, 95)]),
            Arrow([(310, 95), (340, 95)]),
            Arrow([(170, 178), (200, 178)]),
            Arrow([(310, 178), (340, 178)]),
            Arrow([(170, 285), (200, 285)]),
            Arrow([(310, 270), (340, 190)]),
            Arrow([(310, 295), (340, 295)]),
            Box(540, 20, 200, 380, ["another host"], "plain", dashed=True),
            Box(560, 70, 160, 90, ["actor C"], "actor"),
            Box(560, 250, 160, 70, ["worker's copy", "one for its actors"], "memory"),
            Arrow([(170, 360), (190, 388), (520, 388), (560, 320)], "sealed: once a host", (330, 382)),
            Arrow([(640, 250), (640, 160)]),
            Arrow([(170, 80), (190, 56), (520, 56), (560, 85)], "sealed: each call", (400, 50)),
        ],
    ),
    "actors-learner": Diagram(
        760,
        190,
        "Actors send fragments to the learner, which sends weights back",
        [
            Box(20, 20, 180, 60, ["actor", "envs_per_group"], "actor"),
            Box(20, 110, 180, 60, ["actor", "envs_per_group"], "actor"),
            Box(440, 65, 130, 60, ["batch", "of fragments"], "memory"),
            Box(620, 65, 120, 60, ["learner", "agent.learn"], "program"),
            Arrow([(200, 45), (440, 85)], "fragments of n_steps steps,\nwith the weights' version", (350, 28)),
            Arrow([(200, 135), (440, 105)]),
            Arrow([(570, 95), (620, 95)]),
            Arrow([(680, 125), (680, 165), (200, 165)], "weights, stored once a host and version", (430, 158)),
        ],
    ),
    "evolution": Diagram(
        760,
        250,
        "Evolution online: a service perturbs the model, logs keys and rewards; an offline job makes the next model",
        [
            Box(20, 70, 150, 70, ["visitor"], "plain"),
            Box(250, 70, 190, 70, ["service", "perturbed model"], "program"),
            Box(560, 20, 180, 70, ["log", "key, 8 bytes; reward"], "memory"),
            Box(560, 150, 180, 70, ["offline update", "remakes the noise"], "actor"),
            Arrow([(250, 90), (170, 90)], "answer", (210, 80)),
            Arrow([(170, 122), (250, 122)], "click, later", (210, 140)),
            Arrow([(440, 95), (560, 60)]),
            Arrow([(650, 90), (650, 150)]),
            Arrow([(560, 190), (345, 190), (345, 140)], "next model", (450, 182)),
        ],
    ),
}


def main() -> int:
    """Compare or write the files."""
    different = []
    for name, diagram in DIAGRAMS.items():
        path = PICTURES / f"{name}.svg"
        if "--write" in sys.argv[1:]:
            path.write_text(diagram.svg(), encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != diagram.svg():
            different.append(path.name)
    if different:
        print(f"{', '.join(different)} differ; python tools/diagrams.py --write")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
