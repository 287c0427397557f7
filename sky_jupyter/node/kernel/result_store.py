"""The values of its runs that a rank holds, so that they can be fetched, and for how long.

A large value is held until the notebook has dropped the run's result, or there are too many newer
ones; a small one, which has gone with its run's end, for a while, as its repr may be asked for. What
cannot be sent is not held.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ...errors import nearest
from ..serialization import remote_repr, result_values

# So many runs are known whose values had to make way.
_KEEP_GONE = 1000
_MISSING = object()


class ResultStore:
    """Made by the kernel, and told of each value.

    Parameters
    ----------
    most : int
        How many large values are held, and how many small ones.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._large: OrderedDict[str, Any] = OrderedDict()
        self._small: OrderedDict[str, Any] = OrderedDict()
        self._evicted: OrderedDict[str, None] = OrderedDict()

    def dump(self, run: str, value: Any) -> dict[str, Any]:
        """What goes with a run's end of its value; see `result_values.dump`. It is held for a later `export`."""
        told = result_values.dump(value, result_values.SMALL)
        if "large" in told:
            self._large[run] = value
            if len(self._large) > self.most:
                self._evicted[self._large.popitem(last=False)[0]] = None
                if len(self._evicted) > _KEEP_GONE:
                    self._evicted.popitem(last=False)
        elif "value" in told:
            self._small[run] = value
            if len(self._small) > self.most:
                self._small.popitem(last=False)
        return told

    def export(self, content: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
        """Write the value of a run (``"of"``) or of a name (``"name"``) to a file; see `result_values.give`.

        Returns
        -------
        dict
            What `result_values.give` returns; ``"gone"``, why it is not there; or ``"lacks"``, the end of a
            message which says that there is no such name.
        """
        if "name" in content:
            name = content["name"]
            value = namespace.get(name, _MISSING)
            if value is _MISSING:
                return {"lacks": nearest(name, (known for known in namespace if not known.startswith("_")))}
        else:
            value = self._large.get(content["of"], self._small.get(content["of"], _MISSING))
            if value is _MISSING:
                return {"gone": self._why(content["of"])}
        if content.get("about"):
            return {"repr": remote_repr.text_of(value)}
        whole, strict = bool(content.get("whole")), bool(content.get("strict"))
        name = content.get("name", "value")
        return result_values.give(value, content["places"], name=name, whole=whole, strict=strict)

    def release(self, run: str) -> Any:
        """Hold a run's large value no longer; the value, or None where it was not held."""
        return self._large.pop(run, None)

    @property
    def held(self) -> list[str]:
        """The runs whose large values are held, the oldest first."""
        return list(self._large)

    def _why(self, run: str) -> str:
        if run in self._evicted:
            return f"it has made way for those of {self.most} newer runs; fetch a value sooner, or give it a name there"
        return "its process is a new one, and the values of the old one are gone"
