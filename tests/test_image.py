"""What an image refuses, what names it, and how it is printed: without what is secret."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import PoolSpec

SECRET = "hunter2"
PRIVATE = sky.PipIndex(f"https://me:{SECRET}@index.example/simple", packages=["my_core", "My.App"])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"pip": "numpy"}, "image.pip must be a list of strings, not the str 'numpy'"),
        ({"pip": [""]}, "image.pip has an empty text in it"),
        ({"includes": "data"}, "image.includes must be a list of strings"),
        ({"pip_indexes": "https://index.example"}, "image.pip_indexes must be a list of sky.PipIndex"),
        ({"pip_indexes": ["https://index.example"]}, "image.pip_indexes must be a list of sky.PipIndex"),
        ({"pip_indexes": [PRIVATE, sky.PipIndex("https://b.example", ["my-core"])]}, "'my-core' is named by two"),
        ({"env": {"A B": "1"}}, "environment variable 'A B' is not a valid name"),
        ({"env": {"TOKEN": 5}}, "environment variable TOKEN must be a string, not int"),
        ({"env": {1: "a", "B": "b"}}, "environment variable 1 is not a valid name"),
        ({"env": None}, "image.env must be a mapping of strings, not NoneType"),
        ({"python": 3.12}, "image.python must be a string such as '3.12', not 3.12"),
        ({"python": "2.7"}, "python '2.7' is not supported"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(sky.SpecError, match=told):
        sky.Image(**fields)


def test_an_indexs_url_is_not_told_where_it_cannot_be() -> None:
    with pytest.raises(sky.SpecError) as caught:
        sky.PipIndex(f"ftp://me:{SECRET}@index.example")
    assert SECRET not in str(caught.value)
    with pytest.raises(sky.SpecError, match=r"'numpy>=2' in PipIndex\.packages is no package's name"):
        sky.PipIndex("https://index.example", ["numpy>=2"])


def test_what_changes_the_environment_names_the_image() -> None:
    plain = sky.Image(pip=["numpy", "einops"])
    same = [
        sky.Image(pip=["einops", "numpy", "numpy"]),
        sky.Image(python="auto", pip=["numpy", "einops"], env={"A": "1"}, includes=["data"], excludes=["*.pt"]),
    ]
    assert {image.digest for image in same} == {plain.digest}
    others = [
        sky.Image(pip=["numpy"]),
        sky.Image(pip=["numpy", "einops"], python="3.12"),
        sky.Image(pip=["numpy", "einops"], apt=["git"]),
        sky.Image(pip=["numpy", "einops"], pip_indexes=[PRIVATE]),
    ]
    assert len({plain.digest, *(image.digest for image in others)}) == 5
    # Another password is the same index.
    other = sky.PipIndex("https://me:other@index.example/simple", packages=["my-app", "my-core"])
    assert sky.Image(pip_indexes=[other]).digest == sky.Image(pip_indexes=[PRIVATE]).digest


def test_an_image_is_printed_as_requirements() -> None:
    image = sky.Image(
        python="3.12",
        pip=["einops", f"tool @ https://bot:{SECRET}@git.example/tool.whl"],
        apt=["git"],
        env={"HF_TOKEN": SECRET},
        pip_indexes=[PRIVATE, sky.PipIndex("https://wheels.example")],
        includes=["data"],
        excludes=["*.ckpt"],
    )
    assert str(image) == image.requirements()
    assert image.requirements().splitlines() == [
        "# python 3.12",
        "# apt: git",
        "# env: HF_TOKEN",
        "# include: data",
        "# exclude: *.ckpt",
        "# only my-app, my-core: --extra-index-url https://index.example/simple",
        "--extra-index-url https://wheels.example",
        "einops",
        "tool @ https://git.example/tool.whl",
    ]
    assert str(sky.Image()) == "# the notebook's own environment"


def test_secrets_are_shown_nowhere_and_kept() -> None:
    image = sky.Image(pip_indexes=[PRIVATE], env={"HF_TOKEN": SECRET}, pip=[f"x @ https://a:{SECRET}@b.example/x.whl"])
    spec = PoolSpec(provider=Local(), image=image)
    shown = [repr(image), str(image), repr(spec), *spec.differences(PoolSpec(provider=Local()))]
    assert not [text for text in shown if SECRET in text]
    assert pickle.loads(pickle.dumps(image)) == image
    assert image.pip_indexes[0].login == ("me", SECRET)


def test_files_do_not_make_another_pool() -> None:
    spec = PoolSpec(provider=Local())
    assert spec.differences(PoolSpec(provider=Local(), image=sky.Image(includes=["a"], excludes=["b"]))) == []
