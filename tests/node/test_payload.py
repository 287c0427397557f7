"""Binding what a cell was sent, in the rank: damaged files and missing modules are told clearly."""

from __future__ import annotations

import io
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import CaptureError
from sky_jupyter.node.serialization.pickling import (
    ALIGNMENT,
    HEAD,
    MAGIC,
    SPAN,
    Pickler,
    bind,
    load_blob,
    main_namespace,
)


def blob_file(path: Path, pickled: bytes, spans: list[tuple[int, int]], size: int, magic: bytes = MAGIC) -> Path:
    content = HEAD.pack(magic, len(pickled), len(spans)) + b"".join(SPAN.pack(*span, b"") for span in spans) + pickled
    path.write_bytes(content.ljust(size, b"\0")[: size or None])
    return path


def value_file(path: Path, value: Any) -> str:
    return str(blob_file(path, pickle.dumps(value), [], 0))


def test_a_blob_file_gives_its_value(tmp_path: Path) -> None:
    assert load_blob(value_file(tmp_path / "a", {"x": [1]})) == {"x": [1]}


@pytest.mark.parametrize(
    ("spans", "size", "magic"),
    [
        ([], 10, MAGIC),
        ([], 0, b"PK\3\4abcd"),
        ([(ALIGNMENT * 2, 100)], 200, MAGIC),  # past the end
        ([(ALIGNMENT * 2 + 1, 10)], 139, MAGIC),  # not aligned
        ([(0, 64)], 256, MAGIC),  # over the header
        ([(128, 64), (128, 64)], 192, MAGIC),  # over each other
        ([(128, 64)], 300, MAGIC),  # something after the end
        ([(2**63, 2**63)], 256, MAGIC),
    ],
)
def test_a_file_that_is_not_a_whole_blob_is_refused(
    tmp_path: Path, spans: list[tuple[int, int]], size: int, magic: bytes
) -> None:
    path = blob_file(tmp_path / "a", pickle.dumps(1), spans, size, magic)
    with pytest.raises(ValueError, match=r"not a blob|damaged|cut short"):
        load_blob(path)


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    whole = blob_file(tmp_path / "whole", pickle.dumps("text"), [(128, 64)], 192).read_bytes()
    for length in range(len(whole)):
        part = tmp_path / "part"
        part.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"not a blob|damaged|cut short"):
            load_blob(part)


def test_names_are_bound_in_order_modules_first(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {}
    values = [["a", value_file(tmp_path / "a", 1)], ["b", value_file(tmp_path / "b", 2)]]
    bind({"values": values, "modules": [["p", "os.path"], ["", "xml.dom.minidom"], ["", "xml.nothing"]]}, namespace)
    assert list(namespace) == ["p", "a", "b"]
    assert namespace["p"] is sys.modules["os.path"]
    assert "xml.dom.minidom" in sys.modules


def test_a_rank_keeps_what_it_has_assigned_itself(tmp_path: Path) -> None:
    values = [["a", value_file(tmp_path / "a", 1)], ["b", value_file(tmp_path / "b", 2)]]
    manifest = {"values": values, "modules": [["p", "os.path"]], "owners": [["a", [1, 3]], ["p", [1]]]}
    first: dict[str, Any] = {"a": "old"}
    bind(manifest, first, 0)
    assert first == {"a": 1, "b": 2, "p": sys.modules["os.path"]}
    second: dict[str, Any] = {"a": "own"}
    bind(manifest, second, 1)
    assert second == {"a": "own", "b": 2}


def test_a_missing_module_is_named_with_the_name_that_needs_it(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"'foo' of the notebook.*'no_such_module'") as caught:
        bind({"values": [], "modules": [["foo", "no_such_module"]]}, {})
    assert caught.value.name == "no_such_module"
    (tmp_path / "a").write_bytes(HEAD.pack(MAGIC, 22, 0) + b"cno_such_module\nthing\n")
    with pytest.raises(ModuleNotFoundError, match=r"'a' of the notebook.*'no_such_module'"):
        bind({"values": [["a", str(tmp_path / "a")]], "modules": []}, {})


class Fragile:
    def __setstate__(self, state: Any) -> None:
        raise KeyError("state")


def test_a_value_that_cannot_be_rebuilt_is_named_with_the_cause(tmp_path: Path) -> None:
    fragile = Fragile()
    fragile.x = 1  # type: ignore[attr-defined]
    path = value_file(tmp_path / "a", fragile)
    with pytest.raises(CaptureError, match=r"'model' could not be rebuilt on this node: KeyError: 'state'"):
        bind({"values": [["model", path]], "modules": []}, {})
    with pytest.raises(CaptureError, match=r"'model' could not be rebuilt .*FileNotFoundError"):
        bind({"values": [["model", str(tmp_path / "none")]], "modules": []}, {})


def test_a_function_is_rebuilt_over_this_processs_main_with_all_its_parts() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    source = (
        "def make(a):\n"
        "    b = [a]\n"
        "    def f(x: int, y=2, *, z=3) -> str:\n"
        "        'What it does.'\n"
        "        if False:\n            later\n"
        "        return (x, y, z, a, b, f)\n"
        "    if a is None:\n        later = 1\n"
        "    f.tag = b\n"
        "    return f\n"
        "f = make(1)"
    )
    exec(compile(source, "<cell>", "exec", dont_inherit=True), namespace)
    file = io.BytesIO()
    pickler = Pickler(file, namespace)
    pickler.dump(namespace["f"])
    function, original = pickle.loads(file.getvalue()), namespace["f"]
    assert isinstance(function, types.FunctionType)
    assert function.__globals__ is main_namespace()
    assert function(1) == (1, 2, 3, 1, [1], function)
    for part in ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__"):
        assert getattr(function, part) == getattr(original, part)
    assert function.__annotations__ == {"x": int, "return": str}
    assert function.tag == [1]
    assert pickler.codes == [original.__code__]
