"""The plugin `huggingface`: its token reaches the ranks and nothing else, and models are there ahead."""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import os
import pickle
import secrets
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.errors import BootstrapError, SpecError
from sky_jupyter.plugins import Secret, parse_plugins
from sky_jupyter.plugins.core.secrets import sending
from sky_jupyter.plugins.huggingface import Token
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.pool_record import PoolRecord
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import Image, PoolSpec
from tests.bootstrap.wheels import make_wheel
from tests.plugins import hub as hubs
from tests.pool.pools import run

TOKEN = f"hf_{secrets.token_hex(16)}"
KNOWN = "import os, hashlib; hashlib.sha256(os.environ['HF_TOKEN'].encode()).hexdigest()"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder of its own for all that a pool and its tools write; short, as sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="sky-hf-"))
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
            patch.delenv(name)
        for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
            patch.setenv(name, str(folder / name[4:8].lower()))
        (folder / "runt").mkdir(mode=0o700)
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("SKY_REGISTRY", str(folder / "registry.sqlite"))
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        # The libraries themselves take minutes to fetch: stand-ins, and the real client of the Hub.
        for name in ("transformers", "datasets", "tokenizers"):
            make_wheel(folder / "index", name, "999.0", ["huggingface_hub>=1"] if name == "transformers" else [])
        patch.setenv("UV_FIND_LINKS", str(folder / "index"))
        yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def hub(place: Path) -> Iterator[hubs.Hub]:
    with hubs.serving(TOKEN) as hub:
        yield hub


def written(folder: Path, text: str) -> list[str]:
    """The files below a folder that hold a text, in any of the forms in which it could be written."""
    shifted = [base64.b64encode(b" " * n + text.encode())[4:-4] for n in range(3)]
    forms = [text.encode(), text.encode("utf-16-le"), *shifted]
    found = []
    for path in folder.rglob("*"):
        if text in str(path):
            found.append(str(path))
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                data = path.read_bytes()
                found += [str(path) for form in forms if form in data]
    return found


def told_of_processes(pool: Pool) -> list[str]:
    """What anybody, or this user, can read of the pool's processes."""
    told = []
    (host,) = pool.hosts
    first = psutil.Process(host.command.identity[0])
    for process in [first, *first.children(recursive=True)]:
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                told.append(Path(f"/proc/{process.pid}/{name}").read_bytes().decode(errors="replace"))
    assert len(told) >= 10
    return told


