"""The layout's rules: which way imports run, what importing costs, what the tree may not name."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sky_jupyter"

# Of a package that it may use, another may import this part alone. Which way imports run, import-linter sees.
ONLY = {("display", "pool"): {"pool.base.events"}, ("server", "pool"): {"pool.registry"}}
# Nodes have these besides Python.
NODE_LIBRARIES = {"cloudpickle", "dask", "distributed", "ipykernel", "IPython", "jupyter_client", "orjson", "psutil"}
NODE_LIBRARIES |= {"tornado", "traitlets", "zmq", "comm", "exceptiongroup", "msgpack"}  # what those bring
HEAVY = ["distributed", "dask", "numpy", "IPython", "ipykernel", "jupyter_client", "zmq"]
HEAVY += ["boto3", "paramiko", "kubernetes", "kubeflow", "jax", "keras", "torch", "pandas"]


@dataclass(frozen=True)
class Import:
    """One import of one module, as the interpreter would carry it out."""

    source: Path
    line: int
    target: str
    at_import: bool  # carried out when the module itself is imported

    @property
    def room(self) -> str:
        parts = self.source.relative_to(PACKAGE).with_suffix("").parts
        return parts[0]

    @property
    def on_nodes(self) -> bool:
        return "node" in self.source.relative_to(PACKAGE).parts[:2]

    @property
    def inner(self) -> str | None:
        """The target within the package, such as ``"pool.events"``; None when it is another package's."""
        head, _, rest = self.target.partition(".")
        return rest if head == PACKAGE.name else None

    def __str__(self) -> str:
        return f"{self.source.relative_to(ROOT)}:{self.line} imports {self.target}"


