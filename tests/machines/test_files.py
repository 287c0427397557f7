"""Files and folders up and down: whole, with progress, and resumed where a break has left them."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import LinkLost, MachineError
from sky_jupyter.machines.ssh.target import Target

from .conftest import eventually, need_ssh
from .link import link
from .sshd import Server, serve

TargetOf = Callable[..., Target]
BIG = 24 << 20


@pytest.fixture
def machine(server: Server, target_of: TargetOf) -> Iterator[Any]:
    from sky_jupyter.machines.ssh.machine import SSHMachine

    with SSHMachine.connect(target_of(server)) as made:
        yield made


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "big file"
    path.write_bytes(os.urandom(BIG))
    path.chmod(0o750)
    return path


def spoil_what_is_left(machine: Any, target: Path, source: Path, way: str, content: bytes) -> None:
    """Stop a transfer when some of it is there, and write something else in its stead."""
    from sky_jupyter.machines.ssh import file_transfer

    class Enough(Exception):
        pass

    def stop(done: int, _: int) -> None:
        if done > 1 << 20:
            raise Enough

    before = set(target.parent.iterdir())
    with pytest.raises(Enough):
        getattr(file_transfer, f"{way}load")(machine, source, target, progress=stop)
    (staged,) = set(target.parent.iterdir()) - before
    eventually(lambda: list(staged.glob("*.part")))
    # Whoever wrote it there has ended with its shell.
    (part,) = staged.glob("*.part")
    part.write_bytes(content)


class Told:
    """What a progress callback was told."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.steps.append((done, total))

    @property
    def good(self) -> bool:
        """It never went back, and ended with all."""
        return self.steps == sorted(self.steps) and self.steps[-1][0] == self.steps[-1][1]


