"""Which accelerators this machine has, as its driver's own tool tells."""

from __future__ import annotations

import shutil
import subprocess

_PATIENCE = 10.0
_QUERY = ("--query-gpu=name", "--format=csv,noheader")


def present() -> tuple[int, str | None]:
    """How many NVIDIA accelerators there are, and the kind of the first; ``(0, None)`` without a driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0, None
    try:
        asked = subprocess.run([tool, *_QUERY], capture_output=True, text=True, timeout=_PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0, None
    names = [line.strip() for line in asked.stdout.splitlines() if line.strip()]
    return len(names), (names[0] if names else None)
