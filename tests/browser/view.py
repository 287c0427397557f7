"""The run view of a cell, as a person uses it in a page."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.browser.lab import Page


class View:
    """The run view of a cell in a page."""

    def __init__(self, page: Page, cell: int) -> None:
        self.page = page
        self.node = page.page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".sky-run").first

    def wait(self, text: str, within: str = ".sky-panel", timeout: float = 60) -> str:
        """Wait until a part of the view says something; returns what it says."""
        try:
            self.page.wait_until(lambda: text in self.text(within), timeout=timeout)
        except AssertionError:
            raise AssertionError(f"{within} does not show {text!r}, but:\n{self.text(within)}") from None
        return self.text(within)

    def text(self, within: str = ".sky-panel") -> str:
        part = self.node.locator(within).first
        try:
            return part.inner_text(timeout=1000) if part.count() else ""
        except Exception as error:
            # It went as it was read, as when a page begins to draw what is saved.
            if type(error).__name__ != "TimeoutError":
                raise
            return ""

    def press(self, name: str) -> None:
        self.node.get_by_role("button", name=name).click()

    def tab(self, name: str) -> Any:
        return self.node.get_by_role("tab", name=name)

    @property
    def chosen(self) -> str:
        return self.node.locator('[role="tab"][aria-selected="true"]').inner_text().split("\n")[0]

    def read_earlier(self) -> None:
        """Have the page read all that came before its window."""
        earlier = self.node.locator(".sky-earlier")

        def is_read() -> bool:
            if not earlier.is_visible():
                return True
            # It is not there any more, or waits for what it has asked for.
            with contextlib.suppress(Exception):
                earlier.click(timeout=500)
            return False

        self.page.wait_until(is_read, timeout=60)

    def copied(self, tab: str) -> str:
        """What the button "Copy" gives of a tab: all of its lines, and not only those in sight."""
        page = self.page.page
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.tab(tab).click()
        self.page.wait_until(lambda: self.chosen == tab)
        page.evaluate("() => navigator.clipboard.writeText('nothing yet')")
        # Another button copies names from another rank.
        self.node.get_by_role("button", name="Copy", exact=True).click()
        read = "() => navigator.clipboard.readText()"
        self.page.wait_until(lambda: page.evaluate(read) != "nothing yet")
        return str(page.evaluate(read))
