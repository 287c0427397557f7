"""A cluster to try things on by hand, for as long as this runs.

    python -m tests.kubernetes.by_hand FOLDER

`FOLDER` gets ``admin.conf`` and ``ada.conf`` (who has the namespace ``people``), and a link to the run's logs.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from pathlib import Path

from tests.kubernetes import cluster


def main(target: str) -> None:
    place = Path(target)
    place.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with cluster.running() as made:
        space = made.space("people")
        for user, source in (("admin", made.admin_config()), ("ada", space.kubeconfig("ada"))):
            shutil.copy(source, place / f"{user}.conf")
        shutil.copy(space.kubeconfig("ada", plugin=True), place / "ada-plugin.conf")
        logs = place / "run"
        logs.unlink(missing_ok=True)
        logs.symlink_to(made.folder)
        print(f"export KUBECONFIG={place}/admin.conf", flush=True)
        signal.pause()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1])
