"""AWS for tests: moto's EC2 in a process of its own, whose calls fail as planned.

    with aws_world.light() as aws:
        aws.plan("RunInstances", code="InsufficientInstanceCapacity", status=500, zone="us-east-1a")
        ...
        assert aws.left()["instances"] == 0

The environment names it (``AWS_ENDPOINT_URL``), with keys that are none and no files of the user's, until the block
ends: what is started meanwhile finds it too. All blocks of a process share one server, and each begins with an empty
cloud. Processes that are not children of this one reach it by `AwsWorld`, from its address.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

if TYPE_CHECKING:
    from tests.hosts.world import World
    from tests.providers.aws_hosts import HostedAws

__all__ = ["CALLER", "REGION", "AwsWorld", "hosts", "light", "serve"]

REGION, CALLER = "us-east-1", "testing"
_ROOT = Path(__file__).parents[2]
_SIDE_DOOR = "/-world/"


class AwsWorld:
    """A cloud that is there, by its address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def environment(self, caller: str = CALLER) -> dict[str, str]:
        """Variables by which AWS's own tools find it, as a caller of this name."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ENDPOINT_URL_CHECKIP": f"{self.address}/checkip",
            "AWS_ACCESS_KEY_ID": caller,
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def plan(self, action: str, how: str = "error", **details: Any) -> None:
        """Have a fault happen to the next call of an action: the fields of `aws_server.Fault`."""
        self._ask("plan", action=action, how=how, **details)

    def refuse(self, zone: str = "", *, code: str = "InsufficientInstanceCapacity", **details: Any) -> None:
        """Have no machines, in a zone or anywhere, for good; AWS answers this with a status of 500."""
        status = 500 if code == "InsufficientInstanceCapacity" else 400
        self.plan("RunInstances", code=code, zone=zone, **{"times": 0, "status": status, **details})

    def calm(self, caller: str = "") -> None:
        """Have no more faults, or none for this caller."""
        self._ask("calm", caller=caller)

    def configure(self, **settings: Any) -> None:
        """Set the fields of `moto_patches.Settings`, or ``clock``: by how many seconds AWS's clock is ahead."""
        self._ask("configure", **settings)

    def spot_price(self, kind: str, zone: str, price: float, at: float | None = None) -> None:
        """Have a spot price from a time on, now unless given."""
        self._ask("spot_price", kind=kind, zone=zone, price=price, at=time.time() if at is None else at)

    def left(self) -> dict[str, int]:
        """Return how many things of each kind are there."""
        found: dict[str, int] = self._ask("left")
        return found

    def instances(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the instances there ever were with these values; the keys are in `moto_patches.described`."""
        found: list[dict[str, Any]] = self._ask("instances")
        return [one for one in found if all(one[name] == value for name, value in wanted.items())]

    def alive(self, pool: str = "") -> list[str]:
        """Return the ids of instances that cost money, of a pool or of all."""
        there = [one for one in self.instances() if one["state"] not in ("shutting-down", "terminated")]
        return [one["id"] for one in there if pool in ("", one["tags"].get("sky-jupyter"))]

    def calls(self, action: str = "", caller: str = "") -> list[dict[str, Any]]:
        """Return what was asked since the reset: action, region, zone, caller, fault, sent."""
        found: list[dict[str, Any]] = self._ask("calls", action=action, caller=caller)
        return found

    def forget_calls(self) -> None:
        """Begin `calls` anew."""
        self._ask("forget_calls")

    def interrupt(self, id: str) -> None:
        """Take a spot instance away."""
        self._ask("interrupt", id=id)

    def terminate(self, id: str) -> None:
        """End an instance, as somebody does by hand."""
        self._ask("terminate", id=id)

    def reset(self) -> None:
        """Begin with an empty cloud and no faults."""
        self._ask("reset")

    def _ask(self, name: str, **arguments: Any) -> Any:
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.address).netloc, timeout=120)
        try:
            connection.request("POST", f"{_SIDE_DOOR}{name}", json.dumps(arguments))
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"{name}: {answer}")
        return answer


_started = threading.Lock()


@functools.cache
def serve() -> AwsWorld:
    """Return this process's own cloud, started where there is none; it ends with the process."""
    with _started:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.providers.aws_world"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "MOTO_EC2_LOAD_DEFAULT_AMIS": "false", "PYTHONPATH": str(_ROOT)},
        )
        atexit.register(_end, process)
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"moto's server has ended: status {process.wait()}; its reason is above")
        return AwsWorld(f"http://127.0.0.1:{port}")


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait()
    process.stdout.close()


@contextlib.contextmanager
def light() -> Iterator[AwsWorld]:
    """The API alone, empty, until the block ends; nobody can connect to its instances."""
    pytest.importorskip("moto", reason="AWS's tests need moto")
    world = serve()
    world.reset()
    with here(world):
        yield world


@contextlib.contextmanager
def hosts(world: World) -> Iterator[HostedAws]:
    """Have each instance be a host of this world, with the address that the API says, until the block ends.

    It has what its user data says: keys, files and commands at boot. It ends as the instance ends, and the instance as
    it does.
    """
    from tests.providers.aws_hosts import HostedAws

    serve().reset()
    with HostedAws(serve().address, world) as made, here(made):
        yield made


@contextlib.contextmanager
def here(world: AwsWorld) -> Iterator[None]:
    """Have this process, and those that it starts meanwhile, find this cloud and no files of the user's."""
    dropped = ("AWS_PROFILE", "AWS_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_EC2", "AWS_ROLE_ARN")
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, world.environment()):
        # What AWS answered once is kept there; the next cloud answers anew.
        os.environ["SKY_ANSWER_CACHE"] = cache
        for name in dropped:
            os.environ.pop(name, None)
        yield


if __name__ == "__main__":
    from tests.providers.aws_server import main

    main()
