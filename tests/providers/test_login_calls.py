"""Commands on a login host of a batch scheduler, over a real SSH server: which failures may pass, and which do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from sky_jupyter.errors import ProvisionError, Unanswered
from sky_jupyter.machines.ssh import resolve_target
from sky_jupyter.machines.ssh.target import Target
from sky_jupyter.providers.batch.login_calls import LoginCalls
from tests.machines.conftest import eventually, need_ssh
from tests.machines.link import Link
from tests.machines.link import link as relay
from tests.machines.sshd import serve


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Link, Target]]:
    """A connection to a login host, which can be cut, and the host as a target that lets us in."""
    need_ssh()
    folder = tmp_path_factory.mktemp("login")
    with serve(folder / "sshd") as server, relay(server.port) as made:
        known = folder / "known_hosts"
        known.write_text(server.known_line(name=f"[127.0.0.1]:{made.port}"))
        target = replace(
            resolve_target.resolve(f"127.0.0.1:{made.port}", files=[]),
            known_hosts=(str(known),),
            system_known_hosts=(),
            agent=None,
            keys=(str(server.key),),
        )
        yield made, target


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"known_hosts": ()}, "authenticity of the host"), ({"keys": ("/nowhere",)}, "takes no key of ours")],
    ids=["its key is unknown", "it takes no key of ours"],
)
def test_a_login_host_that_does_not_let_us_in_is_not_asked_again(
    between: tuple[Link, Target], changed: dict[str, Any], why: str
) -> None:
    calls = LoginCalls(replace(between[1], **changed))
    with pytest.raises(ProvisionError, match=why) as caught:
        calls.ask(["squeue", "--me"])
    assert str(caught.value).startswith("squeue could not be run on ")
    assert not caught.value.passing


def test_a_log_in_that_breaks_is_tried_again(between: tuple[Link, Target], monkeypatch: pytest.MonkeyPatch) -> None:
    import paramiko

    link, target = between
    calls = LoginCalls(target)
    real: Callable[..., Any] = paramiko.Transport.auth_publickey

    def breaks(transport: paramiko.Transport, *more: Any) -> Any:
        link.cut()
        eventually(lambda: not transport.is_active())
        return real(transport, *more)

    with monkeypatch.context() as patch:
        patch.setattr(paramiko.Transport, "auth_publickey", breaks)
        with pytest.raises(Unanswered):
            calls.ask(["echo", "hello"])
    try:
        assert calls.ask(["echo", "hello"]) == "hello\n"
    finally:
        calls.close()
