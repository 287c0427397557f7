"""Capturing a cell in a notebook with much in it: what it costs beyond hashing what the cell uses."""

from __future__ import annotations

import random
from typing import Any

from . import fresh
from .measure import Figures, Options, Row, Samples, by_turns, clock, rows

NAMES = 500
MEGABYTES, QUICK_MEGABYTES = 2000, 400
# An array, a table and a function that reads a setting: what the cell uses, a quarter of the data.
CELL = "result = score(table, array) + int(array[0])"
OURS, HASH, COPY = "capture", "hashing alone", "memcpy"


def measure(options: Options) -> list[Row]:
    """A first capture and one of what is unchanged, beside a hash and a copy of the same bytes."""
    megabytes = QUICK_MEGABYTES if options.quick else MEGABYTES
    samples: Samples = fresh.call("capture", "turns", megabytes=megabytes, repeat=options.times(15, quick=3))
    used = f"{megabytes // 4} MB of {megabytes} MB, 3 of {NAMES} names"
    for name in ("first", "again"):
        pairs = zip(samples[OURS][name], samples[HASH]["s"], strict=True)
        samples[OURS][f"{name}, beyond"] = [max(0.0, 1000 * (ours - hashing)) for ours, hashing in pairs]
        samples[HASH][f"{name}, beyond"] = [1000 * hashing for hashing in samples[HASH]["s"]]
        samples[HASH][name] = samples[HASH]["s"]
    found = []
    for name, text in {"first": used, "again": f"{used}: unchanged"}.items():
        found += rows(text, samples, name, ours=OURS)
        found += rows(f"{text}: beyond hashing", samples, f"{name}, beyond", ours=OURS, unit="ms", most=20.0)
    return [*found, *rows(f"{megabytes // 4} MB hashed", samples, "s", ours=HASH, best=1.0)]


def turns(megabytes: int, repeat: int) -> Samples:
    """All of it, by turns; called in a process of its own."""
    import numpy
    import xxhash

    from sky_jupyter.capture.collect import collect
    from sky_jupyter.capture.ledger import Ledger

    fresh.like_a_notebook()
    namespace = notebook(megabytes)
    ledger = Ledger()
    collect(CELL, namespace, ledger).commit(ledger)
    buffers = [namespace["array"], *(namespace["table"][name].to_numpy() for name in namespace["table"])]
    room = [numpy.empty_like(buffer) for buffer in buffers]
    sent: list[int] = []

    def capture() -> Figures:
        figures: Figures = {}
        with clock(figures, "first"):
            first = collect(CELL, namespace, Ledger())
        with clock(figures, "again"):
            again = collect(CELL, namespace, ledger)
        sent.append(len(first.bindings))
        assert not again.bindings
        return figures

    def hashing() -> Figures:
        figures: Figures = {}
        with clock(figures, "s"):
            for buffer in buffers:
                xxhash.xxh3_128_digest(buffer)
        return figures

    def copying() -> Figures:
        figures: Figures = {}
        with clock(figures, "s"):
            for buffer, free in zip(buffers, room, strict=True):
                numpy.copyto(free, buffer)
        return figures

    samples = by_turns({OURS: capture, HASH: hashing, COPY: copying}, repeat)
    # The three, the setting that the function reads, and the module that it uses.
    assert set(sent) == {5}
    return samples


def notebook(megabytes: int) -> dict[str, Any]:
    """A namespace of `NAMES` names of all kinds with so much data, of which `CELL` uses a quarter."""
    import numpy
    import pandas

    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("import numpy as np\nlimit = 0.5\ndef score(table, array):\n    return np.sum(table['a'] > limit)", namespace)
    part, random_numbers = megabytes * 1_000_000 // 8, numpy.random.default_rng(0).random
    namespace["array"] = random_numbers(part // 5)
    namespace["table"] = pandas.DataFrame({"a": random_numbers(part // 40), "b": random_numbers(part // 40)})
    # The rest of the data, in ten others.
    for number in range(10):
        namespace[f"data_{number}"] = random_numbers((part - part // 4) // 10)
    kinds = [
        "{name} = lambda x: x + limit",
        "def {name}(x):\n    return score(x, data_0)",
        "class {name}:\n    def m(self):\n        return data_1",
        "{name} = [dict(a=1, b=[2, 3])] * 100",
        "{name} = 'a text'",
        "import json as {name}",
        "{name} = (x for x in ())",
    ]
    choose = random.Random(0).choice
    for number in range(NAMES - len(namespace) + 1):
        exec(choose(kinds).format(name=f"name_{number}"), namespace)
    return namespace
