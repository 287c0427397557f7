"""Streams in a rank: a generator's items go out, iterator items come in.

The generator runs on the kernel's main thread, at most a few items ahead of its reader. Both directions go through the
agent (`stream_relay`), by way of `agent_channel`; waits can be interrupted.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import io
import os
import pickle
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import RemoteError
from ..protocol.shared_bytes import SharedWriter, TooLarge
from ..serialization import pickling, result_values
from ..shared.agent_channel import AgentChannel, of_rank

# Items and bytes by which a generator may be ahead of its reader.
AHEAD, AHEAD_BYTES = 8, 8 << 20
# Most items that are requested at once from a notebook iterator; the number doubles while items are consumed.
MOST_AT_ONCE = 64


class Closed(BaseException):
    """Raised in the sending loop when the notebook has closed the stream."""


class GeneratorStream:
    """Streams of one call, in both directions; made as the call begins.

    Parameters
    ----------
    asking : AgentChannel
        Channel to the agent.
    run : str
        The attempt's name.
    """

    def __init__(self, asking: AgentChannel, run: str) -> None:
        self._asking, self._run = asking, run
        self.closed = False
        self._count = self._read = 0
        # Sizes of items that were sent and not yet read.
        self._sizes: deque[int] = deque()
        asking.hears[run] = self._on_told

    def _on_told(self, content: dict[str, Any], data: list[bytes]) -> None:
        """Note, in the control thread, that the notebook has closed the stream."""
        self.closed = True

    def end(self) -> None:
        """Unregister the call's streams."""
        self._asking.hears.pop(self._run, None)

    # -- outgoing items ----------------------------------------------------------------------------

    async def send_all(self, items: Any) -> Any:
        """Send all items of a generator and return its value.

        The generator is closed in any case.
        """
        if inspect.isasyncgen(items):
            try:
                async for item in items:
                    self._put(item)
            except Closed:
                pass
            finally:
                await items.aclose()
            return None
        try:
            while True:
                try:
                    item = next(items)
                except StopIteration as end:
                    return end.value
                self._put(item)
        except Closed:
            return None
        finally:
            items.close()

    def _put(self, item: Any) -> None:
        if self.closed:
            raise Closed
        what: dict[str, Any] = {"op": "item", "run": self._run, "number": self._count}
        pickled = _pickled(item, self._count)
        if isinstance(pickled, bytes):
            what["size"] = len(pickled)
            self._asking.tell({"to": "stream", "what": what}, [pickled])
        else:
            what.update(size=pickled.stat().st_size, path=str(pickled))
            self._asking.tell({"to": "stream", "what": what})
        self._count += 1
        self._sizes.append(what["size"])
        while len(self._sizes) >= AHEAD or (len(self._sizes) > 1 and sum(self._sizes) > AHEAD_BYTES):
            self._wait_for_reader()
        if self.closed:
            raise Closed

    def _wait_for_reader(self) -> None:
        what = {"op": "room", "run": self._run, "read": self._read}
        where = "for the notebook to read what has been yielded"
        answer, _ = self._asking.ask("stream", what, where=f"waiting {where}")
        if answer.get("closed"):
            raise Closed
        while self._read < answer["read"]:
            self._read += 1
            self._sizes.popleft()

    # -- incoming items ----------------------------------------------------------------------------

    def pull(self, index: int, number: int, most: int) -> tuple[list[bytes], bool]:
        """Wait for the next items of a notebook iterator; return them.

        The second value is True for the last items. Raises what the iterator raised in the notebook, or GeneratorExit
        when the notebook has closed the stream.
        """
        what = {"op": "pull", "run": self._run, "input": index, "number": number, "most": most}
        answer, data = self._asking.ask("stream", what, where="waiting for an item of the notebook's iterator")
        if answer.get("closed"):
            raise GeneratorExit("the notebook has closed the stream")
        if answer.get("error"):
            raise _error(answer["error"], answer.get("exception"))
        return data, bool(answer.get("end"))


class Incoming(Iterator[Any]):
    """Iterator over a notebook iterator's items; made by unpickling arguments.

    Parameters
    ----------
    stream : GeneratorStream
        The call's streams.
    index : int
        Which of the call's iterators it is.
    """

    def __init__(self, stream: GeneratorStream, index: int) -> None:
        self._stream, self._index = stream, index
        self._items: deque[bytes] = deque()
        self._number, self._most, self._ended = 0, 1, False

    def __next__(self) -> Any:
        while not self._items:
            if self._ended:
                raise StopIteration
            data, self._ended = self._stream.pull(self._index, self._number, self._most)
            self._items.extend(data)
            self._number += len(data)
            if len(data) == self._most:
                self._most = min(2 * self._most, MOST_AT_ONCE)
        return pickle.loads(self._items.popleft())

    def __repr__(self) -> str:
        return f"<an iterator of the notebook, {self._number - len(self._items)} items read>"


class Outside:
    """Picklable placeholder of a notebook iterator; unpickles as `Incoming`.

    Parameters
    ----------
    index : int
        Which of the call's iterators it is.
    """

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:
        return _incoming, (self.index,)


_current: GeneratorStream | None = None


def _incoming(index: int) -> Incoming:
    if _current is None:
        raise RuntimeError("an iterator of the notebook can be read by the call alone that it was given to")
    return Incoming(_current, index)


@contextlib.contextmanager
def opened(run: str) -> Iterator[GeneratorStream]:
    """Open the streams of a call while its rank runs it."""
    global _current  # noqa: PLW0603 - a rank does one call at a time
    asking = of_rank()
    assert asking is not None
    before, _current = _current, GeneratorStream(asking, run)
    stream = _current
    try:
        yield stream
    finally:
        stream.end()
        _current = before


def _pickled(item: Any, number: int) -> bytes | Path:
    """Pickle an item: return bytes if it is small, otherwise a file's path.

    The agent reads the file piece by piece.
    """
    try:
        writer = SharedWriter(result_values.SMALL, shares=False)
        with contextlib.suppress(TooLarge):
            _pickler(writer).dump(item)
            return bytes(writer.written())
        path = _folder() / f"item-{uuid.uuid4().hex}"
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                _pickler(file).dump(item)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path
    except Exception as error:
        raise TypeError(
            f"item {number} that was yielded, of type {type(item).__qualname__}, cannot be sent to the notebook: "
            f"{type(error).__name__}: {error}"
        ) from error


def _pickler(file: Any) -> Any:
    return result_values.ResultPickler(file, pickling.main_namespace())


def _folder() -> Path:
    from ipykernel.kernelapp import IPKernelApp

    return Path(IPKernelApp.instance().abs_connection_file).parent / "values"


def dump_item(item: Any) -> bytes:
    """Pickle an item of a notebook iterator; notebook functions go by value."""
    file = io.BytesIO()
    pickling.Pickler(file, pickling.main_namespace()).dump(item)
    return file.getvalue()


def _error(text: str, exception: str | None) -> BaseException:
    """Return the exception of a notebook iterator, of its own type if possible."""
    error: Any = None
    if exception:
        with contextlib.suppress(Exception):
            error = pickle.loads(base64.b64decode(exception))
    return error if isinstance(error, Exception) else RemoteError(text)
