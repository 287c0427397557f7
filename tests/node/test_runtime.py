"""`InstanceInfo`, `instance_info` and the output filters."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import json
import sys
import threading
from dataclasses import replace

import cloudpickle
import pytest

from sky_jupyter.errors import NotInPoolError, SpecError
from sky_jupyter.node.runtime import output_filters as runtime
from sky_jupyter.node.runtime.instance_info import InstanceInfo, instance_info, is_head

INFO = InstanceInfo(
    node=1, rank=3, total_nodes=2, world_size=4, ranks_per_node=2, local_rank=1,
    head_addr="10.0.0.1", head_port=4000, peers=("10.0.0.1", "10.0.0.2"), ports={"jax": 4001},
)  # fmt: skip
HEAD = replace(INFO, node=0, rank=0, local_rank=0)


@pytest.fixture(autouse=True)
def no_pool(monkeypatch):
    monkeypatch.delenv("COMPUTE_POOL", raising=False)


@pytest.fixture
def on_rank(monkeypatch):
    """Makes this process a rank: `on_rank(info)`."""
    return lambda info: monkeypatch.setenv("COMPUTE_POOL", info.to_json())


def test_info_survives_its_json():
    again = InstanceInfo.from_json(INFO.to_json())
    assert again == INFO
    assert again.peers == ("10.0.0.1", "10.0.0.2")
    assert hash(again) == hash(INFO)


def test_info_answers_what_follows_from_its_fields():
    assert (INFO.addr, INFO.is_head, HEAD.is_head) == ("10.0.0.2", False, True)
    assert (INFO.port("jax"), INFO.port("torch")) == (4001, 4000)


def test_the_head_knows_that_it_is_one(on_rank):
    on_rank(HEAD)
    assert is_head()
    on_rank(replace(INFO, accelerators=8))
    assert not is_head()
    assert instance_info().total_accelerators == 16


def test_a_pool_of_one_node_needs_no_list_of_peers():
    info = InstanceInfo(0, 0, 1, 1, 1, 0, "127.0.0.1", 4000)
    assert info.addr == "127.0.0.1"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rank": 4}, "rank must be"),
        ({"rank": 2}, "not local rank 1 of node 1"),
        ({"rank": True}, "rank must be"),
        ({"world_size": 5}, "world_size must be total_nodes"),
        ({"head_port": 0}, "head_port must be"),
        ({"head_addr": "a b"}, "head_addr must be"),
        ({"head_addr": ""}, "head_addr must be"),
        ({"peers": ["10.0.0.1"]}, "one address a node, 2, not 1"),
        ({"peers": "ab"}, "list of addresses"),
        ({"ports": {"jax": "4001"}}, r"ports\['jax'\] must be"),
        ({"ports": [1]}, "ports must map"),
        ({"job_id": "x" * 300}, "job_id must be"),
        ({"nodes": 2}, "unknown field 'nodes'; did you mean 'node'"),
    ],
)
def test_json_that_cannot_be_is_refused_by_field(change, word):
    facts = {**json.loads(INFO.to_json()), **change}
    with pytest.raises(SpecError, match=word):
        InstanceInfo.from_json(json.dumps(facts))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"node": 0}', "lacks rank, total_nodes"),
        ("[" * 100_000, "is not JSON"),
        (" " * 200_000, "longer than"),
    ],
)
def test_text_that_is_no_info_is_refused(text, word):
    with pytest.raises(SpecError, match=word):
        InstanceInfo.from_json(text)


def test_outside_a_pool_the_error_says_so():
    with pytest.raises(NotInPoolError, match="not a rank of a pool"):
        instance_info()


def test_info_is_read_once_and_again_when_the_variable_changes(on_rank):
    on_rank(INFO)
    first = instance_info()
    assert first == INFO
    assert instance_info() is first
    on_rank(HEAD)
    assert instance_info() == HEAD


def say(word="said"):
    print(word)
    print(word, file=sys.stderr)


def heard(capsys):
    out, err = capsys.readouterr()
    return out.split(), err.split()


@pytest.mark.parametrize(("info", "out"), [(HEAD, ["said"]), (INFO, [])])
def test_only_the_head_prints(on_rank, capsys, info, out):
    on_rank(info)
    runtime.stdout(only="head")(say)()
    assert heard(capsys) == (out, ["said"])
    with runtime.stderr(only="head"):
        say()
    assert heard(capsys) == (["said"], out)
    say()
    assert heard(capsys) == (["said"], ["said"])


def test_a_predicate_chooses_the_rank(on_rank, capsys):
    on_rank(INFO)
    runtime.stdout(only=lambda info: info.rank == 3)(say)("yes")
    runtime.stdout(only=lambda info: info.rank == 1)(say)("no")
    assert heard(capsys)[0] == ["yes"]


def test_silent_mutes_both_streams_as_decorator_and_as_context(capsys):
    runtime.silent(say)()
    with runtime.silent:
        say()
        with runtime.silent:
            say()
        say()
    assert heard(capsys) == ([], [])


def test_outside_a_pool_the_output_stays_on(capsys):
    runtime.stdout(only="head")(say)()
    assert heard(capsys) == (["said"], ["said"])


@pytest.mark.parametrize("only", ["hed", 1, None, int, ["head"]])
def test_an_only_that_cannot_be_is_refused_at_once(only):
    with pytest.raises(SpecError, match="only="):
        runtime.stdout(only=only)


def test_a_filter_ends_when_its_function_raises(capsys):
    @runtime.silent
    def fail():
        raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    say()
    assert heard(capsys)[0] == ["said"]


def test_another_thread_does_not_fall_silent(capsys):
    inside, done = threading.Event(), threading.Event()

    def quiet():
        with runtime.silent:
            inside.set()
            done.wait(60)
            print("never")

    thread = threading.Thread(target=quiet)
    thread.start()
    assert inside.wait(60)
    print("heard")
    done.set()
    thread.join()
    assert heard(capsys)[0] == ["heard"]


def test_another_task_does_not_fall_silent(capsys):
    @runtime.silent
    async def quiet():
        await asyncio.sleep(0.02)
        print("never")

    async def loud():
        await asyncio.sleep(0.01)
        print("heard")

    async def both():
        await asyncio.gather(quiet(), loud())

    assert inspect.iscoroutinefunction(quiet)
    asyncio.run(both())
    assert heard(capsys)[0] == ["heard"]


def test_a_generator_is_silent_and_its_reader_is_not(capsys):
    @runtime.silent
    def count():
        print("never")
        try:
            got = yield 1
        except KeyError:
            got = "thrown"
        print("never")
        yield got
        return 3

    running = count()
    assert next(running) == 1
    print("heard")
    assert running.send("sent") == "sent"
    with pytest.raises(StopIteration) as end:
        next(running)
    assert end.value.value == 3
    running = count()
    next(running)
    assert running.throw(KeyError()) == "thrown"
    running.close()
    assert heard(capsys)[0] == ["heard"]


def test_an_async_generator_is_silent_and_its_reader_is_not(capsys):
    @runtime.silent
    async def count():
        print("never")
        try:
            got = yield 1
        except KeyError:
            got = "thrown"
        print("never")
        yield got

    async def read():
        running = count()
        assert await anext(running) == 1
        print("heard")
        assert await running.asend("sent") == "sent"
        with pytest.raises(StopAsyncIteration):
            await anext(running)
        running = count()
        await anext(running)
        assert await running.athrow(KeyError()) == "thrown"
        await running.aclose()

    asyncio.run(read())
    assert heard(capsys)[0] == ["heard"]


def test_a_redirection_inside_and_outside_works(capsys):
    inner, outer = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(outer):
        with runtime.silent:
            print("never")
            with contextlib.redirect_stdout(inner):
                print("asked for")
        print("after")
    print("page")
    assert (inner.getvalue(), outer.getvalue()) == ("asked for\n", "after\n")
    assert heard(capsys)[0] == ["page"]


def test_the_wrapped_stream_shows_through(monkeypatch):
    class Stream(io.StringIO):
        parent_header: object = None

        def set_parent(self, parent):
            self.parent_header = parent

    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    runtime.install_gates()
    runtime.install_gates()
    gate = sys.stdout
    assert gate is not stream
    assert isinstance(gate, io.TextIOBase)
    gate.set_parent({"a": 1})
    assert stream.parent_header == gate.parent_header == {"a": 1}
    gate.parent_header = 2
    assert stream.parent_header == 2
    gate.writelines(["a", "b"])
    with runtime.silent:
        assert gate.write("never") == 5
        gate.writelines(["never"])
    print("c", end="", flush=True)
    assert stream.getvalue() == "abc"
    assert cloudpickle.loads(cloudpickle.dumps(gate)) is sys.stdout


def test_a_write_that_is_replaced_and_put_back_as_ipython_does_it_works(monkeypatch):
    stream, seen = io.StringIO(), []
    monkeypatch.setattr(sys, "stdout", stream)
    for text in "a", "b", "c":
        patched = sys.stdout
        before = patched.write
        patched.write = lambda data, before=before: (seen.append(data), before(data))[1]
        with runtime.silent:  # the first time, the gate comes while the stream is patched
            print("never", end="")
        print(text, end="")
        patched.write = before
    print("d", end="")
    assert stream.getvalue() == "abcd"
    assert "".join(seen).replace("never", "") == "abc"
    del sys.stdout.write
    print("e", end="")
    assert stream.getvalue() == "abcde"


def test_decorated_functions_travel_and_filters_go_by_reference(on_rank, capsys):
    on_rank(INFO)
    decorated = runtime.stdout(only=lambda info: info.rank == 0)(lambda word: (print(word), word)[1])
    payload = cloudpickle.dumps((decorated, runtime.silent))
    assert b"ContextVar" not in payload
    again, silent = cloudpickle.loads(payload)
    assert again("never") == "never"
    assert silent == runtime.silent
    assert heard(capsys)[0] == []


class Lazy:
    """Stands for `sky.function`: `__wrapped__` and `_rewrap`."""

    def __init__(self, function):
        self.__wrapped__ = function

    def _rewrap(self, function):
        return Lazy(function)


def test_a_filter_works_above_and_below_a_sky_function(on_rank, capsys):
    on_rank(INFO)
    above = runtime.stdout(only="head")(Lazy(say))
    below = Lazy(runtime.stdout(only="head")(say))
    for lazy in above, below:
        assert isinstance(lazy, Lazy)
        lazy.__wrapped__()
    assert heard(capsys)[0] == []


def test_a_decorated_function_keeps_its_name_and_signature():
    decorated = runtime.silent(say)
    assert decorated.__name__ == "say"
    assert inspect.signature(decorated) == inspect.signature(say)
