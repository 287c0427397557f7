"""What tests of pools on hosts have, where a module's `world` has made the hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.world import World


@pytest.fixture
def config(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's SSH configuration, with all hosts in it."""
    path = world.ssh_config(tmp_path / "config")
    monkeypatch.setenv("SKY_SSH_CONFIG", str(path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return path
