"""Cache of a rank's run values, which the notebook may fetch later.

A large value is kept until the notebook has dropped the run's result, or until it is evicted by newer ones. A small
value was sent with its run's end; it is kept for a while, as its repr may be requested. Values that cannot be sent are
not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ...util.text import nearest
from ..serialization import result_values, unpicklable_placeholders
from ..serialization.keras_models import WithBackend

# Number of evicted runs that are remembered.
_KEEP_GONE = 1000
_MISSING = object()


class ResultStore:
    """Cache of run values; made by the kernel.

    Parameters
    ----------
    most : int
        Limit of large values, and of small ones.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._large: OrderedDict[str, Any] = OrderedDict()
        self._small: OrderedDict[str, Any] = OrderedDict()
        self._evicted: OrderedDict[str, None] = OrderedDict()

    def dump(self, run: str, value: Any) -> dict[str, Any]:
        """Cache a value; return the fields of the run's end event for it.

        See `result_values.dump`.
        """
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
        """Write the value of a run (``"of"``), ``"name"`` or ``"names"`` to a file.

        Returns the result of `result_values.give`; ``"gone"``, the reason why the value is missing; or ``"lacks"``, the
        end of a message that no such name exists.
        """
        if "names" in content:
            return _give_names(content["names"], namespace, content["places"])
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
            return {"repr": unpicklable_placeholders.text_of(value)}
        whole, strict = bool(content.get("whole")), bool(content.get("strict"))
        name, most = content.get("name", "value"), content.get("most")
        return result_values.give(value, content["places"], name=name, whole=whole, strict=strict, most=most)

    def release(self, run: str) -> Any:
        """Drop a run's large value and return it; None if it was not cached."""
        return self._large.pop(run, None)

    @property
    def held(self) -> list[str]:
        """Runs whose large values are cached, oldest first."""
        return list(self._large)

    def _why(self, run: str) -> str:
        if run in self._evicted:
            return f"it has made way for those of {self.most} newer runs; fetch a value sooner, or give it a name there"
        return "its process is a new one, and the values of the old one are gone"


def _give_names(names: list[str], namespace: dict[str, Any], places: list[str]) -> dict[str, Any]:
    """Write names as a dict, without unpicklable ones; ``"left"`` gives the reasons."""
    lacking = [name for name in names if name not in namespace]
    if lacking:
        known = [name for name in namespace if not name.startswith("_")]
        return {"lacks": f"{lacking[0]!r}{nearest(lacking[0], known)}"}
    values = {name: namespace[name] for name in names}
    told = result_values.give(WithBackend(values), places, name="names", strict=True)
    if "unpicklable" not in told:
        return told
    reasons = {name: result_values.why_unpicklable(value, name) for name, value in values.items()}
    left = {name: why for name, why in reasons.items() if why}
    values = {name: value for name, value in values.items() if name not in left}
    if not values:
        return {"type": "dict", "repr": "{}", "left": left}
    return {**result_values.give(WithBackend(values), places, name="names", strict=True), "left": left}
