"""Pods as restricted namespaces have them: no root, nothing to write but volumes, a user without a name."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.bootstrap import host_probe
from sky_jupyter.bootstrap.remote_environment import HostPreparation
from sky_jupyter.errors import BootstrapError
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import Image, PoolSpec
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.pool.pools import run
from tests.pool.remote import MARKS
from tests.providers.pod import API, Pod, Pods, announce

pytestmark = MARKS
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
PACKAGES = "/usr/lib/python3/dist-packages"
# Of a user that is not in /etc/passwd, as OpenShift draws them, in a pod of a TrainJob with two nodes.
UID = 1000650000
TRAINER = {
    "JAX_COORDINATOR_ADDRESS": "p-node-0-0.p:29500", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1",
    "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "p-node-0-0.p", "PET_MASTER_PORT": "29500",
}  # fmt: skip
ENV = {"HOME": "/work", "USER": "", "PATH": "/opt/vendor/bin:/usr/local/bin:/usr/bin:/bin", **TRAINER}


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Such a pod; its image has a package that no index has, in a vendor's build."""
    skip_unless_hosts_run(MINOR)
    api = tmp_path_factory.mktemp("api") / "pods.json"
    with hosts(1, python=True) as world, pytest.MonkeyPatch.context() as patch:
        for host in world:
            host.write(f"{PACKAGES}/skyvendor/__init__.py", "WHERE = __file__\n")
            about = "Metadata-Version: 2.1\nName: skyvendor\nVersion: 2.3.0a0+6ddf5cf85e.nv24.4\nRequires-Dist: six\n"
            host.write(f"{PACKAGES}/skyvendor-2.3.0a0+6ddf5cf85e.nv24.4.dist-info/METADATA", about)
            host.write("/opt/vendor/bin/vendor-tool", "#!/bin/sh\necho made here\n", mode=0o755)
            host.run(
                f"mkdir /work && mount -t tmpfs -o mode=700,uid={UID},gid={UID} home /work && "
                "mount -o remount,size=64m /dev/shm && mount -o remount,ro /"
            )
        announce(world, api, uid=UID, env=ENV)
        patch.setenv(API, str(api))
        patch.setenv("SKY_SSH_CONFIG", "/nonexistent")
        yield world


def pod() -> Pod:
    return Pod("pod-0", json.loads(Path(os.environ[API]).read_text())["pod-0"])


def looked(**options: object) -> list[str]:
    """What is said as the first pod is looked at."""
    provider, told = Pods(("pod-0",), **options), []
    spec = PoolSpec(provider=provider, nodes=1)
    HostPreparation([pod()], spec, offline=True, stop=threading.Event()).look(told.append)
    return told


@pytest.mark.slow
def test_a_pool_is_bootstrapped_without_root_in_a_read_only_image_and_uses_what_that_has(pods: World) -> None:
    said: list[str] = []
    spec = PoolSpec(provider=Pods(image_packages=True), nodes=1, image=Image(pip=["skyvendor"]))
    pool = Pool(spec)
    pool.start(lambda event: said.append(str(event)))
    try:
        code = (
            "import os, subprocess, sys, skyvendor\n"
            "tool = subprocess.run('vendor-tool', capture_output=True, text=True).stdout\n"
            "names = [n for n in os.environ if n.startswith(('JAX_', 'PET_'))]\n"
            "(skyvendor.WHERE, sys.prefix.split('/environments')[0], tool, os.getuid(), "
            "{n: os.environ[n] for n in names})"
        )
        ((where, prefix, tool, uid, env),) = run(pool, code).values
        assert (where, prefix) == (f"{PACKAGES}/skyvendor/__init__.py", "/work/.cache/sky_jupyter")
        assert (tool, uid) == ("made here\n", UID)
        head = pods[0].private
        mine = {"JAX_COORDINATOR_ADDRESS": f"{head}:29500", "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}
        mine |= {"PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": head}
        assert env == {**TRAINER, **mine}
        # More than the memory of an image's own /dev/shm.
        large = os.urandom(1 << 20) * 100
        assert run(pool, "len(large), hash(large) != 0", {"large": large}).values == [(100 << 20, True)]
        assert run(pool, "bytes(80 << 20)").values == [bytes(80 << 20)]
    finally:
        pool.down()
    assert "building the environment of" in "".join(said)
    assert "beside the image's" in "".join(said)
    assert "its /dev/shm holds 67 MB: larger values go by its disk" in "".join(said)


def test_too_little_shared_memory_is_said_and_so_is_a_cap(pods: World) -> None:
    (small,) = looked()
    assert "its /dev/shm holds 67 MB: larger values go by its disk, and torch's data loaders and NCCL" in small
    assert "an emptyDir with medium Memory" in small
    (capped,) = looked(shared_memory=8 << 30)
    assert "its /dev/shm holds 67 MB of the 8.6 GB that were asked for: the machine's limit of memory caps it" in capped


def test_a_home_that_cannot_be_written_is_said_with_what_to_set(pods: World) -> None:
    facts = json.loads(Path(os.environ[API]).read_text())["pod-0"]
    for home, text in (("/", "HOME is / there, where nothing can be written"), ("", "HOME is not set there")):
        with pytest.raises(BootstrapError) as caught:
            host_probe.look(Pod("pod-0", {**facts, "env": {**ENV, "HOME": home}}), MINOR, "0", {})
        assert text in str(caught.value)


def test_an_image_without_a_shell_is_refused_in_words(pods: World) -> None:
    there = pod()
    there._ids = [*there._ids, "--root=/work"]
    with pytest.raises(BootstrapError) as caught:
        host_probe.look(there, MINOR, "0", {})
    assert "it has no /bin/sh" in str(caught.value)
