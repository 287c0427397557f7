"""The programs of a real Kubernetes, built once from Debian's source package and kept in the user's cache.

Debian 12 has the sources of Kubernetes 1.20.2 with all that they need, and the Go that builds them; etcd,
containerd, runc, the CNI plugins and kubectl are packages. Nothing is installed, and nothing else is fetched.
API server, controller manager, scheduler and kubelet become one program, which goes by the name that it is called by.

Needs the standard library alone. Takes minutes, thus no test builds: CI does ahead of them, and so may anyone:

    python3 -m tests.kubernetes.binaries
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.hosts import images

RELEASE = "bookworm"  # later ones have kubectl's sources only
GO = "go-1.19"
VERSION = "v1.20.2"
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
PACKAGES = ("etcd-server", "containerd", "runc", "containernetworking-plugins", "kubernetes-client", "libseccomp2")
BUILD_PACKAGES = ("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev")
# Go's build tags: without the clouds' own interfaces and Docker, half as much is to be compiled.
TAGS = "providerless dockerless"

MAIN = """\
package main

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": manager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 kubelet.NewKubeletCommand,
}

func main() {
	rand.Seed(time.Now().UnixNano())
	pflag.CommandLine.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	name := filepath.Base(os.Args[0])
	command, known := commands[name]
	if !known {
		fmt.Fprintf(os.Stderr, "%s is no program of Kubernetes\\n", name)
		os.Exit(2)
	}
	logs.InitLogs()
	defer logs.FlushLogs()
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
"""


class BuildError(Exception):
    """The programs could not be built; the message says why."""


def place() -> Path:
    """Where the programs of this recipe are, or would be."""
    return images.cache().parent / f"kubernetes-{platform.machine()}-{_recipe()}"


def built() -> bool:
    return place().exists()


def build(jobs: int) -> Path:
    """The folder with the programs in ``bin`` and the CNI plugins in ``cni``; built now if it is not there."""
    return images.made(place(), lambda half: _build(half, jobs))


def _recipe() -> str:
    """A short hash of how the programs are built: a change to that builds them anew."""
    parts = (_packages, _unpack, _sources, _openapi, _annotated, _compile, _build, _go, _environment)
    # (What it does, not how it is laid out.)
    text = "".join(ast.dump(ast.parse(inspect.getsource(part))) for part in parts)
    text += repr((RELEASE, GO, VERSION, SERVERS, PACKAGES, BUILD_PACKAGES, TAGS, MAIN))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _build(half: Path, jobs: int) -> None:
    work = half / "work"
    root = work / "root"
    for step, doing in (
        ("fetch Debian's packages", lambda: _packages(work)),
        ("unpack them", lambda: _unpack(work, root)),
        ("lay out the sources", lambda: _sources(work, root)),
        ("generate the OpenAPI definitions", lambda: _openapi(work, jobs)),
        ("compile", lambda: _compile(work, half / "bin", jobs)),
    ):
        begun = time.monotonic()
        doing()
        print(f"{step}: {time.monotonic() - begun:.0f} s", flush=True)
    for name in ("etcd", "containerd", "containerd-shim-runc-v2", "ctr", "kubectl"):
        shutil.move(root / "usr" / "bin" / name, half / "bin" / name)
    shutil.move(root / "usr" / "sbin" / "runc", half / "bin" / "runc")
    shutil.move(root / "usr" / "lib" / "cni", half / "cni")
    libraries = half / "lib"
    libraries.mkdir()
    for library in (root / "usr" / "lib").glob("*/libseccomp.so*"):
        shutil.move(library, libraries / library.name)
    shutil.rmtree(work)


def _packages(work: Path) -> None:
    """Fetch packages and sources by an apt of our own: the machine's own lists and settings stay as they are."""
    for folder in ("lists/partial", "cache/archives/partial", "packages"):
        (work / folder).mkdir(parents=True)
    site = images.mirror(RELEASE) or "http://deb.debian.org/debian"
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    lines = (f"{kind} [signed-by={key}] {site} {RELEASE} main\n" for kind in ("deb", "deb-src"))
    sources = work / "sources.list"
    sources.write_text("".join(lines))
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": work / "lists",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    apt = ["apt-get", "-q", *(part for key, value in options.items() for part in ("-o", f"{key}={value}"))]
    _run([*apt, "update"], work)
    _run([*apt, "source", "--download-only", f"kubernetes/{RELEASE}"], work)
    _run([*apt, "download", *PACKAGES, *BUILD_PACKAGES], work / "packages")


def _unpack(work: Path, root: Path) -> None:
    root.mkdir()
    for package in sorted((work / "packages").glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(root)], work)


