"""Programs in a container of their own: another PID, mount and UTS namespace of this machine, with its files.

    with container(host="twin", boot="…") as there:
        print(there.python("import os; print(os.getpid())"))

What is not said is as it is outside: the host's name, HOME, TMPDIR and the registry among them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_NEEDED = ("unshare", "mount", "hostname")


@dataclass(frozen=True)
class Container:
    """How programs are started in it; each has namespaces of its own, which end with it."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a Python program, whose output and errors are to be read."""
        env = {**os.environ, "PYTHONPATH": str(ROOT), **self.environment}
        command = [*self.command, sys.executable, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, text=True, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)

    def python(self, code: str, *arguments: str) -> str:
        """Run Python code to its end; what it printed."""
        return self._run("-c", code, *arguments)

    def notebook(self, *cells: str) -> str:
        """Run cells in an IPython of its own; what they printed, errors too."""
        code = "from IPython.testing.globalipapp import start_ipython\nimport sys\nshell = start_ipython()\n"
        code += "for cell in sys.argv[1:]:\n    shell.run_cell(cell)\n"
        return self._run("-c", code, *cells)

    def _run(self, *arguments: str) -> str:
        with self.start(*arguments) as process:
            try:
                text, _ = process.communicate()
            finally:
                process.kill()
        assert process.returncode == 0, text
        return text


@contextlib.contextmanager
def container(
    *,
    pids: bool = True,
    host: str | None = None,
    boot: str | None = None,
    machine: str | None = None,
    hidden: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Container]:
    """A container, for as long as it is needed; the test is skipped where there can be none.

    Parameters
    ----------
    pids : bool
        Whether it has a PID namespace of its own.
    host : str, optional
        Its host's name, if it has another.
    boot, machine : str, optional
        The ids of its machine's boot and of the machine itself, if it stands for another one.
    hidden : sequence of Path
        Folders that it has for itself: they are empty there.
    """
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if os.geteuid() or missing:
        pytest.skip(f"needs root{' and ' + ', '.join(missing) if missing else ''}: run the tests as root")
    flags = ["--mount", "--uts"] + (["--pid", "--fork", "--kill-child", "--mount-proc"] if pids else [])
    with tempfile.TemporaryDirectory() as place:
        lines = [f"mount -t tmpfs none {shlex.quote(str(folder))}" for folder in hidden]
        if host is not None:
            lines.append(f"hostname {shlex.quote(host)}")
        for path, text in (("/proc/sys/kernel/random/boot_id", boot), ("/etc/machine-id", machine)):
            if text is not None:
                file = Path(place) / Path(path).name
                file.write_text(f"{text}\n")
                lines.append(f"mount --bind {shlex.quote(str(file))} {path}")
        inside = " && ".join([*lines, 'exec "$@"'])
        yield Container(["unshare", *flags, "sh", "-c", inside, "sh"], dict(environment or {}))
