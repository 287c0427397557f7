"""``python -m sky_jupyter`` is the program ``sky-jupyter``."""

import sys

from .cli.main import main

if __name__ == "__main__":
    # Registries and messages name a process by its program.
    sys.argv[0] = "sky-jupyter"
    sys.exit(main())
