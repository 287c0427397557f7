"""Folders of somebody hostile go here and there: what they hold arrives, and nothing outside is touched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import MachineError, SkyError, SpecError, TransferError
from sky_jupyter.machines.ssh.target import Target
from sky_jupyter.node.files import staging
from sky_jupyter.node.files.file_manifest import MOST_BYTES, hashed, pack, unpack, walk
from sky_jupyter.node.files.piece_transfer import FileTransfer, LocalSource
from sky_jupyter.pool.pool import Pool
from tests.attacks import hostile_folders as folders
from tests.attacks.hostile_folders import (
    KINDS,
    LIES,
    NAMES,
    PLACES,
    Meanwhile,
    Victim,
    fill,
    lying_tools,
    swap,
    take_staging,
    tree,
    victim,
)
from tests.machines.conftest import need_ssh, server, target_of  # noqa: F401 - fixtures
from tests.machines.sshd import Server, serve
from tests.pool.pools import local_pool
from tests.took import Took

TargetOf = Callable[..., Target]


@pytest.fixture
def hostage(tmp_path: Path) -> Iterator[Victim]:
    with victim(tmp_path / "home") as made:
        yield made


@pytest.fixture
def hostile(tmp_path: Path, hostage: Victim) -> Path:
    return fill(tmp_path / "hostile", hostage)


@pytest.fixture
def machine(server: Server, target_of: TargetOf) -> Iterator[Any]:  # noqa: F811
    from sky_jupyter.machines.ssh.machine import SSHMachine

    with SSHMachine.connect(target_of(server)) as made:
        yield made


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("work"))
    try:
        with local_pool(nodes=1) as made:
            yield made
    finally:
        os.chdir(before)


def nothing_lies_about(folder: Path) -> bool:
    return [path for path in folder.iterdir() if path.name.startswith(".sky-")] == []


# Three ways that a folder comes to a place. Each is the product's own, from end to end.


def by_ssh(request: pytest.FixtureRequest, source: Path, target: Path) -> None:
    request.getfixturevalue("machine").download(source, target)


def by_put(request: pytest.FixtureRequest, source: Path, target: Path) -> None:
    request.getfixturevalue("pool").put(source, str(target))


def by_get(request: pytest.FixtureRequest, source: Path, target: Path) -> None:
    request.getfixturevalue("pool").get(str(source), target)


def from_agent(request: pytest.FixtureRequest, source: Path, target: Path) -> None:
    entries = walk(source)
    entries = unpack(pack(hashed(source, entries, range(len(entries)), lambda size: None)))
    take = FileTransfer(target, entries, LocalSource(source))
    asyncio.run(take.run())
    if take.state == "failed":
        raise TransferError(take.why)


WAYS = [by_ssh, by_put, by_get, from_agent]


@pytest.mark.parametrize("way", WAYS)
def test_a_hostile_folder_arrives_as_it_is_and_touches_nothing_outside(
    request: pytest.FixtureRequest, hostile: Path, tmp_path: Path, way: Any, took: Took
) -> None:
    target = tmp_path / "place" / "target"
    way(request, hostile, target)
    assert tree(target) == tree(hostile)
    assert nothing_lies_about(target.parent)
    assert {name for name in os.listdir(os.fsencode(target)) if name in NAMES} == set(NAMES)
    # What is only zeros takes no room.
    assert (target / "sparse").stat().st_blocks * 512 < 8 << 20
    # And once more, where all of it stands.
    way(request, hostile, target)
    assert tree(target) == tree(hostile)
    took.row(
        "a folder that `%sky put` or `%sky get` moves holds links to files outside, under any name",
        see="the folder, with its links as links",
        kept="everything outside",
    )


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", WAYS)
def test_what_an_earlier_folder_left_is_replaced_or_named_and_not_followed(
    request: pytest.FixtureRequest, hostile: Path, hostage: Victim, tmp_path: Path, way: Any, place: str
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    if "hard link" in place:
        # Its number of links is its own state: one of its own.
        (tmp_path / "twin").write_text("twin")
        os.link(tmp_path / "twin", target / "small.txt")
    else:
        PLACES[place](target, hostage)
    if "where a folder" in place:
        with pytest.raises((SkyError, OSError), match="target/deep"):
            way(request, hostile, target)
        return
    way(request, hostile, target)
    assert tree(target) == tree(hostile)
    assert "hard link" not in place or (tmp_path / "twin").read_text() == "twin"


@pytest.mark.parametrize("way", WAYS)
def test_a_link_at_the_staging_folders_own_name_is_refused(
    request: pytest.FixtureRequest, hostile: Path, hostage: Victim, tmp_path: Path, way: Any
) -> None:
    target = tmp_path / "target"
    staged = take_staging(target, hostage)
    with pytest.raises((SkyError, OSError), match=re.escape(staged.name)):
        way(request, hostile, target)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_file_is_refused_by_its_name_and_nobody_waits_for_it(
    request: pytest.FixtureRequest, tmp_path: Path, way: Any, kind: str, took: Took
) -> None:
    if kind == "device" and os.geteuid():
        pytest.skip("only root makes devices: run this as root")
    (tmp_path / "odd" / "deep").mkdir(parents=True)
    KINDS[kind](tmp_path / "odd" / "deep" / "thing")
    with pytest.raises((SkyError, OSError), match=r"deep/thing is neither file nor folder"):
        way(request, tmp_path / "odd", tmp_path / "target")
    assert not (tmp_path / "target" / "deep" / "thing").exists()
    took.row(
        "a folder that is moved holds a pipe, socket or device",
        see="`PATH is neither file nor folder nor symbolic link: it cannot be sent`",
        kept="everything",
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_file_may_have_any_name_that_a_file_system_allows(
    request: pytest.FixtureRequest, tmp_path: Path, way: Any
) -> None:
    for number, name in enumerate(NAMES):
        (tmp_path / f"{number}").mkdir()
        source, target = tmp_path / os.fsdecode(name), tmp_path / f"{number}" / os.fsdecode(name)
        source.write_bytes(name)
        way(request, source, target)
        assert os.listdir(os.fsencode(target.parent)) == [name]
        assert target.read_bytes() == name


def test_a_file_goes_up_beside_links_of_every_name_of_ours(
    machine: Any, hostile: Path, hostage: Victim, tmp_path: Path
) -> None:
    (tmp_path / "weights").write_bytes(os.urandom(folders.LARGE))
    before = set(os.listdir(hostile))
    for name in ("model.bin", "small.txt", "relative", "absolute", "dangling"):
        machine.upload(tmp_path / "weights", hostile / name)
        assert not (hostile / name).is_symlink()
        assert (hostile / name).read_bytes() == (tmp_path / "weights").read_bytes()
    assert set(os.listdir(hostile)) == before
    with pytest.raises(MachineError, match="could not be written"):
        machine.upload(tmp_path / "weights", hostile / "deep")


def test_an_upload_does_not_go_where_a_link_has_its_staging_folders_name(
    machine: Any, tmp_path: Path, hostage: Victim
) -> None:
    (tmp_path / "weights").write_bytes(os.urandom(folders.LARGE))
    target = tmp_path / "there" / "weights"
    target.parent.mkdir()
    (target.parent / staging.name_for(f"{machine.target}:{target}")).symlink_to(hostage.folder)
    with pytest.raises(MachineError, match="is a link"):
        machine.upload(tmp_path / "weights", target)
    assert not target.exists()


def test_without_a_shell_nothing_goes_through_a_link_either(
    target_of: TargetOf,  # noqa: F811
    hostile: Path,
    hostage: Victim,
    tmp_path: Path,
) -> None:
    need_ssh()
    from sky_jupyter.machines.ssh.machine import SSHMachine

    with (
        serve(tmp_path / "sshd", "ForceCommand internal-sftp") as sftp,
        SSHMachine.connect(target_of(sftp)) as machine,
    ):
        machine.upload(hostile / "model.bin", hostile / "absolute")
        assert not (hostile / "absolute").is_symlink()
        (tmp_path / "got").mkdir()
        for end in folders.ENDS:
            (tmp_path / "got" / f"model.bin{end}").symlink_to(hostage.file)
        (tmp_path / "got" / "model.bin").symlink_to(hostage.file)
        machine.download(hostile / "model.bin", tmp_path / "got" / "model.bin")
        assert (tmp_path / "got" / "model.bin").read_bytes() == (hostile / "model.bin").read_bytes()
        assert not (tmp_path / "got" / "model.bin").is_symlink()


@pytest.fixture(scope="module")
def liar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A host, and the folder in which its logins find programs first."""
    need_ssh()
    tools = tmp_path_factory.mktemp("liar") / "bin"
    with serve(tools.parent / "sshd", f"SetEnv PATH={tools}:/usr/bin:/bin") as made:
        yield made, tools


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_a_host_that_lies_has_nothing_written_outside(
    target_of: TargetOf,  # noqa: F811
    liar: tuple[Server, Path],
    tmp_path: Path,
    hostage: Victim,
    lie: str,
) -> None:
    from sky_jupyter.machines.ssh.machine import SSHMachine

    host, tools = liar
    lying_tools(tools, lie, hostage)
    (tmp_path / "source").mkdir()
    with SSHMachine.connect(target_of(host)) as machine:
        assert machine.run("command -v find").out.decode().strip() == str(tools / "find")
        before = set(tmp_path.iterdir())
        with pytest.raises((OSError, MachineError)):
            machine.download(tmp_path / "source", tmp_path / "place" / "target")
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "place"}
    assert b"precious" not in [path.read_bytes() for path in (tmp_path / "place").rglob("*") if path.is_file()]


