"""moto's EC2 behind a gate that has planned faults happen; `tests.providers.aws_world` starts it and asks it.

What tests ask for comes in by a side door of the same port, ``POST /-world/NAME`` with arguments as JSON. A fault is
met by the first call that it fits, whoever makes it. The server ends when its standard input closes.
"""

from __future__ import annotations

import calendar
import contextlib
import dataclasses
import email.utils
import io
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import psutil
from moto.moto_api._internal import moto_api_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.providers import moto_patches

SIDE_DOOR = "/-world/"
# A request that is older is refused, as AWS does.
_SKEW = 15 * 60
_SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT}


@dataclass
class Fault:
    """What happens to calls that it fits.

    Attributes
    ----------
    action : str
        Such as ``"RunInstances"``; ``"*"`` for any.
    how : str
        ``"error"``, ``"cut"`` (no answer, nothing was done), ``"lost"`` (done, and no answer), ``"hang"`` (done after
        `seconds`), ``"late"`` (done, answered after `seconds`); ``"kill"``, ``"kill-after"``, ``"interrupt"`` and
        ``"interrupt-after"`` send a signal to the process that calls.
    region, zone, kind, market, caller : str
        Which calls it fits: any where it is empty. The caller is an access key's id.
    skip, times : int
        So many fitting calls are spared first; so many meet it then, all of them where it is 0.
    """

    action: str
    how: str = "error"
    code: str = ""
    status: int = 400
    message: str = ""
    region: str = ""
    zone: str = ""
    kind: str = ""
    market: str = ""
    caller: str = ""
    skip: int = 0
    times: int = 1
    seconds: float = 1.0
    met: int = 0


