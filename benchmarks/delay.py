"""A relay that delays all bytes, both ways: ``python -m benchmarks.delay HOST PORT SECONDS``."""

from __future__ import annotations

import asyncio
import sys


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Pass bytes on, each piece `seconds` after it came."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

    async def write() -> None:
        while True:
            due, data = await queue.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                writer.close()
                return
            writer.write(data)

    writing = asyncio.ensure_future(write())
    data = b"-"
    while data:
        try:
            data = await reader.read(1 << 20)
        except OSError:
            data = b""
        queue.put_nowait((loop.time() + seconds, data))
    await writing


async def main(host: str, port: int, seconds: float) -> None:
    """Listen, say at which port, and relay each connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, port)
        await asyncio.gather(_pass_on(reader, back, seconds), _pass_on(there, writer, seconds), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
