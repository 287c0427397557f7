"""All times of a pool are in one place, and keep their relations when they are scaled."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

import sky_jupyter
from sky_jupyter.pool.base.timeouts import VARIABLE, Timeouts

POOL = Path(sky_jupyter.__file__).parent / "pool"
# Numbers that are no times, and times that are no timeouts: what a person may choose, how long rows are kept, and how
# short calls are that are sent ahead.
OTHERS = {
    "_AHEAD",
    "IDLE",
    "_FORGOTTEN",
    "_LATEST",
    "_LONGEST",
    "_MAX_TIME",
    "_MOST_TOOK",
    "_MOVED",
    "_SLOW_RATE",
    "_TINY",
}


@pytest.mark.parametrize("times", [Timeouts(), Timeouts().scaled(0.1), Timeouts().scaled(3)], ids=["1", "0.1", "3"])
def test_what_depends_on_another_time_stays_beyond_it(times: Timeouts) -> None:
    alive, start, end, press = times.liveness, times.start, times.end, times.interrupts
    assert alive.beat / 2 < alive.doubt < alive.silence < alive.absence < alive.far_absence
    assert alive.least < alive.sure <= alive.silence
    assert start.lease > start.agents
    assert end.ranks > end.plugins
    assert press.heed < press.agents < press.freed < press.freed + press.after <= press.last
    assert times.links.listener > times.links.connect
    assert times.transfers.absence > alive.absence
    assert times.repairs.returned > alive.absence


def test_scaling_changes_every_time_and_nothing_else() -> None:
    whole, half = Timeouts(), Timeouts().scaled(0.5)
    assert (whole.scale, half.scale, half.scaled(4).scale) == (1.0, 0.5, 2.0)
    for group in (one for one in fields(whole) if one.name != "scale"):
        one, other = getattr(whole, group.name), getattr(half, group.name)
        assert {name.name: getattr(one, name.name) / 2 for name in fields(one)} == vars(other)
    with pytest.raises(FrozenInstanceError):
        whole.liveness.doubt = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("scale", "printed"), [("3", "12.0 12.0"), ("0.25", "1.0 1.0"), ("0", "SpecError"), ("much", "SpecError")]
)
def test_the_environment_scales_all_modules(scale: str, printed: str) -> None:
    code = (
        "from sky_jupyter.errors import SpecError\n"
        "try:\n"
        "    from sky_jupyter.pool.base.timeouts import TIMEOUTS\n"
        "    from sky_jupyter.pool.control import control_client\n"
        "    print(TIMEOUTS.liveness.silence, control_client.SILENCE)\n"
        "except SpecError as error:\n"
        "    print(type(error).__name__)"
    )
    env = {**os.environ, VARIABLE: scale}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, cwd=POOL.parents[1])
    assert (done.stdout.strip(), done.stderr) == (printed, "")


def test_no_module_of_the_pool_has_a_time_of_its_own() -> None:
    found = []
    for path in sorted(POOL.rglob("*.py")):
        if path.name == "timeouts.py":
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign):
                names = [one.id for one in ast.walk(node.targets[0]) if isinstance(one, ast.Name)]
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] * len(names)
                for name, value in zip(names, values, strict=False):
                    if isinstance(value, ast.Constant) and isinstance(value.value, float) and name not in OTHERS:
                        found.append(f"{path.relative_to(POOL)}: {name} = {value.value}")
    assert found == []