def imports_of(path: Path) -> Iterator[Import]:
    """All imports of a module but those for type checkers."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    stack: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text(encoding="utf-8")), True)]
    while stack:
        node, at_import = stack.pop()
        if isinstance(node, ast.Import):
            yield from (Import(path, node.lineno, item.name, at_import) for item in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (Import(path, node.lineno, target, at_import) for target in targets(base, node.names))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            stack.extend((child, at_import) for child in node.orelse)
        else:
            deferred = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            stack.extend((child, at_import and not deferred) for child in ast.iter_child_nodes(node))


def targets(base: str, names: list[ast.alias]) -> list[str]:
    """What ``from base import names`` imports: of our own packages the modules, else the base."""
    folder = ROOT.joinpath(*base.split("."))
    modules = [item.name for item in names if (folder / f"{item.name}.py").exists() or (folder / item.name).is_dir()]
    if not base.startswith(PACKAGE.name):
        return [base]
    return (
        [f"{base}.{name}" for name in modules]
        if len(modules) == len(names)
        else [base, *(f"{base}.{m}" for m in modules)]
    )


def fault(item: Import) -> str:
    """Which rule an import breaks; empty when none."""
    room = item.room
    if item.inner is None:
        library = item.target.partition(".")[0]
        if item.on_nodes and item.at_import and library not in {*NODE_LIBRARIES, *sys.stdlib_module_names}:
            return f"{item}: nodes do not have {library}"
        return f"{item}: pool knows no IPython" if room == "pool" and library == "IPython" else ""
    target = item.inner.partition(".")[0]
    if not item.inner and room != "__init__":
        return f"{item}: the package's own face"
    allowed = ONLY.get((room, target))
    if allowed is not None and not any(f"{item.inner}.".startswith(f"{part}.") for part in allowed):
        return f"{item}: {room} sees of {target} only {', '.join(sorted(allowed))}"
    return ""


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "node_modules" not in path.parts)


def test_what_packages_import_is_what_they_may() -> None:
    found = [text for path in modules() for item in imports_of(path) if (text := fault(item))]
    assert found == []


@pytest.mark.parametrize(
    ("where", "code", "told"),
    [
        ("node/x.py", "import numpy", "nodes do not have numpy"),
        ("widgets/node/x.py", "import numpy", "nodes do not have numpy"),
        ("node/x.py", "def f():\n    import numpy", ""),
        ("pool/x.py", "from IPython.display import display", "pool knows no IPython"),
        ("display/x.py", "from ..pool import manager", "display sees of pool only pool.base.events"),
        ("display/x.py", "from ..pool.base.events import Event", ""),
        ("server/x.py", "import sky_jupyter.pool.runs.run", "server sees of pool only pool.registry"),
        ("pool/x.py", "import sky_jupyter", "the package's own face"),
    ],
)
def test_the_rule_is_seen_to_be_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, code: str, told: str
) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "sky_jupyter")
    for name in (
        "magics.py",
        "api.py",
        "pool/runs.py",
        "pool/manager.py",
        "pool/base/events.py",
        "plugins/base.py",
        where,
    ):
        path = tmp_path / "sky_jupyter" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code if name == where else "")
    found = [text for text in map(fault, imports_of(tmp_path / "sky_jupyter" / where)) if text]
    assert [told in text for text in found] == ([True] if told else [])


def test_the_picture_of_the_packages_is_fresh() -> None:
    from tests import house

    again = "an import between two packages has come or gone: python -m tests.house draws the picture anew"
    assert house.PICTURE.read_text(encoding="utf-8") == house.picture(), again


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sky_jupyter, sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")


def test_loading_the_extension_imports_no_client_of_the_control_plane() -> None:
    # In a notebook's kernel the rest is there; these take as long as all of ours.
    names = ["distributed", "dask", "boto3", "paramiko", "kubernetes", "kubeflow", "numpy", "pandas"]
    code = f"import sky_jupyter.magics, sys; print(*[name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")


def test_the_face_imports_its_rooms_only_when_asked() -> None:
    eager = [str(item) for item in imports_of(PACKAGE / "__init__.py") if item.at_import and item.inner is not None]
    assert eager == []


def test_no_file_names_a_package_registry() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listing.returncode:
        pytest.skip("this is no git checkout")
    # Put together here, so that this file does not name them either.
    hosts = ["pypi" + ".org", "python" + "hosted.org", "registry." + "npmjs", "registry." + "yarnpkg"]
    hosts += ["conda." + "anaconda.org", "download." + "pytorch.org"]
    named = []
    for name in listing.stdout.splitlines():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue  # no text, or removed and not yet committed
        named += [f"{name} names {host}" for host in hosts if host in text]
    assert named == []


def test_the_readmes_pictures_are_there_and_small() -> None:
    names = re.findall(r"!\[.+\]\((.+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(names) == 2
    assert all((ROOT / name).stat().st_size < 120_000 for name in names)


# A shell without history: IPython's thread that saves it has, at times, aborted a process that ended at once.
SHELL = """
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
"""


def test_loading_the_extension_imports_neither_the_api_nor_what_starts_pools() -> None:
    """`%load_ext` is what each notebook waits for first."""
    code = (
        f"import sys\n{SHELL}"
        "shell.run_line_magic('load_ext', 'sky_jupyter')\n"
        "names = ('api', 'pool.pool', 'pool.hosts.remote_host', 'pool.lifecycle.lifecycle', 'bootstrap.host_probe')\n"
        "print([name for name in names if f'sky_jupyter.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


# What loading the extension may import of packages of which it needs little; of those that are not here, nothing.
AT_LOAD = {
    "bootstrap": {"shadowing_files"},
    "capture": {"settings_start"},
    "machines": {"link"},
    "magics": {
        *("auto", "busy_status", "cell_questions", "cell_text", "debug_magic", "early_start", "extension"),
        *("leftover_pools", "line_matcher", "page_requests", "sky_magics", "tracebacks"),
    },
    "node": {"protocol", "shared", "system"},
    "pool": {"base", "open_pools", "registry", "request_names"},
    "session": {"debug_selector", "debug_target", "jedi_completion"},
}
WHOLE = {"errors", "util"}


def loaded(*lines: str) -> list[str]:
    """Return the modules that loading the extension imports in a notebook's process, and the lines after it."""
    code = [
        f"import sys, ipykernel.zmqshell{SHELL}",
        "before = set(sys.modules)",
        "shell.run_line_magic('load_ext', 'sky_jupyter')",
        *lines,
        "print(*sorted(sys.modules.keys() - before))",
    ]
    # Of pools in the registry of these tests, loading would say more.
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "SKY_REGISTRY": f"{folder}/registry.sqlite"}
        command = [sys.executable, "-c", "\n".join(code)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


def test_loading_the_extension_imports_nothing_that_only_nodes_or_rare_options_need() -> None:
    names = {"psutil", "packaging.requirements", "statistics", "difflib", "cloudpickle"}
    assert not names & {*loaded()}


def test_loading_the_extension_imports_no_options_providers_or_plugins_and_nothing_that_runs_cells() -> None:
    ours = [name.split(".")[1:3] for name in loaded() if name.startswith("sky_jupyter.")]
    assert [name for name in ours if name[0] not in {*AT_LOAD, *WHOLE}] == []
    assert [name for name in ours if name[0] in AT_LOAD and name[1:] and name[1] not in AT_LOAD[name[0]]] == []
    # Each takes half a millisecond at least.
    assert len(ours) < 70


def test_what_plain_cells_do_before_there_is_a_pool_imports_no_more() -> None:
    """Hooks on cells, completion and inspection look first whether there is a pool."""
    lines = (
        "shell.run_cell('x = 1')",
        "shell.run_cell('undefined')",
        "shell.complete('x', 'x.re', 4)",
        "shell.object_inspect_text('x')",
    )
    assert [name for name in loaded(*lines) if name.startswith("sky_jupyter.")] == [
        name for name in loaded() if name.startswith("sky_jupyter.")
    ]


@pytest.mark.parametrize("collects", [True, False])
def test_loading_the_extension_waits_for_no_collection_of_all_objects(collects: bool) -> None:
    """A notebook has many objects, and all of them are looked at."""
    code = (
        f"import gc\n{SHELL}"
        f"if not {collects}: gc.disable()\n"
        "found = []\ngc.callbacks.append(lambda phase, info: found.append(info['generation']))\n"
        "import sky_jupyter\n"
        "sky_jupyter.load_ipython_extension(shell)\n"
        "print(found.count(2), gc.isenabled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == f"0 {collects}"
