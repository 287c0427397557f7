"""Random input for everything that reads what others wrote. A new target is one more `Target` in `TARGETS`.

A target takes a sample apart and puts it together wrongly, and feeds that to the code. The code may refuse
it in words, by the errors that the target names; any other exception is a defect, and so is a message that
is as long as the input or steers a terminal. What is found says its seed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError

from sky_jupyter.errors import SkyError
from sky_jupyter.machines.link import encoding
from sky_jupyter.machines.link.framing import Broken, Wire
from sky_jupyter.machines.ssh import resolve_target as targets
from sky_jupyter.magics.parsing import HelpRequested, parse
from sky_jupyter.pool.registry.folder_removal import is_ours
from sky_jupyter.pool.registry.registry import Registry, sweep
from sky_jupyter.pool.runs.run import Run
from sky_jupyter.util.text import cleaned

_MOST = 4000
_PUNCTUATION = "- -- = ' \" \\ # % * ? ! ~ $( ` ${X} %h% /../ [ ] { } ( ,, :: : @"
_NUMBERS = "-1 0 1e999 nan true null 0-99999999 ::1 a@b@c"
_CONTROL = ["", "\0", "\x1b[2J", "\u202e", "\ud800", "\ufeff", "é", "\uff10", "\r\n", "\t", "\u2028"]
NASTY = [*_PUNCTUATION.split(), *_NUMBERS.split(), *_CONTROL, "9" * 400, "x" * 3000, "[" * 2000, "{" * 50]


@dataclass(frozen=True)
class Target:
    """What is fed.

    Parameters
    ----------
    make : callable
        Makes an input.
    feed : callable
        Has it read, in a folder of the trial's own.
    refusals : tuple of exception types
        How it may be refused.
    """

    make: Callable[[random.Random], Any]
    feed: Callable[[Any, Path], object]
    refusals: tuple[type[BaseException], ...]


def trial(name: str, seed: int, folder: Path) -> None:
    """Feed a target once; AssertionError says what it did not take."""
    target = TARGETS[name]
    given = target.make(random.Random(f"{name} {seed}"))
    what = f"{name}, seed {seed}: {given!r:.600}"
    try:
        target.feed(given, folder)
    except target.refusals as error:
        told = "" if isinstance(error, HelpRequested) else str(error)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    else:
        return
    assert len(told) <= _MOST, f"{what}: a message of {len(told)} letters"
    assert told == cleaned(told), f"{what}: {told!r}"


# What inputs are made of.


def torn(text: str, chance: random.Random, words: list[str]) -> str:
    """A text with pieces lost, doubled, moved and put in."""
    for _ in range(chance.randint(1, 6)):
        at, to = sorted((chance.randint(0, len(text)), chance.randint(0, len(text))))
        to = min(to, at + chance.choice([0, 1, 1, 8, 400]))
        piece = chance.choice([*NASTY, *words, text[at:to] * 2, text[at:to][::-1]])
        text = text[:at] + piece + text[to:]
    return text


def line(chance: random.Random) -> tuple[str, bool]:
    return torn(chance.choice(_LINES), chance, _WORDS), chance.random() < 0.5


def toml(chance: random.Random) -> tuple[str, str]:
    return torn(_TOML, chance, ["[a.b]", "[[a]]", "nodes = ", "1979-05-27", "0x", "'''", "=", "\n"]), torn(
        "a.b", chance, []
    )


def ssh(chance: random.Random) -> tuple[str, str]:
    words = [
        "Host ",
        "Match ",
        "Include ",
        "ProxyJump ",
        "exec ",
        "none",
        "gpu",
        "\n",
        "Port ",
        "%%h",
        "!gpu",
        "127.0.0.1",
    ]
    text = torn(_SSH, chance, words).replace("Match exec", "Match host")
    return text, chance.choice(["gpu", "me@gpu:22", torn("me@[::1]:2222", chance, ["gpu"])])


def changed(value: Any, chance: random.Random) -> Any:
    """A value of JSON in which some other value stands somewhere."""
    if chance.random() < 0.15:
        return chance.choice(
            [None, True, -1, 1e400, 2**70, "", [], {}, [[]], "x" * 999, {"a": None}, chance.choice(NASTY)]
        )
    if isinstance(value, dict):
        kept = {key: changed(inner, chance) for key, inner in value.items() if chance.random() > 0.05}
        return {**kept, chance.choice(NASTY): 1} if chance.random() < 0.05 else kept
    return [changed(inner, chance) for inner in value] if isinstance(value, list) else value


def packet(chance: random.Random) -> bytes:
    """What the other end of the link's socket sends."""
    head = json.dumps(changed(_CALL, chance)).encode()
    lengths = (len(head) + chance.choice([0, 0, 0, -1, 5, 1 << 30])) % (1 << 32), chance.choice([0, 3, 1 << 20])
    data = bytearray(lengths[0].to_bytes(4, "big") + lengths[1].to_bytes(4, "big") + head + b"abc")
    for _ in range(chance.choice([0, 0, 1, 5])):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])


