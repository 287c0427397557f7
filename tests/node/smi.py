"""A stand-in for NVIDIA's own tool, where there is no accelerator: it prints what the real one prints.

Hardware cannot be had here, so that what is tested is how its driver's words are read and what ranks
are given, and not that CUDA does as its manual says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"


def uuid(number: int) -> str:
    """The name of a device that it has for good."""
    return f"GPU-{number:08x}-5b9c-4d0e-8f1a-2b3c4d5e6f70"


def rows(kinds: Sequence[str]) -> list[str]:
    """What ``nvidia-smi --query-gpu=index,uuid,name --format=csv,noheader`` prints."""
    return [f"{number}, {uuid(number)}, {kind}" for number, kind in enumerate(kinds)]


def script(kinds: Sequence[str]) -> str:
    """A shell script in the place of nvidia-smi; with no devices it says so, as the real one does."""
    if not kinds:
        return "#!/bin/sh\necho 'No devices were found'\nexit 6\n"
    lines = "\n".join(rows(kinds))
    return (
        '#!/bin/sh\n[ "$*" = "--query-gpu=index,uuid,name --format=csv,noheader" ] || '
        f"{{ echo 'Invalid combination of input arguments.'; exit 2; }}\ncat <<'END'\n{lines}\nEND\n"
    )


def install(folder: Path, kinds: Sequence[str]) -> Path:
    """Put it into a folder for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(script(kinds))
    program.chmod(0o755)
    return folder
