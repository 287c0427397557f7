"""Users' options of pods, checked and frozen: providers are compared and hashed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import SpecError
from ...util.validate import brief

Pairs = tuple[tuple[str, str], ...]
"""A mapping of texts that can be hashed, sorted by its keys."""

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_KEY = rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_LABEL}"
NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_QUANTITY = r"[0-9]{1,15}(\.[0-9]{1,20})?(m|k|[KMGTPE]i?)?"
_TOLERATION = re.compile(
    rf"(?P<key>{_KEY}|\*)(=(?P<value>({_LABEL})?))?(:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?"
)
# Short names of resources, as in the Kubeflow SDK.
_SHORT = {"gpu": "nvidia.com/gpu", "storage": "ephemeral-storage"}


def text(name: str, value: Any, pattern: str, form: str) -> None:
    """Raise SpecError unless a value is None or a text of this pattern."""
    if value is not None and (not isinstance(value, str) or not re.fullmatch(pattern, value)):
        raise SpecError(f"{name} must be {form}, not {brief(value)}")


def resources(value: Any) -> Pairs:
    """Return a pod's resources from ``{"cpu": 4}`` or a text such as ``"cpu=4"``."""
    form = "resources such as {'cpu': 4, 'memory': '16Gi', 'nvidia.com/gpu': 1}"
    found = _pairs("resources", value, form, _KEY, _QUANTITY)
    full = [(_SHORT.get(key.lower(), key), amount) for key, amount in found]
    if len({key for key, _ in full}) < len(full):
        raise SpecError(f"resources names one thing twice: {brief(dict(found))}")
    return tuple(sorted(full))


def labels(name: str, value: Any) -> Pairs:
    """Return labels of nodes: a mapping, or a text such as ``"pool=gpu,zone=a"``."""
    return _pairs(name, value, f"{name} must be labels such as {{'pool': 'gpu'}}", _KEY, rf"({_LABEL})?")


def env(value: Any) -> Pairs:
    """Return variables of a container."""
    return _pairs(
        "env", value, "env must be variables such as {'NAME': 'value'}", r"[A-Za-z_][\w.-]*", r"(?s).*", hide=True
    )


def tolerations(value: Any) -> tuple[str, ...]:
    """Return tolerations, given as ``"key=value:NoSchedule"`` or as API mappings."""
    given = value.split(",") if isinstance(value, str) else value
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        given = [None]
    found = []
    for one in given:
        if isinstance(one, Mapping):
            found.append(_json("tolerations", one))
        elif isinstance(one, str) and (_TOLERATION.fullmatch(one.strip()) or _is_json(one)):
            found.append(one.strip())
        else:
            form = (
                "texts such as 'nvidia.com/gpu:NoSchedule' or 'team=vision:NoExecute', or mappings as the API has them"
            )
            raise SpecError(f"tolerations must be {form}, not {brief(value)}")
    return tuple(found)


def toleration(given: str) -> dict[str, Any]:
    """Return a toleration as the API has it."""
    if _is_json(given):
        made: dict[str, Any] = json.loads(given)
        return made
    match = _TOLERATION.fullmatch(given)
    assert match
    found: dict[str, Any] = {} if match["key"] == "*" else {"key": match["key"]}
    found["operator"] = "Exists" if match["value"] is None else "Equal"
    found |= {} if match["value"] is None else {"value": match["value"]}
    return found | ({"effect": match["effect"]} if match["effect"] else {})


def volumes(value: Any) -> Pairs:
    """Return volumes by mount path: names of claims, or volume sources of the API."""
    form = "volumes must be claims by their paths, such as {'/data': 'my-claim'}, or volume sources as the API has them"
    if isinstance(value, Mapping):
        value = {path: _json("volumes", one) if isinstance(one, Mapping) else one for path, one in value.items()}
    return _pairs("volumes", value, form, r"/[^:,=]*[^:,=/]", rf"{NAME}|\{{.*\}}")


def volume(given: str) -> dict[str, Any]:
    """Return a volume's source as the API has it."""
    if _is_json(given):
        made: dict[str, Any] = json.loads(given)
        return made
    return {"persistentVolumeClaim": {"claimName": given}}


def quantity(text: str | None) -> float | None:
    """Return a Kubernetes amount as a number, such as 0.25 for ``"250m"``, or None."""
    match = re.fullmatch(r"([0-9.]+)(m|k|[KMGTPE]i?)?", text or "")
    if match is None:
        return None
    unit = match[2] or ""
    power = " kMGTPE".replace("k", "K").find(unit[:1].upper() or " ")
    return float(match[1]) / 1000 if unit == "m" else float(match[1]) * (1024 if unit.endswith("i") else 1000) ** power


def config_files(value: Any) -> tuple[str, ...]:
    """Return paths of configuration files, absolute."""
    given = value.split(os.pathsep) if isinstance(value, str) else [value] if isinstance(value, os.PathLike) else value
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        given = [None]
    found = []
    for one in given:
        if not isinstance(one, (str, os.PathLike)) or not str(one).strip() or "\0" in str(one):
            raise SpecError(f"kubeconfig must be the path of a file such as '~/.kube/config', not {brief(value)}")
        found.append(os.path.abspath(os.path.expanduser(str(one))))
    return tuple(found)


def _pairs(name: str, value: Any, form: str, key: str, text: str, *, hide: bool = False) -> Pairs:
    shown = "what was given" if hide else brief(value)
    form = form if form.startswith(name + " must") else f"{name} must be {form}"
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",") if part.strip()]
        value = {left.strip(): right.strip() for left, equals, right in parts} if all(p[1] for p in parts) else None
    if isinstance(value, (list, tuple)) and all(isinstance(one, (list, tuple)) and len(one) == 2 for one in value):
        value = dict(value)
    if not isinstance(value, Mapping):
        raise SpecError(f"{form}, not {shown}")
    found = {}
    for left, right in value.items():
        right = _digits(right) if isinstance(right, (int, float)) and not isinstance(right, bool) else right
        if not (isinstance(left, str) and isinstance(right, str)):
            raise SpecError(f"{form}, not {shown}")
        if not (re.fullmatch(key, left) and re.fullmatch(text, right)):
            raise SpecError(f"{form}, not {brief(left) if hide else f'{brief(left)}: {brief(right)}'}")
        found[left] = right
    return tuple(sorted(found.items()))


def _digits(number: int | float) -> str:
    """Return a number as a text, with all of its digits."""
    return str(int(number)) if isinstance(number, int) or number.is_integer() else repr(float(number))


def _json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{name} must be what JSON can hold, not {brief(value)} ({error})") from None


def _is_json(given: str) -> bool:
    made: Callable[[str], Any] = json.loads
    try:
        return given.startswith("{") and isinstance(made(given), dict)
    except ValueError:
        return False


__all__ = [
    "NAME",
    "Pairs",
    "config_files",
    "env",
    "labels",
    "quantity",
    "resources",
    "text",
    "toleration",
    "tolerations",
    "volume",
    "volumes",
]
