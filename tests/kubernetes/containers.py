"""What pods start from: images in containerd's own store, made once and kept in the user's cache.

containerd learns an image's name and configuration by an import without any registry. What a layer holds is then put
in its place by hand, as links where it can: no gigabyte is packed, sent and unpacked. A run gets a store of its own
over the same layers, which nobody writes to: containers write to layers of their own.

Needs what `tests.hosts.images` needs, and the programs of `binaries`.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tests.hosts import images
from tests.kubernetes import binaries

PREFIX = "docker.io/library/"
NODE, ROOT_NODE, BARE, NO_SHELL, JAX = (f"{PREFIX}sky-{name}:1" for name in ("node", "root", "bare", "noshell", "jax"))
PAUSE = f"{PREFIX}sky-pause:1"
# What an image for JAX and torch has besides Python, with what every node of a pool needs.
PACKAGES = ("jax", "keras", "numpy", "torch", "scikit-learn")
PACKAGES += ("cloudpickle", "cryptography", "dask", "distributed", "ipykernel", "jupyter_client", "orjson", "psutil")
PACKAGES += ("py-spy",)
SITE = "usr/local/lib/python3.11/dist-packages"
_SNAPSHOTS = "io.containerd.snapshotter.v1.overlayfs/snapshots"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ContainersError(Exception):
    """The store could not be made; the message says why."""


@dataclass(frozen=True)
class Image:
    """One image: `layers` name what `_fill` puts there, in order; `user` is who its container is unless a pod says."""

    name: str
    layers: tuple[str, ...]
    user: str = "1000"
    command: tuple[str, ...] = ("sleep", "infinity")


IMAGES = (
    Image(NODE, ("python",)),
    Image(ROOT_NODE, ("python",), user=""),
    Image(BARE, ("bare",)),
    Image(JAX, ("python", "packages")),
    Image(NO_SHELL, ("sleep",)),
    Image(PAUSE, ("sleep",), user="", command=("/usr/bin/sleep", "infinity")),
)


def store() -> Path:
    """The folder of the store, which nobody may write to; made now if it is not there."""
    return images.made(place(), _make)


def place() -> Path:
    """Where the store is, or would be."""
    name = f"kubernetes-images-{platform.machine()}-{_recipe()}"
    return images.cache().parent / name


def copy(target: Path) -> None:
    """Give a run a store of its own, in which the layers are empty until `layers` are mounted there."""
    shutil.copytree(store(), target, ignore=_ignore_layers)


def layers(target: Path) -> Iterator[tuple[Path, Path]]:
    """Where a run's store has its layers, and what is to be mounted on each, for nobody to write to."""
    for folder in place().glob(f"{_SNAPSHOTS}/*/fs"):
        yield target / folder.relative_to(place()), folder


def _ignore_layers(folder: str, names: list[str]) -> list[str]:
    return names if Path(folder).name == "fs" else []


def _recipe() -> str:
    parts = (_make, _archive, _fill, _sleep_alone, _packages, _needed)
    text = "".join(ast.dump(ast.parse(inspect.getsource(part))) for part in parts)
    text += repr((IMAGES, PACKAGES, images.image(python=True).name, sys.version_info[:2], binaries.place().name))
    text += repr([metadata.version(name) for name in PACKAGES])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _make(half: Path) -> None:
    half.mkdir(parents=True)
    snapshots = half / _SNAPSHOTS
    filled: dict[tuple[str, ...], Path] = {}
    with _containerd(half) as ctr:
        for image in IMAGES:
            before = set(snapshots.iterdir()) if snapshots.exists() else set()
            archive = half / "image.tar"
            archive.write_bytes(_archive(image))
            ctr("images", "import", str(archive))
            archive.unlink()
            new = sorted(set(snapshots.iterdir()) - before, key=lambda path: int(path.name))
            missing = [image.layers[: end + 1] for end in range(len(image.layers))]
            missing = [layers for layers in missing if layers not in filled]
            if len(new) != len(missing):
                raise ContainersError(f"{image.name}: {len(missing)} new layers became {len(new)} snapshots")
            filled.update(zip(missing, new, strict=True))
    for layers, snapshot in filled.items():
        _fill(layers[-1], snapshot / "fs")


