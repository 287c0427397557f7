"""What it costs the notebook's kernel that somebody looks at the panel of a large pool: its CPU time a second.

The nodes are real ones, of this machine: they work in other processes, which are not counted.
"""

from __future__ import annotations

import contextlib
import os
import queue
import statistics
import time
from collections.abc import Iterator
from typing import Any

import psutil

from .kernels import Kernels
from .measure import Figures, Options, Row, by_turns, rows

NODES, QUICK_NODES = 64, 2
SECONDS, QUICK_SECONDS = 20, 1
OURS, ALONE = "the panel is in sight", "nobody looks"
# A look a second may take so much: 2 % of a core.
_MOST = 20.0
_PATIENCE = 30.0


def measure(options: Options) -> list[Row]:
    """CPU time of the kernel in milliseconds a second, watched and alone; and how long an answer takes."""
    nodes = QUICK_NODES if options.quick else NODES
    seconds = QUICK_SECONDS if options.quick else SECONDS
    with _kernel(nodes) as kernel:
        jobs = {OURS: lambda: kernel.watched(seconds), ALONE: lambda: kernel.alone(seconds)}
        samples = by_turns(jobs, options.times(5, quick=1))
        told = f"{nodes} local nodes, an answer has {kernel.size / 1000:.0f} KB"
        print(f"watch: {told}; load {os.getloadavg()[0]:.1f} at the end")
    pairs = zip(samples[OURS]["cpu"], samples[ALONE]["cpu"], strict=True)
    samples[OURS]["more"] = [max(0.0, watched - alone) for watched, alone in pairs]
    samples[ALONE]["more"] = [0.0] * len(samples[ALONE]["cpu"])
    what = f"{nodes} nodes"
    return [
        *rows(f"{what}: CPU time of the kernel a second", samples, "cpu", ours=OURS, unit="ms"),
        *rows(f"{what}: of that for the panel", samples, "more", ours=OURS, unit="ms", most=_MOST),
        *rows(f"{what}: an answer to the page", samples, "answer", ours=OURS, unit="ms"),
    ]


class _Watched:
    """A kernel with a pool, asked on its control channel as a page does."""

    def __init__(self, kernels: Kernels) -> None:
        manager = kernels.managers[0]
        self._client = manager.blocking_client()
        self._client.start_channels(shell=False, iopub=False, stdin=False, hb=False, control=True)
        self._process = psutil.Process(manager.provisioner.pid)
        self._mark = self.size = 0

    def watched(self, seconds: float) -> Figures:
        """A look a second."""
        answers: list[float] = []
        # All of what nobody has asked for until now is no part of it.
        self._look()
        before, began = self._cpu(), time.perf_counter()
        while (now := time.perf_counter()) - began < seconds:
            self.size = self._look()
            answers.append(1000 * (time.perf_counter() - now))
            time.sleep(max(0.0, 1.0 - (time.perf_counter() - now)))
        took = time.perf_counter() - began
        cpu = 1000 * (self._cpu() - before) / took
        return {"cpu": cpu, "answer": statistics.median(answers)}

    def alone(self, seconds: float) -> Figures:
        """None."""
        before, began = self._cpu(), time.perf_counter()
        time.sleep(seconds)
        cpu = 1000 * (self._cpu() - before) / (time.perf_counter() - began)
        return {"cpu": cpu, "answer": 0.0}

    def _look(self) -> int:
        session = self._client.session
        content = {"action": "status", "pool": "default", "since": self._mark}
        request = session.msg("sky_request", content)
        self._client.control_channel.send(request)
        end = time.perf_counter() + _PATIENCE
        while time.perf_counter() < end:
            with contextlib.suppress(queue.Empty):
                reply = self._client.control_channel.get_msg(timeout=1)
                if reply["parent_header"].get("msg_id") == request["header"]["msg_id"]:
                    (pool,) = reply["content"]["pools"]
                    self._mark = pool["mark"]
                    return len(session.pack(reply["content"]))
        raise RuntimeError("the kernel did not answer")

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        self._client.stop_channels()


@contextlib.contextmanager
def _kernel(nodes: int) -> Iterator[Any]:
    kernels = Kernels(1)
    try:
        kernels.run(f"%load_ext sky_jupyter\n%sky up --yes --nodes {nodes}")
        watched = _Watched(kernels)
        try:
            yield watched
        finally:
            watched.close()
            kernels.run("%sky down")
    finally:
        kernels.close()
