"""What ranks print and show inside of `Output` widgets: put into these widgets' state, as a page would do.

A page knows only what a notebook's own kernel prints. While a run is on, the same stands in its journal
too: nothing is lost where nobody shows widgets.
"""

from __future__ import annotations

import json
from typing import Any

from ..protocol.comm_messages import CommMessage

# Of one widget; what is older goes, as each change sends all of it.
MOST = 256 << 10
_MODEL = '"OutputModel"'


class _Area:
    """What stands in one widget: outputs as a notebook has them, each with its display's id."""

    def __init__(self) -> None:
        self.outputs: list[tuple[dict[str, Any], str | None]] = []
        self.waiting = False

    def put(self, output: dict[str, Any], display: str | None = None) -> None:
        if self.waiting:
            self.outputs, self.waiting = [], False
        last = self.outputs[-1][0] if self.outputs else {}
        streams = output["output_type"] == "stream" == last.get("output_type")
        if streams and last["name"] == output["name"]:
            last["text"] = (last["text"] + output["text"])[-MOST:]
        else:
            self.outputs.append((output, display))

    def change(self, display: str, event: dict[str, Any]) -> bool:
        """Have what was shown under an id be something else; whether there was any."""
        found = [output for output, id in self.outputs if id == display]
        for output in found:
            output.update(data=event["data"], metadata=event["metadata"])
        return bool(found)

    def text(self) -> str:
        """It as JSON, without the oldest where it is too large."""
        texts = [json.dumps(output) for output, _ in self.outputs]
        while len(texts) > 1 and sum(map(len, texts)) > MOST:
            del texts[0], self.outputs[0]
        return f"[{','.join(texts)}]"


class Outputs:
    """The `Output` widgets of a node's ranks; made by `Comms`, which hands it what they say."""

    def __init__(self) -> None:
        self._areas: dict[tuple[int, str], _Area] = {}
        # Which widget of a rank takes what is printed for a message; the innermost last.
        self._takes: dict[tuple[int, str], list[str]] = {}
        self._changed: set[tuple[int, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._changed)

    def on_state(self, message: CommMessage) -> None:
        """A widget is opened, changes or is closed."""
        key = message.rank, message.comm
        if message.kind == "open" and message.state.get("_model_name") == _MODEL:
            self._areas[key] = _Area()
        area = self._areas.get(key)
        if area is None:
            return
        if message.kind == "close" or "msg_id" in message.state:
            for place, ids in list(self._takes.items()):
                if place[0] == message.rank and message.comm in ids:
                    ids.remove(message.comm)
                    if not ids:
                        del self._takes[place]
        if message.kind == "close":
            del self._areas[key]
            self._changed.discard(key)
            return
        parent = json.loads(message.state.get("msg_id", '""'))
        if parent and isinstance(parent, str):
            self._takes.setdefault((message.rank, parent), []).append(message.comm)
        outputs = json.loads(message.state.get("outputs", "null"))
        if isinstance(outputs, list):
            area.outputs = [
                (output, None) for output in outputs if isinstance(output, dict) and "output_type" in output
            ]

    def take(self, rank: int, parent: str, event: dict[str, Any]) -> bool:
        """Put what a rank prints or shows for a message into the widget that takes it; whether there is one."""
        kind = event["kind"]
        if kind == "update":
            found = [key for key, area in self._areas.items() if key[0] == rank and self._change(area, event)]
            self._changed.update(found)
            return bool(found)
        ids = self._takes.get((rank, parent))
        if not ids:
            return False
        key = rank, ids[-1]
        area = self._areas[key]
        if kind == "stream":
            area.put({"output_type": "stream", "name": event["name"], "text": event["text"][-MOST:]})
        elif kind == "clear":
            area.waiting = event["wait"]
            area.outputs = area.outputs if area.waiting else []
        elif kind in ("display", "result"):
            shown = {"data": event["data"], "metadata": event["metadata"]}
            more = {"execution_count": None} if kind == "result" else {}
            type = "execute_result" if kind == "result" else "display_data"
            area.put({"output_type": type, **shown, **more}, event.get("display_id"))
        elif kind == "error":
            area.put({"output_type": "error", **{name: event[name] for name in ("ename", "evalue", "traceback")}})
        else:
            return False
        self._changed.add(key)
        return True

    @staticmethod
    def _change(area: _Area, event: dict[str, Any]) -> bool:
        return event.get("display_id") is not None and area.change(event["display_id"], event)

    def changes(self) -> list[CommMessage]:
        """What has changed since this was last asked."""
        changed, self._changed = self._changed, set()
        return [
            CommMessage("update", id, rank, state={"outputs": self._areas[rank, id].text()}) for rank, id in changed
        ]
