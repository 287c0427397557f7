"""Entry point of ``python -m sky_jupyter.node.host FOLDER [SECONDS [OWNER]]``."""

from .host import main

if __name__ == "__main__":
    main()
