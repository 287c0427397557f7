"""The archive of our own code is unpacked whole, or not at all."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from sky_jupyter.bootstrap import source_archive


def archive(names: list[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as made:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 512
            made.addfile(info, io.BytesIO(b"x" * 512))
    return buffer.getvalue()


def unpack(folder: Path, sent: bytes, size: int) -> int:
    script = source_archive.unpack_script(str(folder), size)
    return subprocess.run(["sh", "-c", script], input=sent, stderr=subprocess.DEVNULL, check=False).returncode


def test_an_archive_is_unpacked(tmp_path: Path) -> None:
    data = gzip.compress(archive(["a", "b"]))
    assert unpack(tmp_path / "it's", data, len(data)) == 0
    assert sorted(path.name for path in (tmp_path / "it's").iterdir()) == ["a", "b"]
    # Another one was first.
    assert unpack(tmp_path / "it's", data, len(data)) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["it's"]


@pytest.mark.parametrize("after", [0, 512, 1024, 1500])
def test_what_a_broken_connection_cut_off_leaves_nothing(tmp_path: Path, after: int) -> None:
    whole = archive(["a", "b"])
    # It ends behind a whole file after 1,024: tar takes that for the end of an archive.
    sent = gzip.compress(whole[:after]) if after else b""
    assert unpack(tmp_path / "package", sent, len(gzip.compress(whole))) != 0
    assert list(tmp_path.iterdir()) == []
