"""The two ends of a tunnel: ``far`` answers at a port that it prints, ``near PORT SIZE`` measures when told to.

Processes of their own, so that nothing of the notebook's is measured with them.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

PINGS = 500
CHUNK = 1 << 20


def far() -> None:
    """Answer: E sends back what comes, S takes so many bytes, R gives them."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        caller, _ = listener.accept()
        threading.Thread(target=answer, args=(caller,), daemon=True).start()


def answer(caller: socket.socket) -> None:
    """One caller's wish."""
    caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wish, size = caller.recv(1), int(caller.recv(16))
    if wish == b"E":
        while data := caller.recv(CHUNK):
            caller.sendall(data)
    elif wish == b"S":
        while size > 0:
            size -= len(caller.recv(CHUNK))
        caller.sendall(b"k")
    else:
        for _ in range(0, size, CHUNK):
            caller.sendall(bytes(CHUNK))
    caller.close()


def near(port: int, size: int) -> None:
    """For each line of input, a line with the figures."""
    for _ in sys.stdin:
        found = {**latency(port), "up": up(port, size), "down": down(port, size)}
        print(json.dumps(found), flush=True)


def call(port: int, wish: bytes, size: int) -> socket.socket:
    """A connection to the far end."""
    made = socket.create_connection(("127.0.0.1", port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.sendall(wish)
    made.sendall(b"%16d" % size)
    return made


def latency(port: int) -> dict[str, float]:
    """Milliseconds for 100 bytes there and back."""
    times = []
    with call(port, b"E", 0) as made:
        for _ in range(PINGS + 20):
            began = time.perf_counter()
            made.sendall(bytes(100))
            left = 100
            while left:
                left -= len(made.recv(left))
            times.append((time.perf_counter() - began) * 1000)
    times = sorted(times[20:])
    return {"median": times[PINGS // 2], "p95": times[PINGS * 95 // 100]}


def up(port: int, size: int) -> float:
    """Seconds until the far end has so many bytes."""
    with call(port, b"S", size) as made:
        began = time.perf_counter()
        for _ in range(0, size, CHUNK):
            made.sendall(bytes(CHUNK))
        made.recv(1)
        return time.perf_counter() - began


def down(port: int, size: int) -> float:
    """Seconds until so many bytes are here."""
    with call(port, b"R", size) as made:
        began = time.perf_counter()
        while size > 0:
            size -= len(made.recv(CHUNK))
        return time.perf_counter() - began


if __name__ == "__main__":
    if sys.argv[1] == "far":
        far()
    else:
        near(int(sys.argv[2]), int(sys.argv[3]))
