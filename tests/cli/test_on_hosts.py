"""`sky-jupyter torchrun` and `shell`, and `%sky exec`, on a pool of hosts: by what the pool holds already."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from tests.hosts.traces import wait_until_clean
from tests.hosts.world import hosts, skip_unless_hosts_run
from tests.magics.notebook import notebook

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("paramiko") is None, reason="needs paramiko (the `ssh` extra)"),
]
NAME = "far"
SCRIPT = """
import os, sys
from beside import WORD
print(WORD, sys.argv[1:], os.environ["RANK"], flush=True)
sys.exit(3 if os.environ["RANK"] == "1" else 0)
"""


def test_a_script_a_command_and_a_shell_reach_the_hosts(tmp_path: Path) -> None:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    (tmp_path / "says.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("WORD = 'sent'\n")
    program = [sys.executable, "-m", "sky_jupyter"]
    with hosts(2, python=True, warm=True) as world:
        config = str(world.ssh_config(tmp_path / "config"))
        with notebook(tmp_path, SKY_SSH_CONFIG=config, SSH_AUTH_SOCK="") as book:
            line = f"%load_ext sky_jupyter\n%sky up --provider ssh --hosts host0,host1 --offline --name {NAME}"
            cell = book.run(line)
            assert cell.status == "ok", cell.outputs
            assert book.run("%sky exec -- hostname; echo $SKY_RANK").body == [
                "[0] host0",
                "[0] 0",
                "[1] host1",
                "[1] 1",
            ]
            command = [*program, "torchrun", "--pool", NAME, str(tmp_path / "says.py"), "--epochs", "3"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert sorted(done.stdout.splitlines()) == [f"{rank}: sent ['--epochs', '3'] {rank}" for rank in (0, 1)]
            assert (done.returncode, done.stderr) == (3, "sky-jupyter: rank 1: says.py ended with exit code 3\n")
            shell = pexpect.spawn(
                program[0],
                [*program[1:], "shell", NAME, "1"],
                env={**os.environ, "TERM": "xterm"},
                timeout=60,
                encoding="utf-8",
                dimensions=(30, 100),
            )
            shell.expect(r"\(rank 1\) ")
            shell.sendline("hostname; stty size")
            shell.expect("host1\r\n30 100")
            shell.setwinsize(50, 132)
            shell.sendline("until [ \"$(stty size)\" = '50 132' ]; do sleep 0.1; done; echo wi''der")
            shell.expect("wider")
            shell.sendline("echo sl''eeps; sleep 600")
            shell.expect("sleeps")
            shell.sendintr()
            shell.sendline("echo status $?; exit 7")
            shell.expect("status 130")
            shell.expect(pexpect.EOF)
            shell.close()
            assert shell.exitstatus == 7
            assert book.run("%sky down").status == "ok"
        wait_until_clean(world)
