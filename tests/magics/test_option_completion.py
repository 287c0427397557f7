"""Tab completion: our own candidates, and that IPython's completer offers exactly them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from sky_jupyter.magics import load, option_completion, unload
from sky_jupyter.magics.option_completion import candidates
from sky_jupyter.magics.option_table import VERBS, flags_of
from sky_jupyter.plugins.parse import FACTORIES
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.util import process_identity

CELL_FLAGS = sorted([*flags_of(None), "--help"])


class Named:
    """Stands for a live pool, of which completion reads the name only."""

    def __init__(self, name):
        self.spec = self
        self.name = name


@pytest.fixture
def live(monkeypatch):
    monkeypatch.setattr(option_completion.pools, "all", lambda: [Named("default"), Named("trainers")])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("%%sky ", CELL_FLAGS),
        ("%%sky --j", ["--journal", "--jump"]),
        ("%%sky --kee", ["--keep"]),
        ("%%sky --keep --kee", []),
        ("%%sky --de", ["--detach"]),
        ("%%sky --idle-timeout ", []),
        ("%%sky --n", ["--name", "--namespace", "--no-capture", "--no-cluster", "--node-selector", "--nodes"]),
        ("%%sky --nodes 2 --no", ["--no-capture", "--no-cluster", "--node-selector"]),
        ("%%sky --nodes ", []),
        ("%%sky --nodes 2 --plugins ", sorted(FACTORIES)),
        ("%%sky --plugins jax,", [f"jax,{name}" for name in sorted(FACTORIES) if name != "jax"]),
        ("%%sky --plugins=jax,k", ["--plugins=jax,keras"]),
        ('%%sky --plugins "jax,k', ['"jax,keras']),
        ('%%sky --plugins "', [f'"{name}' for name in sorted(FACTORIES)]),
        ("%%sky --provider ", ["aws", "kubeflow", "kubernetes", "local", "slurm", "ssh"]),
        ("%%sky --accelerator h10", []),
        ("%%sky --accelerator H10", ["H100", "H100-80GB", "H100-94GB"]),
        ("%%sky --on h", ["head"]),
        ("%%sky --no-capture a", ["all"]),
        ("%%sky --xyzzy", []),
        ("%%sky --name ", ["default", "trainers"]),
        ("%sky ", sorted(VERBS)),
        ("%sky re", ["resize", "restart"]),
        ("%sky resize --", ["--add", "--exit-timeout", "--help", "--name", "--remove", "--yes"]),
        ("%sky resize 2 --y", ["--yes"]),
        ("%sky down --", ["--all", "--exit-timeout", "--help", "--name"]),
        ("%sky down --name t", ["trainers"]),
        ("%sky restart t", ["trainers"]),
        ("%sky where ", ["--help", "--name", "default", "trainers"]),
        ("%sky status trainers ", ["--help", "--name"]),
        ("%sky xyzzy --", []),
        ("%sky up --kee", ["--keep"]),
        ("%sky attach --", ["--help", "--name", "--take-over"]),
        ("%sky logs --rank ", ["head"]),
        ("%sky put --", ["--help", "--name", "--on"]),
        ("%sky get results --on ", ["head"]),
        ("%sky pull --", ["--as", "--concat", "--help", "--name", "--on", "--stack"]),
        ("%sky pull x", []),
        ("%sky exec -", ["--", "--detach", "--help", "--name", "--on", "--per-rank", "--quiet", "--timeout"]),
        ("%sky exec -- --", []),
        # Paths are IPython's to complete.
        ("%sky put da", None),
        ("%sky get out ", None),
        ("%sky logs --rank h", ["head"]),
        ("%sky status --na", ["--name"]),
        ("    %sky re", ["resize", "restart"]),
        ("%%sky\t--qui", ["--quiet"]),
    ],
)
def test_candidates_fit_where_the_line_ends(live, line, found):
    assert candidates(line) == found


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A registry with kept pools of a process that is gone, an own pool, and two runs."""
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    registry = Registry()
    for number, name in enumerate(["night", "nine", "over"]):
        registry.intend(f"k{number}", name, "local", 1, True)
        registry.update(f"k{number}", "ready", host=process_identity.this() if name != "over" else (4_000_000, 1.0))
        registry.release(f"k{number}")
    registry.intend("own", "nobodys", "local", 1, True)
    registry.run_began("3f9a2c1b", "k0", "x")
    registry.run_began("3e000000", "k0", "x")
    registry.close()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("%sky attach ", ["--help", "--name", "--take-over", "night", "nine"]),
        ("%sky attach n", ["night", "nine"]),
        ("%sky attach --take-over nig", ["night"]),
        ("%sky attach night ", ["--help", "--name", "--take-over"]),
        ("%sky attach --name nin", ["nine"]),
        ("%sky down ni", ["night", "nine"]),
        ("%sky wait 3", ["3e000000", "3f9a2c1b"]),
        ("%sky logs 3f", ["3f9a2c1b"]),
        ("%sky logs --rank 0 3f", ["3f9a2c1b"]),
        ("%sky logs 3f9a2c1b 3", []),
        ("%sky runs 3", []),
    ],
)
def test_pools_and_runs_of_the_registry_are_candidates(recorded, line, found):
    assert candidates(line) == found