def _sources(work: Path, root: Path) -> None:
    """Lay the sources out as Go's older way wants them, with a reflect2 that Go 1.19 can run."""
    tree = _tree(work)
    tree.mkdir(parents=True)
    (archive,) = work.glob("kubernetes_*.orig.tar.*")
    # Debian's patches are kubectl's alone, which is not built here.
    _run(["tar", "-C", str(tree), "--strip-components=1", "-xf", str(archive)], work)
    reflect = "github.com/modern-go/reflect2"
    shutil.rmtree(tree / "vendor" / reflect)
    shutil.copytree(root / "usr" / "share" / "gocode" / "src" / reflect, tree / "vendor" / reflect)
    main = tree / "cmd" / "server"
    main.mkdir()
    (main / "main.go").write_text(MAIN)


def _openapi(work: Path, jobs: int) -> None:
    """Generate the one file that the sources lack: the OpenAPI definitions of all kinds."""
    tree = _tree(work)
    generator = work / "openapi-gen"
    _go(work, jobs, "build", "-o", str(generator), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    command = [str(generator), "--logtostderr", "-h", "hack/boilerplate/boilerplate.generatego.txt"]
    command += ["-i", ",".join(f"k8s.io/kubernetes/{folder}" for folder in _annotated(tree))]
    command += ["-p", "k8s.io/kubernetes/pkg/generated/openapi", "-O", "zz_generated.openapi"]
    command += ["-r", os.devnull, "-o", str(work / "go" / "src")]
    _run(command, tree, _environment(work, jobs))


def _annotated(tree: Path) -> list[str]:
    """The packages whose kinds have definitions."""
    left_out = ("code-generator", "sample-apiserver", "kube-openapi", "gengo", "_test.go", "zz_gen")

    def files() -> Iterator[Path]:
        for top in ("vendor/k8s.io", "pkg", "cmd"):
            # The folders of vendor/k8s.io are links, which are to be followed.
            for folder, _, names in os.walk(tree / top, followlinks=True):
                yield from (Path(folder) / name for name in names if name.endswith(".go"))

    found = set()
    for file in files():
        name = str(file.relative_to(tree))
        if not any(part in name for part in left_out) and b"+k8s:openapi-gen=" in file.read_bytes():
            found.add(str(Path(name).parent))
    return sorted(found)


def _compile(work: Path, target: Path, jobs: int) -> None:
    target.mkdir()
    module = "k8s.io/kubernetes/vendor/k8s.io"
    major, minor = VERSION.removeprefix("v").split(".")[:2]
    values = {"gitVersion": VERSION, "gitMajor": major, "gitMinor": minor}
    stamps = [f"-X {module}/component-base/version.{name}={value}" for name, value in values.items()]
    stamps.append(f"-X {module}/client-go/pkg/version.gitVersion={VERSION}")
    server = target / "kubernetes"
    _go(
        work,
        jobs,
        "build",
        "-tags",
        TAGS,
        "-ldflags",
        " ".join(("-s", "-w", *stamps)),
        "-o",
        str(server),
        "./cmd/server",
    )
    for name in SERVERS:
        (target / name).symlink_to(server.name)


def _go(work: Path, jobs: int, verb: str, *arguments: str) -> None:
    go = work / "root" / "usr" / "lib" / GO / "bin" / "go"
    _run([str(go), verb, "-p", str(jobs), "-trimpath", *arguments], _tree(work), _environment(work, jobs))


def _environment(work: Path, jobs: int) -> dict[str, str]:
    base = work / "root" / "usr" / "lib" / GO
    return {
        "GOROOT": str(base),
        "GOPATH": str(work / "go"),
        "GOCACHE": str(work / "gocache"),
        "GOFLAGS": "",
        "GOENV": "off",
        "GO111MODULE": "off",  # the sources are of the time before modules were all
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
        "GOMAXPROCS": str(jobs),
        "GOGC": "400",  # compilers live for seconds: memory for time
        "PATH": f"{base / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        "HOME": str(work),
        "TMPDIR": str(work),
    }


def _tree(work: Path) -> Path:
    return work / "go" / "src" / "k8s.io" / "kubernetes"


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            close_fds=False,  # as images.made wants it
        )
    except FileNotFoundError as error:
        raise BuildError(f"{error.filename} is not there") from None
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-10:])
        raise BuildError(f"{Path(command[0]).name} ended with status {done.returncode}:\n{last}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many compilers run at once")
    begun = time.monotonic()
    try:
        made = build(parser.parse_args().jobs)
    except BuildError as error:
        sys.exit(f"no Kubernetes for the tests: {error}")
    print(f"{made}: {time.monotonic() - begun:.0f} s")
