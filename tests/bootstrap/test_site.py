"""Doing something on all hosts of a pool at once, where some of it fails."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sky_jupyter.bootstrap.prepared_host import PreparedHost, on_all
from sky_jupyter.errors import AGAIN, BootstrapError, LinkLost


def test_a_connection_that_breaks_is_not_said_to_be_made_again_where_nobody_waits_for_it() -> None:
    machine = cast("Any", SimpleNamespace(name="host0"))

    def work(site: PreparedHost) -> None:
        raise LinkLost("host0", "broken", f"the connection has just broken{AGAIN}")

    with pytest.raises(BootstrapError) as caught:
        on_all([PreparedHost(0, machine)], work, "environment", threading.Event())
    assert str(caught.value) == (
        "phase 'environment' failed on node 0 (host0): the connection has just broken; what was begun there ended with "
        "it, so try again"
    )
