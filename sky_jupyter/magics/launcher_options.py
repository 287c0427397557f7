"""The options of launchers, as ``torch.distributed.run`` and ``accelerate launch`` list them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LauncherOption:
    """Option of a launcher, and what becomes of it on a pool.

    Parameters
    ----------
    flags : tuple of str
        Its spellings, the usual one first.
    dest : str
        What it sets; ``"pool"`` for what the pool does by itself.
    metavar : str
        Its value; empty if it takes none.
    help : str
        What it does here.
    refused : str
        Why it cannot hold on a pool, and what to do instead.
    variable : str
        The variable that the launcher sets by it.
    """

    flags: tuple[str, ...]
    dest: str = ""
    metavar: str = ""
    help: str = ""
    refused: str = ""
    variable: str = ""


def _both(flag: str) -> tuple[str, ...]:
    """Return a flag with its other spelling, with underscores."""
    other = f"--{flag[2:].replace('-', '_')}"
    return (flag,) if other == flag else (flag, other)


_MODULE = LauncherOption(("-m", "--module"), "module", help="the script is a module: `-m package.module`")
_NO_PYTHON = LauncherOption(_both("--no-python"), "no_python", help="the script is a program of the nodes")
_LOGS = "each rank's output has a tab of its own, and `%sky logs --to FOLDER` writes it to files"
_MEETING = "the pool chooses the meeting place"

RUN = (_MODULE, _NO_PYTHON)
TORCHRUN = (
    LauncherOption(_both("--nnodes"), "nodes", "N or MIN:MAX", "so many of the pool's nodes, the first ones (all)"),
    LauncherOption(
        _both("--nproc-per-node"), "per_node", "N", "processes on each node: a number, gpu or auto (one a rank)"
    ),
    LauncherOption(_both("--standalone"), "standalone", help="the first node alone"),
    LauncherOption(
        _both("--max-restarts"), "restarts", "N", "start all processes again, up to so often, when one fails (0)"
    ),
    _MODULE,
    _NO_PYTHON,
    LauncherOption(_both("--rdzv-id"), "id", "ID", "the run's TORCHELASTIC_RUN_ID (a new one)"),
    LauncherOption(_both("--role"), "role", "NAME", "the processes' ROLE_NAME (default)"),
    *(
        LauncherOption(_both(flag), "pool", "VALUE", _MEETING)
        for flag in (
            *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-conf", "--master-addr", "--master-port", "--local-addr"),
            *("--node-rank", "--monitor-interval", "--start-method", "--signals-to-handle", "--shutdown-timeout"),
        )
    ),
    LauncherOption(_both("--log-dir"), metavar="FOLDER", refused=_LOGS),
    LauncherOption(_both("--logs-specs"), metavar="NAME", refused=_LOGS),
    LauncherOption(("--redirects", "-r"), metavar="N", refused=_LOGS),
    LauncherOption(("--tee", "-t"), metavar="N", refused=_LOGS),
    LauncherOption(_both("--local-ranks-filter"), metavar="RANKS", refused="`--only 0,2` shows these ranks alone"),
    LauncherOption(_both("--duplicate-stdout-filters"), metavar="TEXT", refused=_LOGS),
    LauncherOption(_both("--duplicate-stderr-filters"), metavar="TEXT", refused=_LOGS),
    LauncherOption(_both("--run-path"), refused="each process is a fresh Python that runs the file; leave it out"),
    LauncherOption(
        _both("--event-log-handler"), metavar="NAME", refused="`%sky runs` and the journals record what happens"
    ),
    LauncherOption(
        _both("--numa-binding"), metavar="MODE", refused="bind in the script, or with --no-python numactl ..."
    ),
    LauncherOption(
        _both("--virtual-local-rank"),
        refused="LOCAL_RANK counts a node's devices; choose cuda:LOCAL_RANK in the script",
    ),
)
ACCELERATE: tuple[LauncherOption, ...] = ()
