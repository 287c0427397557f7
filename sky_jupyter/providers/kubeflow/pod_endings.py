"""End of single pods: their command exits, and their job does not replace them."""

from __future__ import annotations

import posixpath
import shlex
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...errors import SkyError
from ...util.background_tasks import map_all
from ..provisioning_types import RUNNING, MachineRecord
from . import pod_records

if TYPE_CHECKING:
    from ...machines.pods.pod_target import PodTarget
    from .context import ClusterContext

# The wait script reads the file each second; then the cluster has to see that the container has ended.
_PATIENCE, _LOOK = 15.0, 0.3
_SCRIPT_TIMEOUT = 20.0


def end(
    provider: ClusterContext, machines: Sequence[MachineRecord], there: Callable[[], Sequence[MachineRecord]]
) -> None:
    """Make running pods end, and wait until the cluster has noticed.

    A pod that is not running yet is left alone: once it runs, it ends by its lease, as nobody writes its power file.

    Parameters
    ----------
    provider : ClusterContext
        The provider, of the pods' namespace.
    machines : sequence of MachineRecord
        The pods.
    there : callable
        Returns the machines of their jobs that have not ended.

    Raises
    ------
    SkyError
        When a pod could not be told to end.
    """
    running = [one.id for one in machines if one.state == RUNNING]
    if not running:
        return
    targets = pod_records.targets(provider, running)
    errors = map_all(lambda one: _tell(targets[one], provider.power_file), running, "sky-pods")
    if error := next(filter(None, errors), None):
        raise error
    until = time.monotonic() + _PATIENCE
    while any(one.id in targets for one in there()) and time.monotonic() < until:
        time.sleep(_LOOK)


def _tell(target: PodTarget, file: str) -> SkyError | None:
    """Make the pod's own command end; return the error if that fails."""
    from ...machines.pods.machine import PodMachine

    new, old, folder = shlex.quote(f"{file}.0"), shlex.quote(file), shlex.quote(posixpath.dirname(file))
    try:
        machine = PodMachine.connect(target)
        try:
            # The wait script may not have made its folder yet: on a busy node, a container is running before the
            # script's first line is.
            done = machine.run(f"mkdir -p {folder} && echo 0 > {new} && mv -f {new} {old}", timeout=_SCRIPT_TIMEOUT)
        finally:
            machine.close()
    except (SkyError, TimeoutError) as error:
        return SkyError(f"{target} cannot be ended: {error}")
    return None if done.status == 0 else SkyError(f"{target}: {done.out.decode(errors='replace').strip()}")


__all__ = ["end"]
