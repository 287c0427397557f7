"""A cell that is on in a real kernel: what it shows as it comes, and a person who presses interrupt, once and twice.

going = Going(page, "%sky restart")
going.shows("is suspended")
seconds = going.freed()
"""

from __future__ import annotations

import queue
import time

from tests.magics.notebook import Cell, Notebook

# Nobody waits longer than this for what is to come at once: then it hangs.
HANG = 60.0
_BETWEEN = 0.7


class Going:
    """A cell that was begun and is not waited for.

    Parameters
    ----------
    page : Notebook
        The notebook in which it runs.
    source : str
        The cell.
    """

    def __init__(self, page: Notebook, source: str) -> None:
        self.page, self.source = page, source
        self.shown = ""
        self.status = ""
        self.cell = Cell()
        self._request = page.client.execute(source, stop_on_error=False, allow_stdin=False)
        self._idle = False

    @property
    def over(self) -> bool:
        """Whether the prompt is back, and all that the cell has shown is here."""
        return bool(self.status) and self._idle

    def hear(self, seconds: float = 0.05) -> None:
        """Take in what comes in so many seconds, or until it is over."""
        end = time.monotonic() + seconds
        while not self.over and time.monotonic() < end:
            try:
                message = self.page.client.get_iopub_msg(timeout=0.05)
                if message["parent_header"].get("msg_id") == self._request:
                    self._take(message)
            except queue.Empty:
                pass
            try:
                reply = self.page.client.get_shell_msg(timeout=0)
                if reply["parent_header"].get("msg_id") == self._request:
                    self.status = reply["content"]["status"]
            except queue.Empty:
                pass

    def _take(self, message: dict) -> None:  # type: ignore[type-arg]
        content = message["content"]
        if message["msg_type"] == "status":
            self._idle = content["execution_state"] == "idle"
            return
        self.cell.take(message)
        texts = [content.get("text", ""), content.get("evalue", ""), content.get("data", {}).get("text/plain", "")]
        self.shown += "\n".join(filter(None, texts)) + "\n"

    def shows(self, *words: str, seconds: float = HANG) -> bool:
        """Wait until all of these words were shown; whether the prompt came back before they were."""
        end = time.monotonic() + seconds
        while not all(word in self.shown for word in words):
            assert time.monotonic() < end, f"{self.source!r} shows nothing of {words}, but: {self.shown[-2000:]}"
            if self.over:
                return False
            self.hear()
        return True

    def ends(self, seconds: float = HANG) -> float:
        """Wait until it is over; after how many seconds."""
        began = time.monotonic()
        while not self.over:
            assert time.monotonic() - began < seconds, f"{self.source!r} hangs; it has shown: {self.shown[-2000:]}"
            self.hear()
        return time.monotonic() - began

    def press(self) -> None:
        """Press interrupt, as a front end's button does."""
        self.page.manager.interrupt_kernel()

    def freed(self, seconds: float = HANG) -> float:
        """Press twice, as somebody does who waits no longer; how long after the second press the prompt is back."""
        if self.over:
            return 0.0
        self.press()
        self.hear(_BETWEEN)
        if self.over:
            return 0.0
        self.press()
        return self.ends(seconds)
