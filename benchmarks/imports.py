"""`import sky_jupyter` and `%load_ext sky_jupyter`, beside `import numpy`."""

from __future__ import annotations

import importlib

from . import fresh
from .measure import Figures, Options, Row, by_turns, clock, rows

OURS = "sky_jupyter"
YARDSTICK = "import numpy"


def measure(options: Options) -> list[Row]:
    """Each in fresh processes that have imported what a notebook's kernel has."""
    jobs = {
        OURS: lambda: fresh.call("imports", "ours"),
        YARDSTICK: lambda: fresh.call("imports", "one", package="numpy"),
    }
    samples = by_turns(jobs, options.times(10, quick=3))
    yardstick = samples[YARDSTICK]["import"]
    samples[YARDSTICK]["load_ext"] = yardstick
    return [
        *rows("import sky_jupyter", samples, "import", ours=OURS, most=0.3),
        *rows("%load_ext sky_jupyter", samples, "load_ext", ours=OURS, most=0.1),
    ]


def one(package: str) -> Figures:
    """Import one module; called in a process of its own."""
    fresh.like_a_notebook()
    figures: Figures = {}
    with clock(figures, "import"):
        importlib.import_module(package)
    return figures


def ours() -> Figures:
    """Import the package, then load the extension; called in a process of its own."""
    figures = one("sky_jupyter")
    from .engines import shell

    with clock(figures, "load_ext"):
        shell().run_line_magic("load_ext", "sky_jupyter")
    figures["load_ext"] += figures["import"]
    return figures
