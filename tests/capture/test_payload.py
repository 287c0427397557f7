"""Values as blobs: named by content, written whole, with their big buffers apart."""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import pickle
import re
import stat
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sky_jupyter.capture.blobs import fingerprint, pack, write_blob
from sky_jupyter.node.serialization.pickling import ALIGNMENT, SMALL_BUFFER, Pickler, load_blob, main_namespace


def round_trip(value: Any, folder: Path) -> Any:
    return load_blob(write_blob(pack(value, {}).blob, folder))


def test_equal_content_has_one_name_and_other_content_another() -> None:
    first, second = np.arange(10_000.0), np.arange(10_000.0)
    assert pack(first, {}).blob == pack(second, {}).blob
    second[-1] = 0
    assert pack(first, {}).blob != pack(second, {}).blob
    assert pack(first, {}).blob != pack(first.astype("float32"), {}).blob


def test_a_value_without_a_pickle_has_no_fingerprint() -> None:
    assert fingerprint((i for i in ()), {}) is None
    assert fingerprint([1], {}) == pack([1], {}).blob.digest


NET = """
class Net:
    def __init__(self):
        self.head = 1
    def call(self):
        return self.head
net = Net()
"""


def test_a_class_whose_instance_came_back_from_a_rank_has_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    namespace = main_namespace()
    exec(NET, namespace)
    before = pack(namespace["net"], namespace).blob
    # The same class is found, and what it has is set anew.
    assert type(pickle.loads(before.pickled)) is namespace["Net"]
    assert fingerprint(namespace["net"], namespace) == before.digest


def test_big_contiguous_buffers_stay_out_of_the_pickle_and_are_not_copied() -> None:
    big, small, strided = np.zeros(100_000), np.zeros(SMALL_BUFFER - 1, "u1"), np.zeros((100, 100))[:, ::2]
    blob = pack([big, big.reshape(100, 1000).T, small, strided], {}).blob
    assert [len(buffer) for buffer in blob.buffers] == [big.nbytes, big.nbytes]
    assert np.shares_memory(np.frombuffer(blob.buffers[0]), big)
    assert len(blob.pickled) < small.nbytes + strided.nbytes + 2000
    assert blob.size == len(blob.pickled) + 2 * big.nbytes


class Wanting(OSError):
    """Takes more than its arguments."""

    def __init__(self, host: str, *, port: int) -> None:
        super().__init__(111, "refused", host)
        self.ports = [port]


class Changing(ValueError):
    """Has other arguments than it was made with."""

    def __init__(self, text: str) -> None:
        super().__init__(f"not {text}")


class Slotted(Exception):
    """Has what only its own way tells."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@pytest.mark.parametrize("error", [Wanting("h", port=1), Changing("x"), Slotted(3)], ids=lambda one: type(one).__name__)
def test_exceptions_with_an_init_of_their_own_come_back_equal(error: Exception, tmp_path: Path) -> None:
    back = round_trip(error, tmp_path)
    assert (type(back), str(back), back.args, vars(back)) == (type(error), str(error), error.args, vars(error))
    assert getattr(back, "code", None) == getattr(error, "code", None)


@pytest.mark.parametrize("value", [None, [], {"a": (1, "x")}, np.zeros(0), b"x" * 10_000, bytearray(10_000)])
def test_small_values_come_back_equal(value: Any, tmp_path: Path) -> None:
    back = round_trip(value, tmp_path)
    assert type(back) is type(value)
    assert np.array_equal(back, value) if isinstance(value, np.ndarray) else back == value


def test_arrays_come_back_aligned_writable_and_private(tmp_path: Path) -> None:
    arrays = [np.arange(1001.0) + k for k in range(3)] + [np.asfortranarray(np.random.rand(50, 70))]
    arrays[1].flags.writeable = False
    blob = pack(arrays, {}).blob
    path = write_blob(blob, tmp_path)
    content = path.read_bytes()
    first, second = load_blob(path), load_blob(path)
    for back, sent in zip(first, arrays, strict=True):
        assert np.array_equal(back, sent)
        assert back.flags.f_contiguous == sent.flags.f_contiguous
        assert back.flags.writeable == sent.flags.writeable
        assert back.ctypes.data % ALIGNMENT == 0
    first[0][:] = -1
    assert np.array_equal(second[0], arrays[0])
    assert np.array_equal(load_blob(path)[0], arrays[0])
    assert path.read_bytes() == content


def test_loading_a_big_array_maps_it_instead_of_reading_it(tmp_path: Path) -> None:
    path = write_blob(pack(np.ones(50_000_000, "u1"), {}).blob, tmp_path)
    before = anonymous_memory()
    array = load_blob(path)
    assert int(array.sum()) == 50_000_000
    assert anonymous_memory() - before < 10_000_000


def anonymous_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def test_a_blob_file_is_its_owners_alone_and_is_not_rewritten(tmp_path: Path) -> None:
    blob = pack(np.zeros(10_000), {}).blob
    path = write_blob(blob, tmp_path)
    assert path == tmp_path / blob.digest
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    os.utime(path, (1, 1))
    assert write_blob(blob, tmp_path) == path
    assert path.stat().st_mtime == 1


def test_a_blob_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_blob(pack([1], {}).blob, tmp_path)
    assert list(tmp_path.iterdir()) == []


def _write(folder: str) -> str:
    return str(write_blob(pack(np.full(300_000, 7.0), {}).blob, Path(folder)))


def test_several_writers_of_one_blob_do_not_disturb_each_other(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        paths = pool.map(_write, [str(tmp_path)] * 6, chunksize=1)
    # The array is a file of its own.
    assert len(set(paths)) == len(list(tmp_path.iterdir())) - 1 == 1
    assert load_blob(paths[0]).sum() == 2_100_000


@pytest.mark.slow
def test_an_unchanged_keras_model_keeps_its_name_as_time_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "jax"))
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    digest = pack(model, {}).blob.digest
    time.sleep(2.1)  # an archive's times have a resolution of two seconds
    assert pack(model, {}).blob.digest == digest
    back = round_trip([model], tmp_path)[0]
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), back.get_weights(), strict=True))
    model.set_weights([weight + 1 for weight in model.get_weights()])
    assert pack(model, {}).blob.digest != digest


def mapped(address: int) -> bool:
    """Whether what is there is a blob's file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(number, 16) for number in line.split()[0].split("-"))
        if first <= address < last:
            return bool(re.search(r"/[0-9a-f]{32,40}( \(deleted\))?$", line))
    return False


