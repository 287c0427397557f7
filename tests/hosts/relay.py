"""Delays and loses packets between two TUN devices: for kernels that have no netem.

    python3 relay.py 0.05 0.01      # each packet 50 ms later, one in a hundred lost, in both directions

What arrives at one device leaves by the other, in order. Tells by a line that the devices are there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

NAMES = ("far0", "far1")
_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_LARGEST = 65536
# What a router would hold at most: with a delay of a second, more than 300 Mbit/s.
_QUEUE = 30_000


def _device(name: str) -> int:
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
    return file


def main(delay: float, loss: float) -> None:
    """Relay until killed."""
    first, second = map(_device, NAMES)
    onward = {first: second, second: first}
    waiting: deque[tuple[float, int, bytes]] = deque()
    chance = random.Random(0).random
    print("ready", flush=True)
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for file in select.select(list(onward), (), (), pause)[0]:
            due, target = time.monotonic() + delay, onward[file]
            with contextlib.suppress(BlockingIOError):
                for _ in range(64):
                    packet = os.read(file, _LARGEST)
                    if len(waiting) < _QUEUE and chance() >= loss:
                        waiting.append((due, target, packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, target, packet = waiting.popleft()
            # Full, or not up yet: lost, as on any wire.
            with contextlib.suppress(OSError):
                os.write(target, packet)


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
