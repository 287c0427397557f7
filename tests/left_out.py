"""What a run of the tests left out, told at its end: one line a reason, with the count and how to have those run.

A pytest plugin, which `tests/conftest.py` brings. The workers of pytest-xdist tell the process that started
them what they deselected; skips come there with the other reports.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

TIERS = {
    "long": "python3 dev.py test --long",
    "slow": "python3 dev.py test --slow",
    "timing": "python3 dev.py test -m timing -n 0",
}
"""Markers of what the daily run leaves out, and the command that runs it; the first that a test has is its tier."""
DAILY = "the daily run: python3 dev.py test"

# What a reason for a skip says, and what helps; the first that fits is told.
HELP = (
    (r"`npm install` could not", "let npm reach a registry: `npm config get registry` names it"),
    (r"second Python", "install another Python, of 3.10 to 3.14"),
    (r"git checkout", "run it in a git checkout"),
    (r"apt-get install|chmod 666|sysctl|git fetch|pip install|dev\.py|run (this|the tests) as root", ""),
    (r"py-spy: ", "let py-spy read other processes, as root may"),
    (r"hosts need|debootstrap", "as root: apt-get install debootstrap iproute2 nftables openssh-client"),
    (r"OpenSSH|openssh|ssh-agent|ssh-keygen|sshd", "apt-get install openssh-client openssh-server"),
    (r"C compiler", "apt-get install gcc libc6-dev"),
    (r"\broot\b|mount", "as root, or: python3 tests/hosts/rootless.py python3 dev.py test FILE"),
    (r"import|extra|package|environment|needs [\w.-]+$", "python3 dev.py test installs it"),
)

_LEFT_OUT = pytest.StashKey["Counter[str]"]()
_OUTPUT = "left_out"


def help_for(reason: str) -> str:
    """Return the command that has tests with this reason for a skip run; empty where the reason says it itself."""
    return next((command for pattern, command in HELP if re.search(pattern, reason)), "")


def lines(left_out: Mapping[str, int], skipped: Mapping[str, int]) -> list[str]:
    """Return one line for each reason, the most frequent first.

    Parameters
    ----------
    left_out : mapping
        How many tests of each tier were deselected.
    skipped : mapping
        How many tests were skipped for each reason.
    """
    told = [
        f"{count} left out: {f'marked `{tier}`: {TIERS[tier]}' if tier in TIERS else DAILY}"
        for tier, count in Counter(left_out).most_common()
    ]
    for reason, count in Counter(skipped).most_common():
        command = help_for(reason)
        told.append(f"{count} skipped: {reason}{f' [{command}]' if command else ''}")
    return told


def reason_of(report: Any) -> str:
    """Return why the test of this report was skipped, in one line."""
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else str(where)
    return " ".join(text.removeprefix("Skipped: ").split())


def tier_of(item: pytest.Item) -> str:
    """Return the tier that a test belongs to; empty for the daily one."""
    return next((tier for tier in TIERS if item.get_closest_marker(tier)), "")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to count."""
    config.stash[_LEFT_OUT] = Counter()


def pytest_deselected(items: Iterable[pytest.Item]) -> None:
    """Count what `-m` and `-k` leave out; what a test's name does is the user's own choice, and known."""
    for item in items:
        if not item.config.option.keyword:
            item.config.stash[_LEFT_OUT][tier_of(item)] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that started this worker, where this is one."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_OUTPUT] = dict(session.config.stash[_LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker deselected: each of them collects everything, so that one speaks for all."""
    told = getattr(node, "workeroutput", {}).get(_OUTPUT, {})
    left_out = node.config.stash[_LEFT_OUT]
    for tier, count in told.items():
        left_out[tier] = max(left_out[tier], count)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write the lines."""
    skipped = Counter(map(reason_of, terminalreporter.stats.get("skipped", [])))
    if told := lines(config.stash[_LEFT_OUT], skipped):
        terminalreporter.section("left out and skipped", sep="-")
        for line in told:
            terminalreporter.line(line)