def tree(folder: Path) -> dict[str, object]:
    """All that is in a folder: contents of files, targets of links."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = "folder"
        else:
            found[name] = (path.read_bytes(), stat.S_IMODE(path.stat().st_mode), int(path.stat().st_mtime))
    return found


@pytest.fixture
def folder(tmp_path: Path, big: Path) -> Path:
    """A folder with all sorts of things in it."""
    made = tmp_path / "folder"
    for name in ("a", "deep/er/b c", "deep/ünï", "it's", "-rf", "new\nline", "back\\slash", "zero"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(b"" if name == "zero" else os.urandom(5000))
    (made / "deep" / "big").write_bytes(big.read_bytes()[: 9 << 20])
    (made / "run.sh").write_text("#!/bin/sh\n")
    (made / "run.sh").chmod(0o755)
    (made / "empty").mkdir()
    (made / "to a").symlink_to("a")
    (made / "nowhere").symlink_to("/nowhere/at/all")
    os.link(made / "a", made / "deep" / "second name of a")
    return made


@pytest.mark.parametrize("size", [0, 1, 1 << 20, BIG])
def test_a_file_goes_up_and_comes_down_again(machine: Any, tmp_path: Path, big: Path, size: int) -> None:
    from sky_jupyter.machines.ssh import file_transfer

    source, there, back = tmp_path / "source", tmp_path / "new" / "there it's", tmp_path / "other" / "back"
    source.write_bytes(big.read_bytes()[:size])
    source.chmod(0o640)
    up, down = Told(), Told()
    assert file_transfer.upload(machine, source, there, progress=up) == file_transfer.Moved(size)
    assert file_transfer.download(machine, there, back, progress=down) == file_transfer.Moved(size)
    assert up.good
    assert down.good
    assert back.read_bytes() == source.read_bytes()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (there, back)] == [0o640, 0o640]
    assert [os.listdir(path.parent) for path in (there, back)] == [[there.name], [back.name]]


def test_a_path_may_begin_with_the_home_there(machine: Any, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh import file_transfer

    name = f".sky-test-{os.getpid()}-{os.urandom(4).hex()}"
    source = tmp_path / "source"
    source.write_text("home")
    file_transfer.upload(machine, source, f"~/{name}/file")
    try:
        file_transfer.download(machine, f"~/{name}/file", tmp_path / "back")
        assert (tmp_path / "back").read_text() == "home"
    finally:
        machine.run(f'rm -r -- "$HOME"/{name}')


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_broken_transfer_goes_on_where_it_was(
    server: Server, target_of: TargetOf, tmp_path: Path, big: Path, way: str
) -> None:
    from sky_jupyter.machines.ssh import file_transfer
    from sky_jupyter.machines.ssh.machine import SSHMachine

    move = getattr(file_transfer, f"{way}load")
    target = tmp_path / "target"
    with link(server.port) as between:
        with SSHMachine.connect(target_of(server, port=between.port)) as machine:
            between.break_after = between.passed + BIG // 2
            with pytest.raises(LinkLost):
                move(machine, big, target)
        assert not target.exists()
        told = Told()
        with SSHMachine.connect(target_of(server, port=between.port)) as machine:
            moved = move(machine, big, target, progress=told)
    assert moved.there > BIG // 10
    assert moved.sent + moved.there == BIG
    assert told.good
    assert target.read_bytes() == big.read_bytes()
    assert os.listdir(tmp_path).count("target") == 1
    assert [name for name in os.listdir(tmp_path) if "sky" in name] == []


@pytest.mark.timing
def test_a_slow_link_costs_the_host_no_time(server: Server, target_of: TargetOf, tmp_path: Path, big: Path) -> None:
    from sky_jupyter.machines.ssh.machine import SSHMachine

    thaws: list[threading.Timer] = []

    def hold(done: int, _: int) -> None:
        if not thaws and done > 1 << 20:
            between.freeze()
            thaws.append(threading.Timer(2.0, between.thaw))
            thaws[0].start()

    with link(server.port) as between, SSHMachine.connect(target_of(server, port=between.port)) as machine:
        machine.download(big, tmp_path / "back", progress=hold)
        times = [process.cpu_times() for process in server.sessions()]
    assert thaws
    assert (tmp_path / "back").read_bytes() == big.read_bytes()
    # It was 3 s with a window of 16 MiB.
    assert sum(one.user + one.system for one in times) < 1.0


@pytest.mark.parametrize("way", ["up", "down"])
def test_what_is_left_of_another_file_does_not_count(machine: Any, tmp_path: Path, big: Path, way: str) -> None:
    from sky_jupyter.machines.ssh import file_transfer

    for left in (os.urandom(9 << 20), os.urandom(BIG + 5), big.read_bytes()[: 9 << 20] + b"x"):
        spoil_what_is_left(machine, tmp_path / "target", big, way, left)
        moved = getattr(file_transfer, f"{way}load")(machine, big, tmp_path / "target")
        assert moved == file_transfer.Moved(BIG, 0)
        assert (tmp_path / "target").read_bytes() == big.read_bytes()


@pytest.mark.slow
def test_a_writer_of_a_silent_link_is_ended_before_another_goes_on(
    server: Server, target_of: TargetOf, tmp_path: Path, big: Path
) -> None:
    from sky_jupyter.machines.ssh import file_transfer
    from sky_jupyter.machines.ssh.machine import SSHMachine

    target = tmp_path / "target"
    with link(server.port) as between:
        with SSHMachine.connect(target_of(server, port=between.port)) as machine:
            failed: list[Exception] = []

            def send() -> None:
                try:
                    file_transfer.upload(
                        machine, big, target, progress=lambda done, _: done > BIG // 2 and between.freeze()
                    )
                except (MachineError, OSError) as error:
                    failed.append(error)

            thread = threading.Thread(target=send)
            thread.start()
            eventually(lambda: [part for part in tmp_path.glob(".sky-*/*.part") if part.stat().st_size > 1 << 20])
            between.freeze()
            with SSHMachine.connect(target_of(server)) as other:
                file_transfer.upload(other, big, target)
            between.thaw()
            thread.join(60)
    assert failed
    assert target.read_bytes() == big.read_bytes()


def test_the_files_of_a_folder_go_up(machine: Any, tmp_path: Path, folder: Path) -> None:
    from sky_jupyter.machines.ssh import file_transfer

    with pytest.raises(OSError, match=r"(to a|nowhere) is neither file nor folder: it cannot be sent like this"):
        file_transfer.upload(machine, folder, tmp_path / "refused")
    for name in ("to a", "nowhere"):
        (folder / name).unlink()
    there, told = tmp_path / "there", Told()
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    size = sum(map(len, contents.values()))
    assert file_transfer.upload(machine, folder, there, progress=told) == file_transfer.Moved(size)
    assert {str(path.relative_to(there)): path.read_bytes() for path in there.rglob("*") if path.is_file()} == contents
    assert told.good
    # Nobody else reads or writes what has come, or is to come.
    assert stat.S_IMODE(there.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in there.rglob("*") if path.is_file()} == {0}


def test_a_folder_comes_down_as_it_is(machine: Any, tmp_path: Path, folder: Path) -> None:
    from sky_jupyter.machines.ssh import file_transfer

    back, down = tmp_path / "back", Told()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    assert file_transfer.download(machine, folder, back, progress=down) == file_transfer.Moved(size)
    assert tree(back) == tree(folder)
    assert down.good
    assert [name for name in os.listdir(tmp_path) if "sky" in name] == []
    # What is there already does not come again; what was added there stays.
    (back / "mine").write_text("kept")
    assert file_transfer.download(machine, folder, back) == file_transfer.Moved(0, size)
    assert (back / "mine").read_text() == "kept"


def test_a_folder_of_a_thousand_files_takes_one_command(machine: Any, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh import file_transfer

    source = tmp_path / "many"
    source.mkdir()
    for number in range(1000):
        (source / f"{number:04}").write_text(str(number))
    file_transfer.upload(machine, source, tmp_path / "there")
    file_transfer.download(machine, tmp_path / "there", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(tmp_path / "there")
    assert {path.name: path.read_text() for path in (tmp_path / "back").iterdir()} == {
        path.name: path.read_text() for path in source.iterdir()
    }


def test_some_files_of_a_folder_are_sent_under_other_names_once(machine: Any, tmp_path: Path, folder: Path) -> None:
    names = {"a": "1", "deep/big": "2", "new\nline": "3"}
    machine.upload(folder, tmp_path / "there", names=names)
    assert set(tree(tmp_path / "there")) == {"1", "2", "3"}
    (tmp_path / "there" / "1").unlink()
    moved = machine.upload(folder, tmp_path / "there", names=names)
    assert (moved.sent, moved.there) == (5000, 5000 + (9 << 20))
    assert (tmp_path / "there" / "1").read_bytes() == (folder / "a").read_bytes()
    with pytest.raises(OSError, match="leads out of the folder"):
        machine.upload(folder, tmp_path / "there", names={"a": "../a"})


@pytest.mark.parametrize("what", ["link", "file"])
def test_a_staging_folder_that_is_something_else_is_not_written(machine: Any, tmp_path: Path, what: str) -> None:
    (tmp_path / "source").write_text("x")
    (tmp_path / "outside").mkdir()
    if what == "link":
        (tmp_path / "there").symlink_to("outside")
    else:
        (tmp_path / "there").write_text("mine")
    with pytest.raises(MachineError, match="could not be written"):
        machine.upload(tmp_path / "source", tmp_path / "there", names={"": "x"})
    assert os.listdir(tmp_path / "outside") == []


def test_a_broken_folder_goes_on_where_it_was(server: Server, target_of: TargetOf, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh import file_transfer
    from sky_jupyter.machines.ssh.machine import SSHMachine

    source = tmp_path / "source"
    source.mkdir()
    for number in range(20):
        (source / f"{number:02}").write_bytes(os.urandom(4 << 20))
    size = 80 << 20
    for way, begin, end in (("up", source, tmp_path / "there"), ("down", tmp_path / "there", tmp_path / "back")):
        move = getattr(file_transfer, f"{way}load")
        with link(server.port) as between:
            with SSHMachine.connect(target_of(server, port=between.port)) as machine:
                between.break_after = between.passed + size * 3 // 4
                with pytest.raises(LinkLost):
                    move(machine, begin, end)
            with SSHMachine.connect(target_of(server, port=between.port)) as machine:
                moved = move(machine, begin, end)
        assert moved.there > 0
        assert moved.there + moved.sent == size
        assert {p.name: hashlib.sha256(p.read_bytes()).digest() for p in end.iterdir()} == {
            p.name: hashlib.sha256(p.read_bytes()).digest() for p in source.iterdir()
        }


def test_a_folder_of_a_broken_download_has_its_mode(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sky_jupyter.machines.ssh import file_transfer
    from sky_jupyter.node.files.file_writer import Receiver

    inner = tmp_path / "source" / "inner"
    inner.mkdir(parents=True)
    inner.chmod(0o755)
    (inner / "link").symlink_to("file")

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "not here", "link")

    with monkeypatch.context() as broken:
        broken.setattr(Receiver, "link", refuse)
        with pytest.raises(PermissionError):
            file_transfer.download(machine, tmp_path / "source", tmp_path / "target")
    file_transfer.download(machine, tmp_path / "source", tmp_path / "target")
    assert os.readlink(tmp_path / "target" / "inner" / "link") == "file"
    assert stat.S_IMODE((tmp_path / "target" / "inner").stat().st_mode) == 0o755


@pytest.mark.parametrize("name", ["../evil", "/tmp/sky-evil-file", "link/evil", "a/../../evil"])
def test_an_archive_from_there_writes_nothing_outside_the_folder(tmp_path: Path, name: str) -> None:
    need_ssh()
    from sky_jupyter.machines.ssh import file_transfer
    from sky_jupyter.node.files.file_manifest import FILE, LINK, ManifestEntry

    buffer = io.BytesIO()
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        shortcut = tarfile.TarInfo("link")
        shortcut.type, shortcut.linkname = tarfile.SYMTYPE, str(outside)
        archive.addfile(shortcut)
        info = tarfile.TarInfo(name)
        info.size = 4
        archive.addfile(info, io.BytesIO(b"evil"))
    buffer.seek(0)
    with tarfile.open(fileobj=buffer, mode="r|") as archive, file_transfer._receiving(target, folder=True) as to:
        asked = {"link": ManifestEntry("link", LINK), name: ManifestEntry(name, FILE, 4)}
        with pytest.raises(OSError, match=r"leads out of the folder|should be a folder"):
            list(map(partial(file_transfer._extract, archive, to=to, left=asked), archive))
    assert os.listdir(outside) == []
    assert not (tmp_path / "evil").exists()
    assert not Path("/tmp/sky-evil-file").exists()


@pytest.fixture
def chatty(target_of: TargetOf, tmp_path: Path) -> Iterator[Any]:
    """A host whose tar and cat say more on standard error than a channel's window holds, and whose find fails."""
    need_ssh()
    from sky_jupyter.machines.ssh.machine import SSHMachine

    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("tar", "cat"):
        ending = 'case $* in *spoilt*) echo "it is spoilt" >&2; exit 3;; esac'
        real = f'PATH=/usr/bin:/bin; head -c 6000000 /dev/zero >&2; {ending}; exec {name} "$@"'
        (programs / name).write_text(f"#!/bin/sh\n{real}\n")
        (programs / name).chmod(0o755)
    locked = "case $PWD in *locked) echo \"find: './in it': Permission denied\" >&2; exit 1;; esac"
    (programs / "find").write_text(f'#!/bin/sh\n/usr/bin/find "$@"\n{locked}\n')
    (programs / "find").chmod(0o755)
    with (
        serve(tmp_path / "sshd", f"SetEnv SHLVL=1 PATH={programs}:/usr/bin:/bin") as server,
        SSHMachine.connect(target_of(server)) as made,
    ):
        yield made