def test_torch_tensors_are_views_of_the_mapped_file_and_share_what_they_shared(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(300_000, dtype=torch.float32)
    model = torch.nn.Linear(1500, 200)
    value = {
        "model": model,
        "shared": (base, base[10:20], base.view(600, -1).T),
        "half": base.to(torch.bfloat16),
        "grad": base.clone().requires_grad_(True),
        "small": torch.arange(3),
        "none": torch.empty(0),
    }
    blob = pack(value, {}).blob
    assert blob == pack(value, {}).blob
    assert sorted(map(len, blob.buffers)) == [600_000, 1_200_000, 1_200_000, 1_200_000]
    assert len(blob.pickled) < 8000
    back = round_trip(value, tmp_path)
    for mine, sent in [
        *zip(back["shared"], value["shared"], strict=True),
        *((back[k], value[k]) for k in ["half", "grad", "small", "none"]),
    ]:
        assert torch.equal(mine.detach(), sent.detach())
        assert (mine.dtype, mine.stride(), mine.requires_grad) == (sent.dtype, sent.stride(), sent.requires_grad)
    assert torch.equal(back["model"].weight, model.weight)
    assert isinstance(back["model"].weight, torch.nn.Parameter)
    assert all(mapped(tensor.data_ptr()) for tensor in (*back["shared"], back["half"], back["model"].weight))
    back["shared"][0][15] = -1
    assert back["shared"][1][5] == back["shared"][2].T.flatten()[15] == -1
    assert torch.equal(round_trip(value, tmp_path)["shared"][0], base)
    # Where its buffers stay in the pickle, as in a result.
    file = io.BytesIO()
    Pickler(file, {}).dump(base)
    inside = pickle.loads(file.getvalue())
    inside += 1
    assert torch.equal(inside, base + 1)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"])
def test_torch_tensors_of_kinds_that_torchs_own_pickling_cannot_read_come_back(tmp_path: Path, kind: str) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch, kind):
        pytest.skip(f"this torch has no {kind}")
    large = (torch.arange(100_000) % 5).to(getattr(torch, kind))
    sent = {"large": large, "part": large[10:20], "turned": large.view(400, -1).T, "small": large[:7].clone()}
    back = round_trip(sent, tmp_path)
    for name, tensor in sent.items():
        mine = back[name]
        assert (mine.dtype, mine.shape, mine.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        assert torch.equal(mine.to(torch.float32), tensor.to(torch.float32))
    assert mapped(back["large"].data_ptr())
    back["large"][15] = 4
    assert back["part"][5].item() == back["turned"].T.flatten()[15].item() == 4


def test_jax_arrays_are_the_mapped_file(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    value = {
        "x": jnp.arange(300_000.0),
        "half": jnp.ones((600, 500), jnp.bfloat16),
        "keys": jax.random.split(jax.random.key(1), 1000),
        "weak": jnp.asarray(2.0),
    }
    blob = pack(value, {}).blob
    assert blob == pack(value, {}).blob
    assert sorted(map(len, blob.buffers)) == [8000, 600_000, 1_200_000]
    assert "jax" in pack(value["x"], {}).modules
    back = round_trip(value, tmp_path)
    for name in ("x", "half"):
        assert (back[name] == value[name]).all()
        assert back[name].dtype == value[name].dtype
        assert mapped(back[name].unsafe_buffer_pointer())
    assert (jax.random.key_data(back["keys"]) == jax.random.key_data(value["keys"])).all()
    assert back["weak"].weak_type


def test_dates_and_numbers_of_other_packages_stay_out_of_the_pickle(tmp_path: Path) -> None:
    dates = np.arange(300_000).astype("M8[s]").reshape(600, 500)
    arrays = [dates, np.asfortranarray(dates), dates[:, ::2], dates[:1, :3]]
    arrays[0].flags.writeable = False
    blob = pack(arrays, {}).blob
    assert [len(buffer) for buffer in blob.buffers] == [dates.nbytes, dates.nbytes, dates.nbytes // 2]
    for back, sent in zip(round_trip(arrays, tmp_path), arrays, strict=True):
        assert np.array_equal(back, sent)
        assert back.dtype == sent.dtype
        assert back.flags.f_contiguous == sent.flags.f_contiguous
        assert back.flags.writeable == sent.flags.writeable


def test_large_arrays_that_are_not_contiguous_stay_out_of_the_pickle(tmp_path: Path) -> None:
    whole = np.random.rand(600, 500)
    fields = np.zeros(300_000, [("a", "i4"), ("b", "f8")])
    fields["b"] = np.arange(300_000)
    arrays = [whole[:, ::2], whole[::-1], np.moveaxis(whole.reshape(60, 10, 500), 1, 2), fields["b"], fields[::2]]
    arrays[1].flags.writeable = False
    blob = pack(arrays, {}).blob
    assert [len(buffer) for buffer in blob.buffers] == [array.nbytes for array in arrays]
    assert len(blob.pickled) < SMALL_BUFFER
    for back, sent in zip(round_trip(arrays, tmp_path), arrays, strict=True):
        assert np.array_equal(back, sent)
        assert back.dtype == sent.dtype
        assert back.flags.c_contiguous
        assert back.flags.writeable == sent.flags.writeable
    # Objects are pickled one by one, and small arrays go along with their pickle.
    assert pack([np.full((2000, 500), None)[:, ::2], whole[:9, ::2]], {}).blob.buffers == ()


def test_what_two_values_hold_is_one_file(tmp_path: Path) -> None:
    array = np.random.rand(200_000)
    paths = [write_blob(pack(value, {}).blob, tmp_path) for value in (array, {"a": array}, [array, array.copy()])]
    assert len(list(tmp_path.iterdir())) == 1 + len(paths)
    assert all(path.stat().st_size < SMALL_BUFFER for path in paths)
    first, second = load_blob(paths[2])
    first[0] = -1
    assert second[0] == array[0] == load_blob(paths[0])[0]
    # One that is not whole is not believed.
    (large,) = [path for path in tmp_path.iterdir() if path not in paths]
    with open(large, "r+b") as file:
        file.truncate(array.nbytes - 1)
    with pytest.raises(ValueError, match="damaged"):
        load_blob(paths[1])


def test_what_a_package_has_made_once_for_all_is_the_nodes_own_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "once_for_all"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from ._inner import Logger\nlogger = Logger()\n")
    (package / "_inner.py").write_text("import threading\nclass Logger:\n    lock = None\n    def __init__(self):\n")
    with (package / "_inner.py").open("a") as file:
        file.write("        self.lock = threading.Lock()\n")
    monkeypatch.syspath_prepend(package.parent)
    once = importlib.import_module("once_for_all")
    namespace = {"__name__": "__main__"}
    sent = {"logger": once.logger, "list": [once.logger]}
    there = pickle.loads(pack(sent, namespace).blob.pickled)
    assert there["logger"] is once.logger is there["list"][0]
    with pytest.raises(TypeError, match="cannot pickle"):
        pack([once.logger, once.Logger()], namespace)


def test_a_console_of_rich_is_made_anew_there_but_for_one_with_a_file() -> None:
    from rich.console import Console

    namespace = {"__name__": "__main__"}
    console = Console(stderr=True)
    first, second = pickle.loads(pack([console, console], namespace).blob.pickled)
    assert first is second
    assert (type(first), first.stderr) == (Console, True)
    with pytest.raises(TypeError, match="cannot pickle"):
        pack(Console(file=io.StringIO()), namespace)
