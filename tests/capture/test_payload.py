"""Values as blobs: named by content, written whole, with their big buffers apart."""

from __future__ import annotations

import multiprocessing
import os
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sky_jupyter.capture.payload import SMALL_BUFFER, fingerprint, pack, write_blob
from sky_jupyter.node.payload import ALIGNMENT, load_blob


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


def test_big_contiguous_buffers_stay_out_of_the_pickle_and_are_not_copied() -> None:
    big, small, strided = np.zeros(100_000), np.zeros(SMALL_BUFFER - 1, "u1"), np.zeros((100, 100))[:, ::2]
    blob = pack([big, big.reshape(100, 1000).T, small, strided], {}).blob
    assert [len(buffer) for buffer in blob.buffers] == [big.nbytes, big.nbytes]
    assert np.shares_memory(np.frombuffer(blob.buffers[0]), big)
    assert len(blob.pickled) < small.nbytes + strided.nbytes + 2000
    assert blob.size == len(blob.pickled) + 2 * big.nbytes


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


def test_torch_modules_and_jax_arrays_keep_their_names() -> None:
    torch = pytest.importorskip("torch")
    jnp = pytest.importorskip("jax.numpy")
    for value in (torch.nn.Linear(3, 3), jnp.ones((3, 3))):
        assert pack(value, {}).blob == pack(value, {}).blob