def test_what_says_much_on_standard_error_holds_up_no_download(chatty: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("good")
    chatty.download(source, tmp_path / "folder")
    chatty.download(source / "file", tmp_path / "alone")
    assert [path.read_text() for path in (tmp_path / "folder" / "file", tmp_path / "alone")] == ["good", "good"]
    # Of what it says, the error has the end.
    (source / "spoilt").write_text("bad")
    with pytest.raises(MachineError, match="it is spoilt") as error:
        chatty.download(source / "spoilt", tmp_path / "other")
    assert "\0" not in str(error.value)


def test_a_folder_that_is_not_read_whole_says_why_and_does_not_say_what_is_in_it(chatty: Any, tmp_path: Path) -> None:
    source = tmp_path / "locked"
    source.mkdir()
    for number in range(200):
        (source / f"checkpoint-{number:06}").touch()
    with pytest.raises(MachineError, match=r"cannot be fetched: find: './in it': Permission denied") as error:
        chatty.download(source, tmp_path / "back")
    assert "checkpoint" not in str(error.value)
    assert "\0" not in str(error.value)
    assert not (tmp_path / "back").exists()


def test_what_is_not_there_or_may_not_be_written_says_so(machine: Any, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh import file_transfer

    with pytest.raises(MachineError, match=r"cannot be fetched.*No such file"):
        file_transfer.download(machine, tmp_path / "nothing", tmp_path / "back")
    with pytest.raises(FileNotFoundError):
        file_transfer.upload(machine, tmp_path / "nothing", tmp_path / "there")
    (tmp_path / "small").write_text("x")
    with pytest.raises(MachineError, match="could not be written"):
        file_transfer.upload(machine, tmp_path / "small", "/proc/nowhere/file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "odd").mkdir()
    os.rename(tmp_path / "pipe", tmp_path / "odd" / "pipe")
    with pytest.raises(OSError, match="neither file nor folder"):
        file_transfer.upload(machine, tmp_path / "odd", tmp_path / "there")
    assert machine.run("echo well").out == b"well\n"


def test_a_file_that_shrinks_while_it_is_sent_is_not_taken(machine: Any, tmp_path: Path, big: Path) -> None:
    from sky_jupyter.machines.ssh import file_transfer

    source = tmp_path / "source"
    source.write_bytes(big.read_bytes())
    with pytest.raises(OSError, match="became shorter"):
        file_transfer.upload(machine, source, tmp_path / "there", progress=lambda done, _: os.truncate(source, 9 << 20))
    assert not (tmp_path / "there").exists()
    assert machine.run("echo well").out == b"well\n"


def test_a_host_without_a_shell_takes_files_by_sftp(target_of: TargetOf, tmp_path: Path, big: Path) -> None:
    need_ssh()
    from sky_jupyter.machines.ssh import file_transfer
    from sky_jupyter.machines.ssh.machine import SSHMachine

    with (
        serve(tmp_path / "sshd", "ForceCommand internal-sftp") as server,
        SSHMachine.connect(target_of(server)) as machine,
    ):
        up, down = Told(), Told()
        assert file_transfer.upload(machine, big, tmp_path / "there", progress=up).sent == BIG
        assert file_transfer.download(machine, tmp_path / "there", tmp_path / "back", progress=down).sent == BIG
        assert (tmp_path / "back").read_bytes() == big.read_bytes()
        assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o750
        assert up.good
        assert down.good
        with pytest.raises(MachineError, match="could not be written"):
            file_transfer.upload(machine, big, tmp_path / "no" / "folder")
        with pytest.raises(MachineError, match="runs no /bin/sh"):
            machine.put({tmp_path / "put": b"x"})
