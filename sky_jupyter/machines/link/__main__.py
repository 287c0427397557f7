"""Entry point of the link's process, which `client.Link.start` starts."""

from __future__ import annotations

import sys
from pathlib import Path

from .server import main

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
