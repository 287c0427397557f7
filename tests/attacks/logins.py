"""Logins of a host that get in the way: what its sshd or a login's own files may do to each command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.machines.sshd import Server, serve


@contextlib.contextmanager
def login(folder: Path, before: str = "", *options: str) -> Iterator[Server]:
    """Serve SSH where each login runs some lines of shell first.

    Parameters
    ----------
    folder : Path
        The server's own; made where it is not there.
    before : str
        What a ``.bashrc`` would have.
    options : str
        Lines of ``sshd_config``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wrapper = folder / "login.sh"
    wrapper.write_text(f'{before}\nexec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n')
    force = (f"ForceCommand /bin/sh {wrapper}",) if before else ()
    with serve(folder, *force, *options) as server:
        yield server