def test_the_search_finds_what_is_written(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text(f"x{TOKEN}x")
    (tmp_path / f"{TOKEN}.log").write_text("")
    (tmp_path / "pickled").write_bytes(pickle.dumps([TOKEN]))
    for shift in range(3):
        (tmp_path / f"encoded{shift}").write_bytes(base64.b64encode(b"x" * shift + TOKEN.encode() + b"x"))
    assert len(set(written(tmp_path, TOKEN))) == 6


def image(place: Path, hub: hubs.Hub) -> Image:
    return Image(env={"HF_ENDPOINT": hub.url, "HF_HOME": str(place / "hf"), "HF_HUB_DISABLE_XET": "1"})


@pytest.mark.slow
def test_the_token_reaches_the_ranks_and_is_written_nowhere(place: Path, hub: hubs.Hub) -> None:
    plugin = sky.plugins.huggingface(token=TOKEN, models=["org/tiny"])
    events = []
    pool = Pool(PoolSpec(Local(), nodes=2, plugins=(plugin,), image=image(place, hub), keep=True, name="hf"))
    try:
        pool.start(events.append)
        look = "import os, pathlib; os.environ['HF_TOKEN'] != '' and sorted(p.name for p in pathlib.Path("
        look += "os.environ['HF_HOME']).rglob('snapshots/*/*'))"
        assert run(pool, KNOWN).values == [hashlib.sha256(TOKEN.encode()).hexdigest()] * 2
        # The same weights in the older form are not fetched too.
        assert run(pool, look).values == [["config.json", "model.safetensors"]] * 2
        assert (hub.name in "".join(hub.asked), hub.refused) == (True, [])
        # One machine, one fetch.
        assert sum("resolve" in path and path.endswith("config.json") for path in hub.asked) <= 2
        with pytest.raises(sky.CellError) as failed:
            run(pool, "get_ipython().run_line_magic('xmode', 'Verbose')\nraise ValueError(__import__('os').getpid())")
        pool.restart()
        assert run(pool, KNOWN).values == [hashlib.sha256(TOKEN.encode()).hexdigest()] * 2

        shown = [repr(pool.spec), str(pool.spec), str(plugin), repr(plugin.args), f"{plugin.args[0][1]}", repr(events)]
        shown += ["".join(traceback.format_exception(failed.value)), str(failed.value), repr(pool.status())]
        shown += [repr(pool.where()), repr(pool.phases.facts()), repr(vars(pool.spec)), *told_of_processes(pool)]
        assert [text for text in shown if TOKEN in text] == []
        (host,) = pool.hosts
        assert host.folder.is_relative_to(place)
        # What a later notebook would take the pool up by is among it.
        assert (host.folder / "pool.record").is_file()
        assert [*written(place, TOKEN), *written(host.blobs, TOKEN)] == []
    finally:
        pool.down()
    assert written(place, TOKEN) == []


def test_a_model_that_cannot_be_had_is_told_with_the_phase(place: Path, hub: hubs.Hub) -> None:
    plugin = sky.plugins.huggingface(token=TOKEN, models=["org/absent"])
    pool = Pool(PoolSpec(Local(), plugins=(plugin,), image=image(place, hub)))
    with pytest.raises(BootstrapError, match=r"org/absent could not be fetched: RepositoryNotFoundError") as caught:
        pool.start()
    assert caught.value.phase == "plugins"
    assert "sky_jupyter.plugins.fetch_models org/absent" in caught.value.command
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


def test_what_a_step_prints_lacks_its_secrets() -> None:
    lines: list[str] = []
    step = sky.plugins.Step('echo "has $WORD"; echo "and $WORD" >&2; exit 3', env={"WORD": Secret(TOKEN)})
    plugin = sky.Plugin.create("chatty").with_bootstrap(lambda spec: [step])
    with pytest.raises(BootstrapError) as caught:
        Pool(PoolSpec(Local(), plugins=(plugin,))).start(lambda event: lines.append(repr(event)))
    assert caught.value.lines == ("has ***", "and ***")
    assert TOKEN not in repr((lines, step, caught.value.args))


def test_a_secret_prints_as_nothing_and_its_copies_are_empty() -> None:
    secret = Secret(TOKEN)
    assert {str(secret), repr(secret), f"{secret}", f"{secret:>3}"} == {"***"}
    for twin in (
        pickle.loads(pickle.dumps(secret)),
        cloudpickle.loads(cloudpickle.dumps([secret]))[0],
        copy.copy(secret),
    ):
        assert twin.reveal() is None
        assert twin == secret
    with sending():
        assert pickle.loads(pickle.dumps(secret)).reveal() == TOKEN
    assert Secret("a") != Secret("b")
    spec = PoolSpec(Local(), plugins=(sky.plugins.huggingface(token=TOKEN),))
    assert TOKEN.encode() not in cloudpickle.dumps(PoolRecord(spec, "", (), (), direct=True))


def test_the_token_of_the_log_in_is_found_as_the_hubs_client_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert Token().reveal() is None
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert Token().reveal() == TOKEN
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert Token().reveal() == "hf_other"
    assert Token(TOKEN).reveal() == TOKEN
    # Nobody's log-in is sent where none is wanted.
    assert sky.plugins.huggingface(token=False).around_process is None


@pytest.mark.parametrize(
    "text",
    [
        f"huggingface(token={TOKEN})",
        f"huggingface(token='{TOKEN}')",
        f"huggingface({TOKEN})",
        f"huggingface(token={TOKEN}",
        f"huggingface(tokn={TOKEN})",
        f"hugginface(token={TOKEN})",
        f"huggingface(token={TOKEN}),huggingface",
    ],
    # The token is another one in each process of the tests.
    ids=["named", "quoted", "first", "not closed", "misspelt option", "misspelt plugin", "with another"],
)
def test_a_token_in_a_cell_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_plugins(text)
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


def test_models_may_come_first_as_skyward_has_them() -> None:
    assert sky.plugins.huggingface(["gpt2"]) == sky.plugins.huggingface(models=["gpt2"])
    given = sky.plugins.huggingface(["gpt2"], TOKEN)
    assert given.args == sky.plugins.huggingface(token=TOKEN, models=["gpt2"]).args


def test_arguments_that_cannot_be_are_refused() -> None:
    for wrong in ("", "two words", 3, "a\nb"):
        with pytest.raises(SpecError, match="must be a token") as caught:
            sky.plugins.huggingface(token=wrong)  # type: ignore[arg-type]
        assert "two words" not in str(caught.value)
    for model in ("../up", "a/b/c", "-x", ""):
        with contextlib.nullcontext() if model == "" else pytest.raises(SpecError, match="is not a repository"):
            sky.plugins.huggingface(models=[model])
    assert sky.plugins.huggingface(models="gpt2, org/name@v1.0").args == (("models", "gpt2,org/name@v1.0"),)
    # A token where models are asked for is no name to fetch, and is not repeated.
    with pytest.raises(SpecError, match="a token among the models") as caught:
        sky.plugins.huggingface("gpt2", TOKEN)
    assert TOKEN not in str(caught.value)
    (read,) = parse_plugins("huggingface(models='gpt2,bert')")
    assert parse_plugins(str(read)) == (read,)