def batches(chance: random.Random) -> list[tuple[Any, ...]]:
    """What an agent forwards of a run: events in lines, with their numbers."""
    made: list[tuple[Any, ...]] = []
    for _ in range(chance.randint(1, 5)):
        events = [changed(chance.choice(_EVENTS), chance) for _ in range(chance.randint(0, 4))]
        numbered = [{"seq": at, **event} if isinstance(event, dict) else event for at, event in enumerate(events)]
        text = "\n".join(json.dumps(event) for event in numbered)
        data = (torn(text, chance, []) if chance.random() < 0.3 else text).encode("utf-8", "replace")
        wild = [0, 0, 0, chance.choice([1, -1, None, "0", True, 2**70, 1.5])]
        made.append((chance.choice(wild), chance.choice(wild), chance.choice([len(events), *wild]), data))
    return made


def database(chance: random.Random) -> dict[str, Any]:
    """A row, and bytes of the file that are other ones."""
    columns = {
        "name": "x",
        "folders": "[]",
        "machine": "vm",
        "owner_place": "a/b/c",
        "machine_place": "a/b/c",
        "state": "ready",
    }
    names = chance.sample(sorted(columns), 2)
    values = [*NASTY[:40], None, -1, 2**62, 1.5, b"\xff", json.dumps(["/tmp", "/", "../x", "/tmp/sky-fuzz-x"])]
    cell = {name: chance.choice(values) for name in names}
    return {
        "row": cell,
        "bytes": [(chance.random(), chance.randrange(256)) for _ in range(chance.choice([0, 0, 1, 40]))],
    }


# How they are fed.


def feed_line(given: tuple[str, bool], folder: Path) -> None:
    parse(given[0], cell=given[1])


def feed_toml(given: tuple[str, str], folder: Path) -> None:
    path = folder / "options.toml"
    path.write_bytes(given[0].encode("utf-8", "surrogatepass"))
    section = "".join(letter for letter in given[1] if letter.isprintable() and letter not in "'\"\\ ")
    parse(f"up --config '{path}#{section}'", cell=False)


def feed_ssh(given: tuple[str, str], folder: Path) -> None:
    path = folder / "config"
    path.write_bytes(given[0].encode("utf-8", "surrogatepass"))
    path.chmod(0o600)
    targets.resolve(given[1], files=[path])


def feed_packet(given: bytes, folder: Path) -> None:
    near, far = socket.socketpair()
    with contextlib.closing(near), contextlib.closing(far):
        sender = threading.Thread(target=lambda: (near.sendall(given), near.shutdown(socket.SHUT_WR)))
        sender.start()
        try:
            facts = Wire(far).receive().facts
        finally:
            far.shutdown(socket.SHUT_RDWR)
            sender.join()
    str(encoding.error(facts.get("error")))
    with contextlib.suppress(SkyError):
        encoding.target(facts.get("target"))


def feed_batches(given: list[tuple[Any, ...]], folder: Path) -> None:
    heard: list[Any] = []
    run = Run("fuzz", {0: 0, 1: 0}, heard.append)
    for node, first, count, data in given:
        run.take(node, first, count, data)
    for outcome in run.outcomes.values():
        repr(outcome)


