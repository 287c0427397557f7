"""Values that are mapped from shared memory are in a process's page tables soon after they were loaded."""

from __future__ import annotations

import mmap
import re
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest

from sky_jupyter.capture.blobs import pack, write_blob
from sky_jupyter.node.serialization import pickling, prefault
from tests.pool.pools import wait_until

MAPPED = re.compile(r"^[0-9a-f]+-.* (/.*)$")


def resident(path: Path) -> int:
    """How many KB of a file this process has mapped pages of."""
    found, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := MAPPED.match(line):
            here = match[1] == str(path)
        elif here and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def can_prefault() -> bool:
    with mmap.mmap(-1, mmap.PAGESIZE) as probe:
        try:
            probe.madvise(22)
        except OSError:
            return False
    return True


@pytest.mark.skipif(not can_prefault(), reason="needs Linux 5.14 or later (MADV_POPULATE_READ)")
def test_the_pages_of_a_large_value_are_mapped_before_it_is_used(tmp_path: Path) -> None:
    path = write_blob(pack(numpy.arange(2 << 20), {}).blob, tmp_path)
    value = pickling.load_blob(path)
    files = [one for one in tmp_path.iterdir() if one.stat().st_size >= 16 << 20]
    wait_until(lambda: sum(map(resident, files)) >= 16 << 10)
    assert value[-1] == (2 << 20) - 1


def test_a_value_that_calls_map_again_and_again_is_prefaulted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []

    class Begun:
        def __init__(self, target: Any, args: tuple[Any, ...], **options: Any) -> None:
            begun.append(args)

        def start(self) -> None: ...

    monkeypatch.setattr(threading, "Thread", Begun)
    paths = [write_blob(pack(numpy.full(2 << 20, number), {}).blob, tmp_path) for number in range(2)]
    for again in range(3):
        # Each run has a folder with links to them.
        (folder := tmp_path / f"run{again}").mkdir()
        for file in (one for one in tmp_path.iterdir() if one.is_file()):
            (folder / file.name).hardlink_to(file)
        for number, path in enumerate(paths):
            assert pickling.load_blob(folder / path.name)[-1] == number
    assert len(begun) == 2


def test_small_values_and_very_large_ones_start_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefault, "_populate", None)
    path = tmp_path / "value"
    for size in (prefault._LEAST - 1, prefault._MOST + 1):
        with path.open("wb") as file:
            file.truncate(size)
        with path.open("rb") as written, mmap.mmap(written.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            prefault.prefault(mapped, written.fileno())


def test_a_kernel_that_cannot_do_it_is_no_error() -> None:
    class Refuses:
        def __len__(self) -> int:
            return 1

        def madvise(self, *given: int) -> None:
            raise OSError(22, "Invalid argument")

    prefault._populate(Refuses())  # type: ignore[arg-type]
