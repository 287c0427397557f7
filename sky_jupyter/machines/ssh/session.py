"""One SSH connection: connect, verify, monitor and close."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_REQUEST
from paramiko.message import Message

from ...errors import LinkLost, LoginRefused, MachineError, Unreachable
from . import auth, known_hosts
from .channels import PACKET, Channel, CountingSocket, PacketPipe
from .connection_loss import ConnectionLoss
from .target import Target
from .tcp import SILENT, command_socket, dial, end, peer
from .types import Prompts, Ran

# AES-GCM encrypts and authenticates in one pass with processor instructions; the others are much slower.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
# Receive window. If the link is slower than the host's disk, its sshd buffers as much, in a buffer that grows by one
# packet at a time: with 16 MiB, sshd would spend seconds on copying it.
_WINDOW = 4 << 20
_READ = 1 << 18
_HANDSHAKE = 30.0
_TICK = 1.0
# Seconds of silence after which a keepalive is sent.
_PULSE = 4
_CHANNEL_PATIENCE = 30.0
_END_PATIENCE = 5.0
_LOOPBACK = "127.0.0.1"
# Retries after a person answered too late: one for a question about the host, and one for each of a few keys.
_SLOW_ANSWERS = 4


@dataclass(frozen=True)
class Access:
    """State shared by connections: opened keys, prompts, accepted host keys."""

    ring: auth.KeyRing = field(default_factory=auth.KeyRing)
    accept: known_hosts.Accepted = False
    ask: Callable[[known_hosts.Unknown], bool] | None = None

    @classmethod
    def of(cls, accept: known_hosts.Accepted = False, prompts: Prompts | None = None) -> Access:
        """Return the access for the hosts of one pool."""
        prompts = prompts or Prompts()
        return cls(auth.KeyRing(prompts.passphrase), accept, prompts.accept)


class _Transport(paramiko.Transport):
    """paramiko's transport with our host key order, exit signals and matched replies."""

    host_key_order: tuple[str, ...] = ()
    host_blob = b""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._requests: deque[Callable[[Message | None], None]] = deque()
        self._requesting = threading.Lock()

    def request(self, heard: Callable[[Message | None], None], kind: str, *data: str | int) -> None:
        """Send a global request; call ``heard`` with the reply, or None if it failed.

        Replies come in the order of the requests; paramiko's own method would confuse them.
        """
        message = Message()
        message.add_byte(b"P")  # SSH_MSG_GLOBAL_REQUEST
        message.add_string(kind)
        message.add_boolean(True)
        message.add(*data)
        with self._requesting:
            self._requests.append(heard)
            self._send_user_message(message)

    def _parse_request_success(self, message: Message) -> None:
        if self._requests:
            self._requests.popleft()(message)

    def _parse_request_failure(self, message: Message) -> None:
        if self._requests:
            self._requests.popleft()(None)

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """Host key types to request, in order."""
        return self.host_key_order

    def _verify_key(self, host_key: bytes, sig: bytes) -> None:
        super()._verify_key(host_key, sig)
        self.host_blob = host_key

    def presented(self) -> known_hosts.Presented:
        """Return the key that the host has signed with."""
        key = self.get_remote_server_key()
        plain = bytes(key.asbytes())
        kind = plain[4 : 4 + int.from_bytes(plain[:4], "big")].decode("ascii", "replace")
        return known_hosts.Presented(kind, plain, None if self.host_blob == plain else self.host_blob)

    def _handle_request(self, channel: Any, message: Any) -> None:
        """Record the signal that ended a command, which paramiko ignores."""
        at = message.packet.tell()
        if message.get_text() == "exit-signal":
            message.get_boolean()
            channel.exit_signal = message.get_text()
        message.packet.seek(at)
        _PARAMIKO_REQUEST(channel, message)

    def run(self) -> None:
        """Handle incoming messages."""
        table = dict(paramiko.Transport._channel_handler_table)
        table[MSG_CHANNEL_REQUEST] = self._handle_request
        self._channel_handler_table = table
        super().run()


_PARAMIKO_REQUEST = paramiko.Transport._channel_handler_table[MSG_CHANNEL_REQUEST]