def feed_database(given: dict[str, Any], folder: Path) -> None:
    path = folder / f"{os.urandom(4).hex()}.sqlite"
    registry = Registry(path)
    try:
        registry.intend("fuzz0001", "x", "local", 1, True)
        registry.run_began("aa11", "fuzz0001", "x")
        registry.flush()
        registry.close()
        with contextlib.closing(sqlite3.connect(path)) as file, contextlib.suppress(UnicodeEncodeError, sqlite3.Error):
            for name, value in {"owner": 4_000_000, **given["row"]}.items():
                file.execute(f"UPDATE pools SET {name} = ?", (value,))
            file.commit()
        data = bytearray(path.read_bytes())
        for place, byte in given["bytes"]:
            data[int(place * len(data))] = byte
        path.write_bytes(data)
        for row in registry.pools():
            assert not any(is_ours(row.id, folder) for folder in ("/", "/tmp", *row.folders))
            str((row.who, row.where, row.is_here, row.owner_lives, row.outlives))
        sweep(registry)
        registry.runs()
    finally:
        registry.close()


_LINES = [
    "up --nodes 2 --plugins jax(cuda='cu124'),keras --pip numpy,scipy==1.2 --env A=1 --keep --idle-timeout 30m",
    "up --provider ssh --hosts a,me@b:22 --accelerator A100:8 --python 3.12 --ttl 2h --journal 64MB",
    "--on 0,2-5 --out r --push a,b --no-capture all --shard x,y --timeout 90s --grace 5 --detach --quiet",
    "down --name x",
    "get checkpoints results/ --on 0,2",
    "resize --add gpu4 --remove 2",
    "pull losses --stack --as all",
]
_WORDS = ["--nodes", "--nodes=", "--pip=", "--env", "A=", "--on=", "--config", "--hosts=", "--help", " ", "jax(", ")"]
_TOML = """
nodes = 2
plugins = ["jax", "keras(backend='jax')"]
[a.b]
env = { A = "1", B = "x" }
"idle-timeout" = "30m"
pip = ["numpy", "scipy"]
keep = true
"""
_SSH = """
Host gpu*
  HostName 10.0.0.1
  Port 2222
  User me
  IdentityFile ~/.ssh/id_%h
  ProxyJump a,b:22
Match host gpu user me
  ConnectTimeout 5
  StrictHostKeyChecking accept-new
Host *
  UserKnownHostsFile /dev/null
"""
_CALL = {
    "call": "connect",
    "target": encoding.from_target(targets.Target("gpu", "10.0.0.1", "me", keys=("/k",))),
    "error": {"kind": "HostKeyError", "host": "gpu", "reason": "x", "message": "y", "fingerprint": "z", "number": 2},
}
_EVENTS: list[dict[str, Any]] = [
    {"kind": "stream", "rank": 0, "name": "stdout", "text": "hello\n"},
    {"kind": "display", "rank": 0, "data": {"text/plain": "x"}, "metadata": {}, "transient": {}},
    {"kind": "gap", "next": 3, "why": "full", "tally": {"0": {"stdout": 5}}},
    {"kind": "notice", "rank": 0, "text": "n"},
    {
        "kind": "end",
        "rank": 1,
        "status": "ok",
        "writes": ["x"],
        "sizes": {"x": 8},
        "uses": {"x": ["numpy"]},
        "modules": ["numpy"],
        "repr": {"text/plain": "1"},
        "elapsed": 1.0,
    },
    {"kind": "end", "rank": 0, "status": "error", "ename": "E", "evalue": "v", "traceback": ["a", "b"]},
    {"kind": "end", "rank": 0, "status": "died", "text": "t", "why": "w"},
]
_REFUSED = (SkyError, UsageError, HelpRequested)
TARGETS = {
    "line": Target(line, feed_line, _REFUSED),
    "config": Target(toml, feed_toml, _REFUSED),
    "ssh": Target(ssh, feed_ssh, (SkyError,)),
    "link": Target(packet, feed_packet, (Broken,)),
    "events": Target(batches, feed_batches, ()),
    "registry": Target(database, feed_database, (SkyError,)),
}
