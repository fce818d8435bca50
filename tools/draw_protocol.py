"""Draw the actor's protocol from the table that the program uses, so that the page cannot differ from the program.

    hatch run base:python tools/draw_protocol.py          compare with page and picture; exit 1 if one differs
    hatch run base:python tools/draw_protocol.py --write  write docs/reference/actor_protocol.md and its picture

The page has a state diagram and the same transitions as a table.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from diagrams import PICTURES, Arrow, Box, Diagram

from parl_remote._actor.state import TABLE, ActorState, Effect

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "actor_protocol.md"


PICTURE = PICTURES / "states.svg"
_HIGH, _LOW = 70, 250  # the rows of boxes
_PLACES = {  # the left edge and the row of each state's box
    ActorState.IDLE: (20, _HIGH, "plain"),
    ActorState.LEASED: (200, _HIGH, "program"),
    ActorState.CREATING: (380, _HIGH, "program"),
    ActorState.READY: (560, _HIGH, "actor"),
    ActorState.BUSY: (790, _HIGH, "actor"),
    ActorState.CLOSED: (380, _LOW, "memory"),
}
_WIDTH, _HEIGHT = 110, 50
Moves = dict[tuple[ActorState, ActorState], list[str]]


def moves() -> Moves:
    """Return the events of each transition, in the order of the table."""
    found = defaultdict(list)
    for state, by_event in TABLE.items():
        for event, (target, effect) in by_event.items():
            found[state, target].append(event.name)
            if effect in (Effect.REPLY_VALUE, Effect.REPLY_ERROR):
                found[state, ActorState.READY].append(event.name)
    return dict(found)


def picture() -> str:
    """Return the state diagram as SVG."""
    boxes = [Box(x, y, _WIDTH, _HEIGHT, [state.name], kind) for state, (x, y, kind) in _PLACES.items()]
    return Diagram(
        920,
        320,
        "States of an actor, and the events that lead from one to the next",
        [*boxes, *_arrows(moves())],
    ).svg()


def _arrows(found: Moves) -> Iterator[Arrow]:
    ends = {state: events for (state, target), events in found.items() if target is ActorState.CLOSED}
    always = [event for event in next(iter(ends.values())) if all(event in events for events in ends.values())]
    for (state, target), events in found.items():
        x, y, _ = _PLACES[state]
        middle, bottom = x + _WIDTH // 2, y + _HEIGHT
        to_x, to_y, _ = _PLACES[target]
        if target is ActorState.CLOSED:
            special = [event for event in events if event not in always]
            if abs(to_x - x) > 2 * _WIDTH:  # a long arrow around the other boxes
                edge = to_x if x < to_x else to_x + _WIDTH
                text = f"from any state: {', '.join(always)}" if x < to_x else ""
                below = (to_x + _WIDTH // 2, to_y + 66)
                yield Arrow([(middle, bottom), (middle, to_y + 25), (edge, to_y + 25)], text, below)
            else:
                yield Arrow([(middle, bottom), (to_x + _WIDTH // 2 + (x - to_x) // 6, to_y)])
            if special:
                yield Arrow([(middle, bottom), (middle, to_y)], ", ".join(special), (middle + 6, 190), anchor="start")
        elif state is target:
            text = _lines(events)
            yield Arrow(
                [(middle - 20, y), (middle - 20, y - 18), (middle + 20, y - 18), (middle + 20, y)],
                text,
                (middle, y - 24 - 15 * text.count("\n")),
            )
        elif to_x > x:
            text = _lines(events)
            yield Arrow(
                [(x + _WIDTH, y + 15), (to_x, to_y + 15)],
                text,
                ((x + _WIDTH + to_x) // 2, y + 9 - 15 * text.count("\n")),
            )
        else:
            yield Arrow([(x, y + 37), (to_x + _WIDTH, to_y + 37)], _lines(events), ((to_x + _WIDTH + x) // 2, y + 53))


def _lines(events: list[str]) -> str:
    return "\n".join(", ".join(events[start : start + 2]) for start in range(0, len(events), 2))


def page() -> str:
    """Return the page."""
    rows = []
    for state, by_event in TABLE.items():
        for event, (target, effect) in by_event.items():
            replies = effect in (Effect.REPLY_VALUE, Effect.REPLY_ERROR)
            goes = f"{target.name}, READY when nothing is left" if replies else target.name
            rows.append(f"| {state.name} | {event.name} | {goes} | {effect.value} |")
    table = "\n".join(rows)
    return f"""# The actor's protocol

Made by `tools/draw_protocol.py` from `parl_remote._actor.state.TABLE`. Whatever is not in the table closes the actor
with a `ProtocolError` that names state and event.

![States of an actor](../pictures/states.svg)

| in state | on | goes to | effect |
| --- | --- | --- | --- |
{table}
"""


def main() -> int:
    made = {PAGE: page(), PICTURE: picture()}
    if "--write" in sys.argv[1:]:
        for path, text in made.items():
            path.write_text(text)
        return 0
    different = [path.name for path, text in made.items() if not path.exists() or path.read_text() != text]
    if different:
        print(f"{', '.join(different)}: not as in parl_remote._actor.state; python tools/draw_protocol.py --write")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
