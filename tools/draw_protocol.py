"""Draw the actor's protocol from the table that runs it, so that the page cannot differ from the program.

    hatch run base:python tools/draw_protocol.py          compare with the page; exit 1 if it differs
    hatch run base:python tools/draw_protocol.py --write  write docs/reference/actor_protocol.md anew

The page has a Mermaid state diagram and the same moves as a table.
"""

import sys
from collections import defaultdict
from pathlib import Path

from parl_remote._actor.state import TABLE, ActorState, Effect

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "actor_protocol.md"


def page() -> str:
    rows, arrows = [], defaultdict(list)
    for state, moves in TABLE.items():
        for event, (target, effect) in moves.items():
            replies = effect in (Effect.REPLY_VALUE, Effect.REPLY_ERROR)
            goes = f"{target.name}, READY when nothing is left" if replies else target.name
            rows.append(f"| {state.name} | {event.name} | {goes} | {effect.value} |")
            arrows[state, target].append(event.name)
            if replies:
                arrows[state, ActorState.READY].append(event.name)
    drawn = "\n".join(f"    {a.name} --> {b.name}: {', '.join(events)}" for (a, b), events in arrows.items())
    table = "\n".join(rows)
    return f"""# The actor's protocol

Made by `tools/draw_protocol.py` from `parl_remote._actor.state.TABLE`. Whatever is not in the table closes the actor
with a `ProtocolError` that names state and event.

```mermaid
stateDiagram-v2
    [*] --> {ActorState.IDLE.name}
{drawn}
    {ActorState.CLOSED.name} --> [*]
```

| in state | on | goes to | effect |
| --- | --- | --- | --- |
{table}
"""


def main() -> int:
    made = page()
    if "--write" in sys.argv[1:]:
        PAGE.write_text(made)
        return 0
    if PAGE.exists() and PAGE.read_text() == made:
        return 0
    print(f"{PAGE.name} differs from the table in parl_remote._actor.state; python tools/draw_protocol.py --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
