"""`Output` widgets of ranks: captured output becomes the widget's state.

For the notebook's own kernel, a page does that; for ranks, this module does. During a run, the journal has the same
output too, so that nothing is lost if no widgets are shown.
"""

from __future__ import annotations

import json
from typing import Any

from ...node.protocol.comm_messages import CommMessage

# Most bytes of one widget's outputs; the oldest are dropped, since each change sends all of them.
MOST = 256 << 10
_MODEL = '"OutputModel"'


class _Area:
    """Outputs of one widget, in notebook format, each with its display id."""

    def __init__(self) -> None:
        self.outputs: list[tuple[dict[str, Any], str | None]] = []
        self.waiting = False

    def put(self, output: dict[str, Any], display: str | None = None) -> None:
        if self.waiting:
            self.outputs, self.waiting = [], False
        last = self.outputs[-1][0] if self.outputs else {}
        streams = output["output_type"] == "stream" == last.get("output_type")
        # Code may set outputs itself, with their text as a list of lines, as in a notebook's file.
        if streams and last.get("name") == output["name"] and isinstance(last.get("text"), str):
            last["text"] = (last["text"] + output["text"])[-MOST:]
        else:
            self.outputs.append((output, display))

    def change(self, display: str, event: dict[str, Any]) -> bool:
        """Replace the output with a display id; return True if there is one."""
        found = [output for output, id in self.outputs if id == display]
        for output in found:
            output.update(data=event["data"], metadata=event["metadata"])
        return bool(found)

    def text(self) -> str:
        """Return the outputs as JSON, without the oldest beyond the limit."""
        texts = [json.dumps(output) for output, _ in self.outputs]
        while len(texts) > 1 and sum(map(len, texts)) > MOST:
            del texts[0], self.outputs[0]
        return f"[{','.join(texts)}]"


class Outputs:
    """`Output` widgets of a node's ranks; made by `CommHub`."""

    def __init__(self) -> None:
        self._areas: dict[tuple[int, str], _Area] = {}
        # Widgets that capture output, by rank and parent message; the innermost last.
        self._takes: dict[tuple[int, str], list[str]] = {}
        self._changed: set[tuple[int, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._changed)

    def on_state(self, message: CommMessage) -> None:
        """Follow an `Output` widget's open, update and close messages."""
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
        """Put a rank's output into the widget that captures it; False if none does."""
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
        """Return updates for the widgets that changed since the last call."""
        changed, self._changed = self._changed, set()
        return [
            CommMessage("update", id, rank, state={"outputs": self._areas[rank, id].text()}) for rank, id in changed
        ]
