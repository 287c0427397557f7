"""Entry of ``python -m sky_jupyter.node.host FOLDER [SECONDS]``: see `host.main`."""

from .host import main

if __name__ == "__main__":
    main()
