"""What of a value leaves its rank, and how, without a pool."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sky_jupyter.node.kernel.result_store import ResultStore
from sky_jupyter.node.serialization import pickling, result_values, sharded_arrays
from sky_jupyter.node.serialization.unpicklable_placeholders import text_of


def back(value: Any) -> Any:
    """A value that went with its run's end."""
    told = result_values.dump(value, result_values.SMALL)
    return pickle.loads(base64.b64decode(told["value"]))


def fetched(value: Any, folder: Path, **options: Any) -> Any:
    """A value that went as a file."""
    told = result_values.give(value, [str(folder / "value")], **options)
    return pickling.load_blob(told["path"])


class Rude:
    """Its repr raises."""

    def __repr__(self) -> str:
        raise OSError("no")


def test_a_value_is_small_or_large_by_its_pickle() -> None:
    assert back({"a": 1}) == {"a": 1}
    assert result_values.dump(np.zeros(1 << 17), 1 << 20) == {"type": "numpy.ndarray", "large": True}


def test_what_has_no_repr_has_one_here() -> None:
    assert text_of(Rude()) == f"<{Rude.__module__}.Rude object, whose repr raised OSError>"
    assert len(text_of("x" * 10_000)) < 5000
    assert len(text_of([list(range(1000))] * 1000)) < 5000


def test_a_value_that_holds_itself_and_a_bad_item_is_one_stand_in() -> None:
    value: list[Any] = [(item for item in ())]
    value.append(value)
    told = result_values.dump(value, result_values.SMALL)
    assert told["unpicklable"].startswith("value[0]: generator cannot be pickled")
    assert "generator object" in told["repr"]


def test_arrays_go_apart_and_are_not_pickled_in_band(tmp_path: Path) -> None:
    told = result_values.give({"x": np.arange(1 << 16), "y": b"y"}, [str(tmp_path / "value")])
    path = Path(told["path"])
    assert path.stat().st_mode & 0o077 == 0
    _, pickled, count = pickling.HEAD.unpack_from(path.read_bytes())
    assert (count, pickled < 4096) == (1, True)
    again = pickling.load_blob(path)
    assert again["x"].sum() == np.arange(1 << 16).sum()
    again["x"][0] = 7


def test_a_file_goes_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    free = {str(first): 1, str(second): 1 << 40}
    monkeypatch.setattr(result_values.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free[str(path)]}))
    told = result_values.give(bytes(1 << 20), [str(first / "value"), str(second / "value")])
    assert told["path"] == str(second / "value")
    free[str(second)] = 1
    with pytest.raises(OSError, match=r"it needs 1 MB, and 64 MB to spare; .*second has .* free"):
        result_values.give(bytes(1 << 20), [str(first / "value"), str(second / "value")])


def test_where_all_is_wanted_a_part_that_cannot_come_keeps_the_value_there(tmp_path: Path) -> None:
    told = result_values.give({"a": [1, (item for item in ())]}, [str(tmp_path / "value")], strict=True)
    assert told["unpicklable"].startswith("value['a'][1]: generator cannot be pickled")
    assert list(tmp_path.iterdir()) == []


def test_a_value_above_the_size_that_is_asked_for_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    content = {"name": "large", "strict": True, "most": 1000, "places": [str(tmp_path / "value")]}
    # Bytes of an array are in buffers, those of a list in the pickle.
    for large in (list(range(1000)), np.zeros(1000), {"in": [np.zeros(1000)]}):
        told = ResultStore(2).export(content, {"large": large})
        assert "1,000 are the limit here" in told["unpicklable"]
        assert "path" not in told
    assert list(tmp_path.iterdir()) == []
    assert pickling.load_blob(ResultStore(2).export(content, {"large": [1, 2]})["path"]) == [1, 2]


def test_a_rank_says_of_a_name_that_it_lacks_which_one_is_near(tmp_path: Path) -> None:
    content = {"name": "loss", "places": [str(tmp_path / "value")]}
    assert ResultStore(2).export(content, {"losses": 1, "_loss": 2}) == {"lacks": "; did you mean 'losses'?"}
    assert pickling.load_blob(ResultStore(2).export(content, {"loss": 1})["path"]) == 1


def test_a_figure_comes_whole_and_is_not_shown_again() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    pyplot.close("all")
    figure = pyplot.figure()
    figure.gca().plot([1, 2, 3])
    told = result_values.dump(figure, result_values.SMALL)
    pyplot.close(figure)
    again = pickle.loads(base64.b64decode(told["value"]))
    assert len(again.axes[0].lines) == 1
    assert not pyplot.get_fignums()


def test_tables_come_as_tables() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1, 2], "y": ["a", "b"]}, index=["one", "two"])
    assert back(frame).equals(frame)


