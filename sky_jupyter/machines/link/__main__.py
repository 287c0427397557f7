"""``python -m sky_jupyter.machines.link FOLDER``: be the link of a folder that `client.Link.start` has made."""

from __future__ import annotations

import sys
from pathlib import Path

from .server import main

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