# What changes meanwhile.


def test_a_folder_that_becomes_a_link_while_it_is_filled_is_not_left(
    machine: Any, tmp_path: Path, hostage: Victim
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep").mkdir(parents=True)
    for number in range(3):
        (source / "deep" / f"{number}").write_bytes(os.urandom(folders.LARGE))
    meanwhile = Meanwhile(lambda: swap(target / "deep", hostage.folder), folders.LARGE + (1 << 20))
    # It goes on in the folder that it has open, or says so: in no case there.
    with contextlib.suppress(OSError):
        machine.download(source, target, progress=meanwhile)
    assert meanwhile.done


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_becomes_a_link_while_it_is_fetched_is_not_followed_there(
    machine: Any, tmp_path: Path, hostage: Victim, what: str
) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    secret = os.urandom(folders.LARGE)
    for name in ("1", "2"):
        (source / "deep" / name).write_bytes(os.urandom(folders.LARGE))
    (tmp_path / "secrets").mkdir()
    for name in ("1", "2"):
        (tmp_path / "secrets" / name).write_bytes(secret)

    def change() -> None:
        for name in ("1", "2"):
            if what == "file":
                swap(source / "deep" / name, tmp_path / "secrets" / name)
        if what == "folder":
            swap(source / "deep", tmp_path / "secrets")

    meanwhile = Meanwhile(change)
    with pytest.raises(MachineError):
        machine.download(source, tmp_path / "target", progress=meanwhile)
    assert meanwhile.done
    assert secret not in [path.read_bytes() for path in (tmp_path / "target").rglob("*") if path.is_file()]


def test_what_becomes_a_link_before_it_is_sent_is_not_followed_here(machine: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (tmp_path / "secret").write_bytes(os.urandom(folders.LARGE))
    for name in ("1", "2"):
        (source / name).write_bytes(os.urandom(folders.LARGE))
    meanwhile = Meanwhile(lambda: swap(source / "2", tmp_path / "secret"))
    with pytest.raises(OSError, match="it is a link now: what it leads to is not sent"):
        machine.upload(source, tmp_path / "there", names={"1": "1", "2": "2"}, progress=meanwhile)
    assert meanwhile.done
    assert not (tmp_path / "there" / "2").exists()


@pytest.mark.parametrize("change", ["shrinks", "grows"])
def test_a_file_that_changes_while_it_is_fetched_is_named_and_not_taken(
    machine: Any, tmp_path: Path, change: str
) -> None:
    source = tmp_path / "model.bin"
    source.write_bytes(os.urandom(4 * folders.LARGE))

    def meanwhile() -> None:
        if change == "shrinks":
            os.truncate(source, 1000)
        else:
            with open(source, "ab") as file:
                file.write(b"more" * (1 << 20))

    with pytest.raises(MachineError, match=r"model\.bin changed while it was fetched"):
        machine.download(source, tmp_path / "target", progress=Meanwhile(meanwhile, 1))
    assert not (tmp_path / "target").exists()


# Lists of files.


def test_a_list_of_files_that_unpacks_to_too_much_is_refused_with_its_size() -> None:
    packed = folders.bomb(2 * MOST_BYTES)
    assert len(packed) < MOST_BYTES // 100
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=f"a list of files is more than {MOST_BYTES} bytes: it is not unpacked"):
        unpack(packed)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 * MOST_BYTES // 1024


def test_a_list_of_files_that_a_node_makes_too_large_names_the_node(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: Took
) -> None:
    from sky_jupyter.pool.transfer import download

    packed = folders.bomb(2 * MOST_BYTES)

    async def answer(control: Any, call: str, nodes: Any, **more: Any) -> dict[int, Any]:
        # Only a node that was taken over would say so.
        return {0: {"path": b"/data/set", "listing": packed, "error": ""}}

    monkeypatch.setattr(download, "ask", answer)
    with pytest.raises(TransferError, match=r"node 0: /data/set: a list of files is more than"):
        pool.get("set", tmp_path / "got")
    took.row(
        "a node answers `%sky get` with a list of files that unpacks to more than 128 MB",
        see="`node N: PATH: a list of files is more than 134217728 bytes: it is not unpacked`",
        kept="everything",
    )


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        ("/proc/self/mem", "z", "/proc/self/mem: Input/output error"),
        ("/proc/1/mem", "z", "/proc/1/mem"),
        ("/dev/zero", "z", "/dev/zero is neither file nor folder"),
    ],
)
def test_what_cannot_be_read_is_named(pool: Pool, source: str, target: str, told: str) -> None:
    with pytest.raises(SpecError, match=re.escape(told)):
        pool.put(source, target)
