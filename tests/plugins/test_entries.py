"""Plugins and providers of other distributions: found by their entry points, and told apart when they are wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from IPython.core.error import UsageError

import sky_jupyter as sky
from sky_jupyter.errors import SpecError
from sky_jupyter.magics.option_completion import candidates
from sky_jupyter.magics.parsing import parse
from sky_jupyter.plugins import parse_plugins
from sky_jupyter.plugins.parse import FACTORIES

PACKAGE = """
import sky_jupyter as sky

def shout(word: str = "hey", times: int = 1) -> sky.Plugin:
    return sky.Plugin(name="shout", args=(("word", word * times),))

def bare():
    return "no plugin"

class Fog(sky.Local):
    pass

number = 7
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a distribution with entry points into a folder of the path, as an installer does."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

    def put(name: str, *, plugins: str = "", providers: str = "") -> None:
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(PACKAGE)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text("")
        text = f"[sky_jupyter.plugins]\n{plugins}\n[sky_jupyter.providers]\n{providers}\n"
        (info / "entry_points.txt").write_text(text)
        monkeypatch.delitem(sys.modules, module, raising=False)

    return put


def test_a_registered_plugin_is_one_like_ours(install: Install) -> None:
    install("sky-shout", plugins="shout = sky_shout:shout")
    (one,) = parse_plugins("shout(word=ho, times=2)")
    assert (one.name, dict(one.args)) == ("shout", {"word": "hoho"})
    assert sky.plugins.shout(word="a").name == "shout"
    assert candidates("%%sky --plugins sh") == ["shout"]
    assert sky.Compute(plugins=["shout"]).spec.plugins == parse_plugins("shout")
    with pytest.raises(SpecError, match="unknown plugin 'shoot'; did you mean 'shout'"):
        parse_plugins("shoot")
    with pytest.raises(SpecError, match=r"plugin shout has no argument 'wort'.*did you mean 'word'"):
        parse_plugins("shout(wort=1)")


def test_a_registered_provider_is_found_by_its_name(install: Install) -> None:
    install("sky-fog", providers="fog = sky_fog:Fog")
    assert type(parse("--provider fog --nodes 2", cell=True).spec().provider).__name__ == "Fog"
    assert candidates("%%sky --provider ") == ["aws", "fog", "kubeflow", "kubernetes", "local", "slurm", "ssh"]
    with pytest.raises((SpecError, UsageError), match="unknown provider 'frog'; did you mean 'fog'"):
        parse("--provider frog", cell=True)


@pytest.mark.parametrize(
    ("plugins", "told"),
    [
        ("wrong = sky_shout_gone:shout", "sky_shout_gone:shout of the distribution sky-one cannot be imported: Module"),
        ("wrong = sky_one:nothing", "sky_one:nothing of the distribution sky-one cannot be imported: AttributeError"),
        ("wrong = sky_one:number", "sky_one:number of the distribution sky-one is not a function but 7"),
        ("wrong = sky_one:bare", "plugin wrong of the distribution sky-one is not a Plugin but 'no plugin'"),
    ],
)
def test_a_broken_one_is_told_with_its_distribution(install: Install, plugins: str, told: str) -> None:
    install("sky-one", plugins=plugins)
    with pytest.raises(SpecError, match=told):
        parse_plugins("wrong")
    # Others are not kept from their work.
    assert parse_plugins("jax")[0].name == "jax"


def test_names_that_clash_are_told_with_their_distributions(install: Install) -> None:
    install("sky-one", plugins="shout = sky_one:shout\njax = sky_one:shout")
    install("sky-two", plugins="shout = sky_two:shout")
    with pytest.raises(SpecError, match="plugin shout is registered by sky-one and sky-two; uninstall all of them but"):
        parse_plugins("shout")
    with pytest.raises(SpecError, match="plugin jax is Sky Jupyter's own, and sky-one registers one of that name too"):
        parse_plugins("jax")
    assert parse_plugins([sky.plugins.jax()])[0].name == "jax"


def test_nothing_is_imported_before_it_is_used(install: Install) -> None:
    install("sky-shout", plugins="shout = sky_shout:shout")
    code = (
        "import sys, sky_jupyter as sky; sky.plugins.jax(); sky.plugins.parse_plugins('keras,jax'[6:]); "
        "from sky_jupyter.magics.option_completion import candidates; candidates('%%sky --plugins '); "
        "assert 'sky_shout' not in sys.modules; sky.plugins.shout(); assert 'sky_shout' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_our_own_come_first() -> None:
    assert list(FACTORIES)[:3] == ["jax", "keras", "torch"]
    assert {"huggingface", "accelerate", "joblib", "sklearn"} <= set(FACTORIES)