@pytest.mark.slow
def test_a_tensor_of_an_accelerator_comes_as_one_of_the_cpu(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class OnAccelerator(torch.Tensor):  # type: ignore[misc, name-defined]
        """As a tensor of a GPU looks: its device is one, and its numbers come by a copy."""

        @staticmethod
        def __new__(cls: Any, data: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, data.size(), dtype=data.dtype, device="cuda:0")

        def __init__(self, data: Any) -> None:
            self.data_there = data

        @classmethod
        def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.aten.detach.default:
                return args[0]
            assert function is torch.ops.aten._to_copy.default
            return args[0].data_there.clone()

    there = OnAccelerator(torch.arange(4.0))
    assert there.device.type == "cuda"
    value = fetched({"state": [there, torch.empty(2, device="meta")]}, tmp_path)
    here, meta = value["state"]
    assert (type(here), here.device.type, here.tolist()) == (torch.Tensor, "cpu", [0.0, 1.0, 2.0, 3.0])
    # A tensor without numbers stays one.
    assert meta.device.type == "meta"


# What spans ranks: here two processes' worth of devices are made of one process's.

JAX = """
import base64, json, pickle, sys
import jax, numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from sky_jupyter.node.serialization import sharded_arrays as parts, pickling as payload, result_values as results

mesh = Mesh(numpy.array(jax.devices()).reshape(2, 2), ("a", "b"))
whole = numpy.arange(24.0).reshape(4, 6)


class Half:
    '''What one of two processes has of an array.'''

    def __init__(self, array, process):
        self.array, self.ndim, self.dtype, self.shape = array, array.ndim, array.dtype, array.shape
        self.is_fully_replicated, self.is_fully_addressable = array.sharding.is_fully_replicated, False
        devices = jax.devices()[2 * process : 2 * process + 2]
        self.addressable_shards = [shard for shard in array.addressable_shards if shard.device in devices]

    def __reduce_ex__(self, protocol):
        raise RuntimeError("it spans processes")

    def addressable_data(self, index):
        return self.addressable_shards[index].data


jax.Array = (jax.Array, Half)


def halves(spec):
    array = jax.device_put(whole, NamedSharding(mesh, spec))
    return [Half(array, process) for process in (0, 1)]


def back(value):
    return pickle.loads(base64.b64decode(results.dump(value, results.SMALL)["value"]))


for spec, shapes in {P("a", "b"): [(2, 6)] * 2, P("b"): [(4, 6)] * 2, P("a"): [(2, 6)] * 2, P(): [(4, 6)] * 2}.items():
    pair = halves(spec)
    assert [back({"x": half})["x"].shape for half in pair] == shapes, spec
    put = parts.ShardAssembler()
    for number, half in enumerate(pair):
        told = results.give({"state": (half, 1)}, [f"{sys.argv[1]}/value"], whole=True)
        with put.reading():
            value = payload.load_blob(told["path"])
        first = value if number == 0 else first
    assert numpy.array_equal(first["state"][0], whole), spec
    assert put.missing == 0

# Where the mesh goes the other way, a process has no block.
mesh = Mesh(numpy.array(jax.devices())[[0, 2, 3, 1]].reshape(2, 2), ("a", "b"))
assert "make no block" in results.dump(halves(P("a", "b"))[0], results.SMALL)["unpicklable"]
put = parts.ShardAssembler()
with put.reading():
    payload.load_blob(results.give(halves(P("a", "b"))[0], [f"{sys.argv[1]}/value"], whole=True)["path"])
assert put.missing == 12
"""


def test_arrays_that_span_processes_come_as_blocks_or_are_put_together(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", JAX, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **flags})
    assert done.returncode == 0, done.stderr


def test_tensors_that_span_ranks_come_as_local_ones_or_are_put_together(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    distributed = torch.distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    whole = torch.arange(20.0).reshape(5, 4)
    put, first = sharded_arrays.ShardAssembler(), None
    for rank in (0, 1):
        distributed.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (2,))
            mine = whole[:3] if rank == 0 else whole[3:]
            tensor = DTensor.from_local(mine, mesh, [Shard(0)], shape=whole.shape, stride=whole.stride())
            (local,) = back([tensor])
            assert type(local) is torch.Tensor
            assert torch.equal(local, mine)
            assert torch.equal(back(DTensor.from_local(whole, mesh, [Replicate()])), whole)
            told = result_values.give({"w": tensor}, [str(tmp_path / "value")], whole=True)
            with put.reading():
                value = pickling.load_blob(told["path"])
            first = value if first is None else first
            sums = DTensor.from_local(whole, mesh, [Partial()])
            told = result_values.give(sums, [str(tmp_path / "value")], whole=True)
            assert "partial sums" in told["unpicklable"]
        finally:
            distributed.destroy_process_group()
    assert torch.equal(first["w"], whole)
    assert put.missing == 0