@dataclass(frozen=True)
class Call:
    """One call of AWS's API, as it came."""

    action: str
    service: str
    region: str
    caller: str
    sent: dict[str, Any] = field(default_factory=dict)
    peer: int = 0

    @classmethod
    def of(cls, environ: dict[str, Any], body: bytes) -> Call:
        scope = re.search(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
        caller, region, service = scope.groups() if scope else ("", "", "")
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        if target:
            sent, action = json.loads(body or b"{}"), target.rpartition(".")[2]
        else:
            sent = dict(urllib.parse.parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
            action = str(sent.get("Action", ""))
        return cls(action, service, region, caller, sent, int(environ.get("REMOTE_PORT") or 0))

    @property
    def kind(self) -> str:
        return str(self.sent.get("InstanceType", ""))

    @property
    def market(self) -> str:
        return str(self.sent.get("InstanceMarketOptions.MarketType", "on-demand"))

    def zone(self) -> str:
        """Return the zone whose subnet it names."""
        subnet = self.sent.get("SubnetId") or self.sent.get("NetworkInterface.1.SubnetId")
        if not subnet:
            return str(self.sent.get("Placement.AvailabilityZone", ""))
        for backend in moto_patches.backends():
            if backend.region_name == self.region:
                with contextlib.suppress(Exception):
                    return str(backend.get_subnet(subnet).availability_zone)
        return ""

    def fits(self, fault: Fault) -> bool:
        """Tell whether a fault is meant for it."""
        if fault.action not in ("*", self.action) or (fault.zone and fault.zone != self.zone()):
            return False
        return all(not getattr(fault, name) or getattr(fault, name) == getattr(self, name) for name in _FITTING)


_FITTING = ("region", "kind", "market", "caller")


class Gate:
    """The server's application: faults, the side door, and moto behind them, one call at a time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.moto = DomainDispatcherApplication(create_backend_app)
        self.lock = threading.RLock()
        self.faults: list[Fault] = []
        self.calls: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.told = threading.Condition()
        self.ahead = 0.0
        moto_patches.listeners.append(self._tell)

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        path = environ.get("PATH_INFO", "")
        if path.startswith(SIDE_DOOR):
            return self._side_door(path.removeprefix(SIDE_DOOR), json.loads(body or b"{}"), start)
        if path == moto_patches.CHECKIP:
            return _answer(start, 200, "203.0.113.7\n", "text/plain")
        environ["wsgi.input"] = io.BytesIO(body)
        call = Call.of(environ, body)
        with self.lock:
            fault = self._fault(call)
            self.calls.append(
                {
                    "action": call.action,
                    "region": call.region,
                    "zone": call.zone(),
                    "caller": call.caller,
                    "fault": "" if fault is None else (fault.code or fault.how),
                    "sent": call.sent,
                }
            )
        if fault is None and (answer := self._out_of_time(call, environ)):
            return _answer(start, *answer)
        if fault is not None:
            return self._met(fault, call, environ, start)
        return self._act(call, environ, start)

    def _act(self, call: Call, environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        """Have moto do it; the whole answer is there before anything of it is sent."""
        if call.action == "GetProducts":
            return _answer(start, 200, json.dumps(moto_patches.products(call.sent)), "application/x-amz-json-1.1")
        with self.lock:
            return list(self.moto(environ, start))

    def _fault(self, call: Call) -> Fault | None:
        for fault in self.faults:
            if (fault.times and fault.met >= fault.skip + fault.times) or not call.fits(fault):
                continue
            fault.met += 1
            if fault.met > fault.skip:
                return fault
        return None

    def _met(self, fault: Fault, call: Call, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if fault.how == "error":
            return _answer(start, fault.status, *_worded(call, fault.code, fault.message))
        if fault.how in _SIGNALS:
            self._signal(call, _SIGNALS[fault.how])
        if fault.how == "hang":
            time.sleep(fault.seconds)
        if fault.how in ("cut", "kill", "interrupt"):
            return _cut(environ, start)
        if fault.how == "hang":
            return self._act(call, environ, start)
        held: list[Any] = []
        done = self._act(call, environ, lambda *words, **more: held.append((words, more)))
        if fault.how == "late":
            time.sleep(fault.seconds)
            start(*held[0][0], **held[0][1])
            return done
        if fault.how.endswith("-after"):
            self._signal(call, _SIGNALS[fault.how.removesuffix("-after")])
        return _cut(environ, start)

    def _signal(self, call: Call, number: int) -> None:
        """Send a signal to whoever is at the other end of the connection."""
        for one in psutil.net_connections("tcp4"):
            if one.laddr and one.raddr and (one.laddr.port, one.raddr.port) == (call.peer, self.port) and one.pid:
                os.kill(one.pid, number)
                # It has ended, or been told, before its connection does.
                time.sleep(0.05)
                return

    def _out_of_time(self, call: Call, environ: dict[str, Any]) -> tuple[int, str, str] | None:
        sent = environ.get("HTTP_X_AMZ_DATE", "")
        if not sent or not self.ahead:
            return None
        at = calendar.timegm(time.strptime(sent, "%Y%m%dT%H%M%SZ"))
        if abs(time.time() + self.ahead - at) < _SKEW:
            return None
        return 400, *_worded(call, "RequestExpired", "Request has expired.")

    # -- the side door -----------------------------------------------------------------------------

    def _side_door(self, name: str, asked: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        try:
            method = getattr(self, f"do_{name}")
            if name == "events":
                answer = method(**asked)
            else:
                with self.lock:
                    answer = method(**asked)
        except Exception as error:
            return _answer(start, 500, json.dumps(f"{type(error).__name__}: {error}"), "application/json")
        return _answer(start, 200, json.dumps(answer), "application/json")

    def do_reset(self) -> None:
        moto_api_backend.reset()
        moto_patches.reset()
        self.faults, self.calls, self.ahead = [], [], 0.0
        with self.told:
            self.events.clear()

    def do_plan(self, **asked: Any) -> None:
        self.faults.append(Fault(**asked))

    def do_calm(self, caller: str = "", spare: Iterable[str] = ()) -> None:
        kept = set(spare)
        self.faults = [one for one in self.faults if (caller and one.caller != caller) or one.how in kept]

    def do_configure(self, **asked: Any) -> None:
        self.ahead = asked.pop("clock", self.ahead)
        for name, value in asked.items():
            assert name in {one.name for one in dataclasses.fields(moto_patches.Settings)}, name
            setattr(moto_patches.settings, name, value)

    def do_spot_price(self, kind: str, zone: str, price: float, at: float) -> None:
        moto_patches.settings.spot.setdefault((kind, zone), []).append((at, price))

    def do_left(self) -> dict[str, int]:
        return moto_patches.left()

    def do_instances(self) -> list[dict[str, Any]]:
        return moto_patches.described()

    def do_calls(self, action: str = "", caller: str = "") -> list[dict[str, Any]]:
        found = [one for one in self.calls if action in ("", one["action"])]
        return [one for one in found if caller in ("", one["caller"])]

    def do_forget_calls(self) -> None:
        self.calls = []

    def do_interrupt(self, id: str) -> None:
        moto_patches.machine(id).interrupt()

    def do_ended(self, id: str) -> None:
        moto_patches.machine(id).end_by_itself()

    def do_terminate(self, id: str) -> None:
        moto_patches.machine(id).terminate()

    def do_running(self, id: str) -> None:
        moto_patches.machine(id).runs_at = 0.0

    def do_events(self, after: int, wait: float) -> list[dict[str, Any]]:
        with self.told:
            self.told.wait_for(lambda: len(self.events) > after, wait)
            return self.events[after:]

    def _tell(self, what: str, instance: Any) -> None:
        data = instance.user_data.decode() if instance.user_data else ""
        with self.told:
            self.events.append({"what": what, "id": instance.id, "host": instance.host, "user_data": data})
            self.told.notify_all()


def _answer(start: Callable[..., Any], status: int, text: str, kind: str) -> list[bytes]:
    body = text.encode()
    start(f"{status} X", [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def _worded(call: Call, code: str, message: str) -> tuple[str, str]:
    """Return an error as a service words it."""
    message = message or f"planned: {code}"
    words = message.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    if call.service == "ec2":
        text = f"<Response><Errors><Error><Code>{code}</Code><Message>{words}</Message></Error></Errors>"
        return f"{text}<RequestID>00000000-0000-0000-0000-000000000000</RequestID></Response>", "text/xml"
    if call.service == "sts":
        text = f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{words}</Message></Error>"
        return f"{text}<RequestId>0</RequestId></ErrorResponse>", "text/xml"
    return json.dumps({"__type": code, "message": message}), "application/x-amz-json-1.1"


def _cut(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
    """End the connection without an answer."""
    with contextlib.suppress(OSError):
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    start("500 X", [])
    return []


class _Quiet(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        """Say nothing of each request."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the time of answers, by this cloud's clock."""
        return email.utils.formatdate(time.time() + self.server.app.ahead, usegmt=True)


def main() -> None:
    """Serve until standard input closes; the port is the first line that is printed."""
    moto_patches.install()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        port = listening.getsockname()[1]
        server = make_server("127.0.0.1", port, Gate(port), True, request_handler=_Quiet, fd=listening.fileno())
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(port, flush=True)
        sys.stdin.read()
        os._exit(0)