@pytest.mark.parametrize("content", [None, b"no database, and longer than the header of one would be: " * 9])
def test_a_registry_that_is_not_there_or_cannot_be_read_gives_no_candidates(tmp_path, monkeypatch, content):
    path = tmp_path / "own" / "registry.sqlite"
    monkeypatch.setenv("SKY_REGISTRY", str(path))
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    assert candidates("%sky attach x") == candidates("%sky wait 3") == []
    assert path.exists() == (content is not None)


@pytest.mark.parametrize("line", ["", "x", "%sk", "%sky", "%skyline --", "%%time", "x = %sky", "%%sky --config po"])
def test_other_lines_and_paths_are_left_to_ipython(line):
    assert candidates(line) is None


@given(st.text(max_size=40), st.sampled_from(["%sky ", "%%sky ", ""]))
def test_any_line_can_be_completed(text, start):
    found = candidates(start + text)
    assert found is None or all(isinstance(item, str) for item in found)


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    load(shell)
    yield shell
    unload(shell)


def offered(shell, text):
    """What the line would be after each completion that IPython offers at its end."""
    with provisionalcompleter():
        return sorted(text[: item.start] + item.text for item in shell.Completer.completions(text, len(text)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("%%sky --nodes", ["%%sky --nodes"]),
        ("%%sky --ranks-p", ["%%sky --ranks-per-node"]),
        ("%%sky --nodes 2 --plugins jax,ke", ["%%sky --nodes 2 --plugins jax,keras"]),
        ("%%sky --plugins=to", ["%%sky --plugins=torch"]),
        ('%%sky --plugins "keras(backend=torch),to', ['%%sky --plugins "keras(backend=torch),torch']),
        ("%sky st", ["%sky start", "%sky status", "%sky stop"]),
        ("%sky ", [f"%sky {verb}" for verb in sorted(VERBS)]),
    ],
)
def test_ipython_offers_our_candidates_and_nothing_else(shell, text, found):
    assert offered(shell, text) == found


def test_lines_of_the_cell_are_completed_as_ever(shell):
    shell.user_ns["wonderful"] = 1
    text = "%%sky --nodes 2\nwonder"
    assert offered(shell, text) == ["%%sky --nodes 2\nwonderful"]


def test_paths_after_config_are_completed_by_ipython(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pools.toml").touch()
    assert "%%sky --config pools.toml" in offered(shell, "%%sky --config poo")


def test_the_magics_names_are_completed(shell):
    assert offered(shell, "%%sk") == ["%%sky"]


def test_unloading_takes_the_completion_and_the_magics_away(shell):
    unload(shell)
    assert offered(shell, "%%sky --nodes") == []
    assert "sky" not in shell.magics_manager.magics["cell"]
    assert "sky" not in shell.magics_manager.magics["line"]
    assert shell.custom_exceptions == ()
    assert shell.input_transformers_cleanup == InteractiveShell(config=shell.config).input_transformers_cleanup
    load(shell)
    assert offered(shell, "%%sky --nodes") == ["%%sky --nodes"]