@contextlib.contextmanager
def _containerd(root: Path) -> Iterator[Callable[..., None]]:
    """A containerd that is only asked to keep images; the function inside calls its client."""
    programs = binaries.place()
    state = root.with_name(f"{root.name}.state")
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir()
    settings = state / "containerd.toml"
    settings.write_text(
        f'version = 2\nroot = "{root}"\nstate = "{state / "state"}"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]\n'
        f'[grpc]\n  address = "{state / "socket"}"\n[ttrpc]\n  address = "{state / "ttrpc"}"\n'
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(programs / "lib")}
    environment["PATH"] = f"{programs / 'bin'}:{environment.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    client = ["ctr", "--address", str(state / "socket"), "--namespace", "k8s.io"]

    def ctr(*words: str) -> None:
        done = subprocess.run([*client, *words], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise ContainersError(f"ctr {' '.join(words)}: {done.stderr.strip()}")

    with (state / "log").open("wb") as log:
        process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "containerd", "-c", str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 60
        while subprocess.run([*client, "version"], env=environment, capture_output=True).returncode:
            if process.poll() is not None or time.monotonic() > end:
                raise ContainersError(f"containerd did not begin: {(state / 'log').read_text()[-1000:]}")
            time.sleep(0.05)
        yield ctr
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)  # `unshare` itself ignores it
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(state, ignore_errors=True)


def _archive(image: Image) -> bytes:
    """An image as ``docker save`` writes one; each layer has one file, with what the layer is."""
    members: dict[str, bytes] = {}
    digests = []
    for layer in image.layers:
        content = _tar({f"etc/sky-layer-{layer}": layer.encode()})
        members[f"{layer}.tar"] = content
        digests.append(f"sha256:{hashlib.sha256(content).hexdigest()}")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    created = {"created": "2026-01-01T00:00:00Z"}
    config: dict[str, Any] = {
        "architecture": machine,
        "os": "linux",
        "config": {"Cmd": list(image.command), "Env": [_PATH], "User": image.user, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": digests},
        "history": [created] * len(image.layers),
        **created,
    }
    written = json.dumps(config).encode()
    name = f"{hashlib.sha256(written).hexdigest()}.json"
    listing = [{"Config": name, "RepoTags": [image.name], "Layers": [f"{layer}.tar" for layer in image.layers]}]
    return _tar({**members, name: written, "manifest.json": json.dumps(listing).encode()})


def _tar(members: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


def _fill(layer: str, folder: Path) -> None:
    """Put a layer's files into its folder of the store."""
    if layer in ("bare", "python"):
        source = images.image(release=binaries.RELEASE, python=layer == "python")
        _run(["cp", "-a", "--reflink=auto", f"{source}/.", str(folder)])
        for unknown in ("resolv.conf", "hosts", "hostname"):
            (folder / "etc" / unknown).unlink(missing_ok=True)
    elif layer == "sleep":
        _sleep_alone(folder)
    else:
        _packages(folder)


def _sleep_alone(folder: Path) -> None:
    """One program, with the libraries that it needs, and no shell."""
    source = images.image(release=binaries.RELEASE)
    program = "/usr/bin/sleep"
    said = subprocess.run(["chroot", str(source), "ldd", program], capture_output=True, text=True, check=True).stdout
    libraries = [word for line in said.splitlines() for word in line.split() if word.startswith("/")]
    for name in (program, *libraries):
        target = folder / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2((source / name.lstrip("/")).resolve(), target)


def _packages(folder: Path) -> None:
    """Put this environment's packages there, and what they need: as links, where the cache is on the same disk."""
    site = folder / SITE
    for name in sorted(_needed(PACKAGES)):
        distribution = metadata.distribution(name)
        for file in metadata.files(name) or ():
            source = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts:
                _link(source, site / file)
                _link(_bytecode(source), _bytecode(site / file))
            elif file.parts[-2] == "bin" and source.read_bytes()[:4] == b"\x7fELF":
                _link(source, folder / "usr" / "local" / "bin" / file.name)


def _bytecode(source: Path) -> Path:
    return Path(cache_from_source(str(source))) if source.suffix == ".py" else source


def _link(source: Path, target: Path) -> None:
    if target.exists() or not source.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _needed(names: tuple[str, ...]) -> set[str]:
    """These packages, and all that they need here."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name in found:
            continue
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # one for another system
        found.add(name)
        for text in requirements:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(requirement.name)
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ContainersError(f"{' '.join(command)}: {done.stderr.strip()[-1000:]}")


if __name__ == "__main__":
    begun = time.monotonic()
    print(f"{store()}: {time.monotonic() - begun:.1f} s")
