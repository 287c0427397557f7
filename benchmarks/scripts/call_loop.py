"""Loops of small calls, the same for ours and for a peer: a job for each line of standard input, figures for each.

A line is a job in JSON: ``{"do": "start", "ranks": 2}``, ``{"do": "one", "times": 100, "size": 0}``. The answer is a
line in JSON with the seconds that it took. The standard library is all that it needs, and any Python.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Job = Callable[[int, bytes], None]


def serve(start: Callable[[int], dict[str, Job]], end: Callable[[], None]) -> None:
    """Do what the lines of standard input say, until they end.

    Parameters
    ----------
    start : callable
        Starts so many ranks and makes the first call to all of them; returns the jobs by name. A job makes so many
        calls, each with the given bytes as its argument, and returns when the last result is here.
    end : callable
        Ends all that was started.
    """
    # Libraries may print; the answers have the pipe for themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    jobs: dict[str, Job] = {}
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        began = time.perf_counter()
        if asked["do"] == "start":
            jobs = start(asked["ranks"])
        elif asked["do"] == "end":
            end()
        else:
            jobs[asked["do"]](asked["times"], bytes(asked["size"]))
        print(json.dumps({"s": time.perf_counter() - began}), file=answers, flush=True)