class Session:
    """Authenticated connection to one host, made by `connect`; thread-safe.

    Parameters
    ----------
    target : Target
        The host.
    wire : CountingSocket
        The socket or channel below.
    below : Session or None
        Connection to the jump host.
    child : subprocess.Popen or None
        The ProxyCommand.

    Attributes
    ----------
    address : str
        The address at which it answered; its name if it is behind a jump host.
    key : str
        Label of the key that was accepted.
    """

    def __init__(
        self, target: Target, wire: CountingSocket, below: Session | None, child: subprocess.Popen[bytes] | None
    ) -> None:
        self.target = target
        self.key = ""
        self.address = peer(wire.inner) or target.host
        self._wire, self._below, self._child = wire, below, child
        self._transport = _Transport(wire, default_window_size=_WINDOW, default_max_packet_size=PACKET)
        self._transport.daemon = True
        self._transport.channel_timeout = _CHANNEL_PATIENCE
        self._closing = threading.Event()
        self._loss = ConnectionLoss(self._closing)
        self._pulse = threading.Event()
        self._threads: list[threading.Thread] = []
        # Handlers of connections to the host's ports.
        self._accepts: dict[int, Callable[[Any], None]] = {}

    # Connecting

    def _open(self, access: Access) -> None:
        target, transport = self.target, self._transport
        transport.host_key_order = tuple(known_hosts.algorithms(known_hosts.known(target)))
        options = transport.get_security_options()
        options.ciphers = [
            *(c for c in _CIPHERS if c in options.ciphers),
            *(c for c in options.ciphers if c not in _CIPHERS),
        ]
        transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = _HANDSHAKE
        try:
            transport.start_client(timeout=_HANDSHAKE)
            if not transport.initial_kex_done:
                raise Unreachable(target.name, "timeout", f"{target} took more than {_HANDSHAKE:g} s to exchange keys")
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise _no_protocol(target, error, self._child) from None
        known_hosts.check(target, transport.presented(), accept=access.accept, ask=access.ask)
        self.key = auth.log_in(transport, target, access.ring)
        for name, work in (("watch", self._watch), ("pulse", self._beat)):
            thread = threading.Thread(target=work, name=f"sky-ssh-{name}-{target.name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    # Using it

    @property
    def alive(self) -> bool:
        """Whether the connection is alive, as far as is known."""
        return self._transport.is_active() and not self._closing.is_set()

    def on_lost(self, tell: Callable[[LinkLost], None]) -> None:
        """Call a function when the connection breaks; at once if it has broken."""
        self._loss.on_lost(tell)

    def channel(self, command: str) -> Any:
        """Run a command through the user's shell there; return paramiko's channel."""
        channel = self._channel("session")
        try:
            channel.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            channel.close()
            raise self._lost_or(
                "command", f"{self.target} would not run a command: {error or 'it gave no reason'}"
            ) from None
        return channel

    def open_stream(self, host: str, port: int) -> Any:
        """Connect from the machine to an address; return paramiko's channel."""
        return self._channel("direct-tcpip", (host, port), ("127.0.0.1", 0))

    def listen(self, port: int, accept: Callable[[Any], None]) -> int:
        """Listen on a port of the host's loopback, any free one if 0, and return it.

        ``accept`` is called with each connection's channel, in paramiko's reader thread: it must not block. Raise
        MachineError if the host refuses.
        """
        answers: queue.Queue[Message | None] = queue.Queue()
        self._transport._tcp_handler = self._incoming
        if port:
            self._accepts[port] = accept
        try:
            self._transport.request(answers.put, "tcpip-forward", _LOOPBACK, port)
            answer = self._heard(answers)
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._accepts.pop(port, None)
            raise self._lost_or("port", f"{self.target} gave no port: {error or 'it gave no reason'}") from None
        if answer is None:
            self._accepts.pop(port, None)
            raise MachineError(
                self.target.name,
                "refused",
                f"{self.target} refused to listen on a port for us; allow it in its sshd_config (AllowTcpForwarding "
                "yes, PermitListen any)",
            )
        port = port or answer.get_int()
        self._accepts[port] = accept
        return port

    def unlisten(self, port: int) -> None:
        """Stop listening on a port of the host."""
        if self._accepts.pop(port, None) is not None:
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                self._transport.request(lambda answer: None, "cancel-tcpip-forward", _LOOPBACK, port)

    def _heard(self, answers: queue.Queue[Message | None]) -> Message | None:
        until = time.monotonic() + _CHANNEL_PATIENCE
        while self.alive and time.monotonic() < until:
            with contextlib.suppress(queue.Empty):
                return answers.get(timeout=_TICK)
        raise OSError("no answer")

    def _incoming(self, channel: Any, origin: tuple[str, int], place: tuple[str, int]) -> None:
        channel = Channel.of(channel)
        accept = self._accepts.get(place[1])
        if accept is None:
            threading.Thread(target=channel.close, daemon=True).start()
        else:
            accept(channel)

    def sftp(self) -> paramiko.SFTPClient:
        """Return an SFTP client on a channel of its own."""
        channel = self._channel("session")
        try:
            channel.invoke_subsystem("sftp")
            return paramiko.SFTPClient(channel)
        except (paramiko.SSHException, EOFError, OSError) as error:
            channel.close()
            raise self._lost_or("sftp", f"{self.target} offers no SFTP: {error}") from None

    def run(
        self,
        command: str,
        stdin: bytes | Iterable[bytes] = b"",
        timeout: float | None = None,
        *,
        opened: Callable[[Any], None] | None = None,
    ) -> Ran:
        """Run a command through the user's shell there and return its result.

        ``opened`` is called with its channel. Raise TimeoutError, and close the channel, after ``timeout`` seconds;
        LinkLost if the connection breaks first.
        """
        channel = self.channel(command)
        if opened is not None:
            opened(channel)
        parts: list[bytes] = []
        errors: list[bytes] = []
        reader = threading.Thread(target=_drain, args=(channel.recv_stderr, errors), daemon=True)
        failed: list[Exception] = []
        feeder = threading.Thread(target=_feed, args=(channel, stdin, failed), daemon=True)
        over = None if timeout is None else time.monotonic() + timeout
        timer = None
        if timeout is not None:
            timer = threading.Timer(timeout, channel.close)
            timer.daemon = True
            timer.start()
        try:
            reader.start()
            feeder.start()
            _drain(channel.recv, parts)
            reader.join()
            status = self.status(channel)
            feeder.join(_END_PATIENCE)
        except LinkLost:
            if failed:
                raise failed[0] from None
            if over is not None and time.monotonic() >= over and self.alive:
                raise TimeoutError(f"a command on {self.target} has not ended after {timeout:g} s") from None
            raise
        finally:
            if timer is not None:
                timer.cancel()
            channel.close()
        return Ran(status, b"".join(parts), b"".join(errors))

    def feed(self, channel: Any, data: Iterable[bytes]) -> None:
        """Send a channel's input from a thread, as the command may answer meanwhile."""
        threading.Thread(target=_feed, args=(channel, data), name="sky-ssh-feed", daemon=True).start()

    def status(self, channel: Any) -> int:
        """Wait for a channel's command; return its status, or minus the signal.

        Raise LinkLost if the connection, or the server's part of it, ended first: then the status is unknown.
        """
        channel.status_event.wait()
        name = getattr(channel, "exit_signal", None)
        if name is not None:
            return -int(getattr(signal, f"SIG{name}", 0)) or -1
        if channel.exit_status == -1:
            raise self._lost_or("closed", f"{self.target} ended the command's channel and did not say how it ended")
        return int(channel.exit_status)

    def _channel(self, kind: str, *addresses: tuple[str, int]) -> Any:
        try:
            channel = self._transport.open_channel(kind, *addresses, timeout=_CHANNEL_PATIENCE)
        except paramiko.ChannelException as error:
            what = f"a connection to {addresses[0][0]}:{addresses[0][1]} from there" if addresses else "another command"
            raise MachineError(
                self.target.name,
                "refused",
                f"{self.target} refused {what}: {error.text}" + _refusal_hint(error.code, bool(addresses)),
            ) from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._lost_or("channel", f"{self.target} opened no channel: {error or 'it gave no reason'}") from None
        channel = Channel.of(channel)
        if not addresses:
            # No data has come yet, as the command is not requested yet. The other end of a stream may already have sent
            # data.
            channel.in_buffer = PacketPipe()
        return channel

    def _lost_or(self, reason: str, message: str) -> MachineError:
        """Return LinkLost if the connection is lost, else the error for this failure."""
        if self._loss.reason is not None:
            return LinkLost(self.target.name, self._loss.reason.reason, str(self._loss.reason).partition(": ")[2])
        if not self._transport.is_active() or reason == "closed":
            return LinkLost(
                self.target.name, "closed", message if reason == "closed" else f"the connection is gone; {message}"
            )
        return MachineError(self.target.name, reason, message)

    # Watching and ending it

    def _watch(self) -> None:
        """Detect silence, in ticks: a suspended laptop is not a silent host."""
        seen, silent = self._wire.received, 0
        while not self._closing.wait(_TICK):
            if not self._transport.is_active():
                fault = self._transport.get_exception()
                told = f" ({fault})" if fault is not None and str(fault) else ""
                self._lose("broken", f"the connection to {self.target} broke{told}")
                return
            if self._wire.received != seen:
                seen, silent = self._wire.received, 0
                continue
            silent += 1
            if silent >= SILENT:
                self._lose("silent", f"{self.target} has not answered for {silent} s; the connection is closed")
                return
            if silent % _PULSE == 0:
                self._pulse.set()

    def _beat(self) -> None:
        """Send keepalives in a thread of their own: a dead link blocks them."""
        while True:
            self._pulse.wait()
            self._pulse.clear()
            if self._closing.is_set():
                return
            with contextlib.suppress(Exception):  # the watch notices any failure
                self._transport.request(lambda answer: None, "keepalive@openssh.com")

    def _lose(self, reason: str, message: str) -> None:
        self._loss.lose(LinkLost(self.target.name, reason, message), self._shut)

    def _shut(self) -> None:
        self._closing.set()
        self._pulse.set()
        self._transport.close()
        self._wire.close()
        if self._child is not None:
            end(self._child)
        if self._below is not None:
            self._below.close()

    def close(self) -> None:
        """Close the connection and its threads. Commands that survive keep running."""
        self._shut()
        threads: list[threading.Thread] = [self._transport, *self._threads]
        for thread in threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(_END_PATIENCE)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(target: Target, access: Access | None = None) -> Session:
    """Connect to a host, through its jump hosts if it has any.

    Raise Unreachable if there is no connection, HostKeyError if the host's key is not accepted, and LoginRefused if
    the host accepts none of our keys.
    """
    access = access or Access()
    for _ in range(_SLOW_ANSWERS):
        try:
            return _connect(target, access)
        except LoginRefused as error:
            if error.reason != "waited":
                raise
            # A person took too long to answer. Now the host key is accepted, or a key is open.
    return _connect(target, access)


def _connect(target: Target, access: Access) -> Session:
    below: Session | None = None
    child: subprocess.Popen[bytes] | None = None
    if target.jump is not None:
        try:
            below = connect(target.jump, access)
        except Unreachable as error:
            raise Unreachable(target.name, "jump", f"the jump host failed: {error}") from None
        try:
            inner = _through(below, target)
        except BaseException:
            below.close()
            raise
    elif target.proxy_command is not None:
        inner, child = command_socket(target)
    else:
        inner = dial(target)
    session = Session(target, CountingSocket(inner), below, child)
    try:
        session._open(access)
    except BaseException:
        session.close()
        raise
    return session


def _through(below: Session, target: Target) -> Any:
    try:
        return below.open_stream(target.host, target.port)
    except LinkLost:
        raise
    except MachineError as error:
        raise Unreachable(target.name, "behind", f"not to be reached through its jump host: {error}") from None


def _no_protocol(target: Target, error: BaseException, child: subprocess.Popen[bytes] | None) -> Unreachable:
    if isinstance(error, Unreachable):
        return error
    if child is not None:
        return Unreachable(
            target.name, "proxy", f"its ProxyCommand made no connection ({_proxy_end(child, error)}); try it by hand"
        )
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return Unreachable(
            target.name, "protocol", f"{target} and we have no way to encrypt in common ({error}); update its sshd"
        )
    return Unreachable(
        target.name,
        "protocol",
        f"{target} ended the connection before it had begun ({error or 'no reason given'}); is it an SSH server, and "
        "does it let this address in (MaxStartups, fail2ban, hosts.deny)?",
    )


def _proxy_end(child: subprocess.Popen[bytes], error: BaseException) -> str:
    """Return how a ProxyCommand ended; its own output was shown before."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = child.wait(1.0)
        return f"it ended with status {status}" if status >= 0 else f"it was ended by signal {-status}"
    return str(error).partition("[Errno")[0].strip() or "it gave no reason"


def _refusal_hint(code: int, stream: bool) -> str:
    if not stream:
        # OpenSSH gives no other reason when it refuses a session.
        return "; its sshd allows too few at a time on one connection: set MaxSessions 10 there, which is the default"
    if code == paramiko.common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED:
        return "; allow it in its sshd_config (AllowTcpForwarding yes)"
    return ""


def _drain(receive: Callable[[int], bytes], parts: list[bytes]) -> None:
    with contextlib.suppress(OSError):
        while data := receive(_READ):
            parts.append(data)


def _feed(channel: Any, data: bytes | Iterable[bytes], failed: list[Exception] | None = None) -> None:
    """Send a command its input; ignore a command that ends without reading it all.

    If the input itself fails, close the channel: half of it must not pass for all.
    """
    parts = iter([data] if isinstance(data, bytes) else data)
    while True:
        try:
            part = next(parts, None)
        except Exception as error:
            if failed is not None:
                failed.append(error)
            channel.close()
            return
        try:
            if part is None:
                channel.shutdown_write()
                return
            channel.send_all(part)
        except (OSError, EOFError, paramiko.SSHException):
            return
