"""User data of an instance: cloud-config with keys and the watchdog.

A launch that is repeated with its token must have the same user data. So the text depends only on the order and the
pool's keys. Processes of the machine can read it. Its only secret is the first host key, which the machine replaces
after the first connection.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...errors import ProvisionError
from ...machines import power_watchdog

if TYPE_CHECKING:
    from ...machines.ssh.pool_keys import PoolKeys
    from ..provisioning_types import Order

_MOST = 16_384
# These units hold dpkg's lock for minutes after a start.
_UNITS = (
    "apt-daily.timer apt-daily-upgrade.timer apt-daily.service apt-daily-upgrade.service unattended-upgrades.service"
)
_QUIET_APT = f"systemctl mask --runtime --now --no-block {_UNITS} >/dev/null 2>&1 || :"


def text(order: Order, keys: PoolKeys) -> str:
    """Return the user data of an order's machines."""
    private, public = keys.first_host
    config: dict[str, Any] = {
        "bootcmd": [["sh", "-c", power_watchdog.command(order.until)], ["sh", "-c", _QUIET_APT]],
        "ssh_authorized_keys": [keys.client],
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": private, "ed25519_public": public},
        "ssh": {"emit_keys_to_console": False},
        "package_update": False,
        "package_upgrade": False,
    }
    # JSON is YAML.
    made = f"#cloud-config\n{json.dumps(config, indent=1)}\n"
    if len(made.encode()) > _MOST:
        raise ProvisionError(f"the user data has {len(made.encode())} bytes; EC2 takes {_MOST}")
    return made
