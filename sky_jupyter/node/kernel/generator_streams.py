"""Streams as a rank's code has them: what its generator yields goes out, what the notebook's iterator gives comes in.

The generator runs on the kernel's main thread, and a few items ahead of who reads them at most. Both ways
go through the agent (`stream_relay`), which is asked as `agent_channel` has it; what waits can be interrupted.
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
from ..serialization import pickling, result_values
from ..shared.agent_channel import AgentChannel, of_rank

# A generator is at most so many items, and so many bytes, ahead of who reads.
AHEAD, AHEAD_BYTES = 8, 8 << 20
# So many items of the notebook's iterator are asked for at once, where the last so many were used up.
MOST_AT_ONCE = 64


class Closed(BaseException):
    """Nobody reads any more."""


class GeneratorStream:
    """One call's streams, both ways; made by its rank as the call begins.

    Parameters
    ----------
    asking : AgentChannel
        How the agent is asked.
    run : str
        The call's name.
    """

    def __init__(self, asking: AgentChannel, run: str) -> None:
        self._asking, self._run = asking, run
        self.closed = False
        self._count = self._read = 0
        # The sizes of what was sent and is not known to be read.
        self._sizes: deque[int] = deque()
        asking.hears[run] = self._on_told

    def _on_told(self, content: dict[str, Any], data: list[bytes]) -> None:
        """In the control thread: the notebook has closed the stream."""
        self.closed = True

    def end(self) -> None:
        """The call is over."""
        self._asking.hears.pop(self._run, None)

    # -- out ---------------------------------------------------------------------------------------

    async def send_all(self, items: Any) -> Any:
        """Have all that a generator yields go out; what it returns. It is closed, however this ends."""
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

    # -- in ----------------------------------------------------------------------------------------

    def pull(self, index: int, number: int, most: int) -> tuple[list[bytes], bool]:
        """The next items of an iterator of the notebook, waited for, and whether they were the last.

        Raises
        ------
        Exception
            What the iterator raised there.
        GeneratorExit
            When the notebook reads no more of what is yielded here.
        """
        what = {"op": "pull", "run": self._run, "input": index, "number": number, "most": most}
        answer, data = self._asking.ask("stream", what, where="waiting for an item of the notebook's iterator")
        if answer.get("closed"):
            raise GeneratorExit("the notebook has closed the stream")
        if answer.get("error"):
            raise _error(answer["error"], answer.get("exception"))
        return data, bool(answer.get("end"))


class Incoming(Iterator[Any]):
    """An iterator of the notebook's, on a rank: made where a call's arguments are unpickled.

    Parameters
    ----------
    stream : GeneratorStream
        The call's.
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
    """Stands for an iterator of the notebook in a call's arguments; unpickled on a rank it is an `Incoming`.

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
    """The streams of a call, while its rank is at it."""
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
    """An item as a pickle: in memory where it is small, else in a file that the agent reads piece by piece."""
    try:
        buffer = result_values.Limited(result_values.SMALL)
        with contextlib.suppress(result_values.TooLarge):
            _pickler(buffer).dump(item)
            return buffer.getvalue()
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
    """An item of a notebook's iterator as a pickle; functions of the notebook go as such."""
    file = io.BytesIO()
    pickling.Pickler(file, pickling.main_namespace()).dump(item)
    return file.getvalue()


def _error(text: str, exception: str | None) -> BaseException:
    """What the notebook's iterator raised there, of its own type where that can be had here."""
    error: Any = None
    if exception:
        with contextlib.suppress(Exception):
            error = pickle.loads(base64.b64decode(exception))
    return error if isinstance(error, Exception) else RemoteError(text)
