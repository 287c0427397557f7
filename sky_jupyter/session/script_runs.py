"""Unchanged scripts on a pool: runs whose ranks start new processes."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..capture.collect import Capture
from ..capture.import_graph import imports_of
from ..errors import SpecError
from ..machines.local_machine import absolute
from .cells import Cell, run_cell

if TYPE_CHECKING:
    from ..pool.pool import Pool

# torchrun's words for a number of processes: a node's devices; "auto" is its ranks where there are none.
Count = int | Literal["auto", "gpu"]


@dataclass(frozen=True)
class Script:
    """Script with the options of its launcher; made by the magic.

    Parameters
    ----------
    verb : str
        The launcher's verb, such as ``torchrun``.
    kind : str
        ``"file"``, ``"module"`` or ``"program"``.
    target : str
        Path, module or program.
    args : tuple of str
        The script's arguments.
    words : tuple of str
        The launcher's own options as they were given, for the run's title.
    per_node : int, "auto", "gpu" or None
        The number of processes on each node; None for one per rank.
    nodes : tuple of int, optional
        The least and the largest number of nodes; None for all.
    processes : int, optional
        The number of processes in all.
    restarts : int
        How often all processes may be started again after a failure.
    id : str
        torchrun's ``--rdzv-id``; empty for a new one.
    role : str
        torchrun's ``--role``.
    accelerate : bool
        Whether Accelerate sets its variables, on the nodes.
    options : tuple of str
        The options that Accelerate reads for that.
    config : str
        The path of a file of ``accelerate config``.
    typed : str
        The path as it was given, for the run's title; empty if that is the target.
    notes : tuple of str
        The lines to print before it runs.
    """

    verb: str
    kind: Literal["file", "module", "program"]
    target: str
    args: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    per_node: Count | None = None
    nodes: tuple[int, int] | None = None
    processes: int | None = None
    restarts: int = 0
    id: str = ""
    role: str = "default"
    accelerate: bool = False
    options: tuple[str, ...] = ()
    config: str = ""
    typed: str = ""
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The line that a user would type."""
        program = ("-m", self.target) if self.kind == "module" else (self.target,)
        return shlex.join([*self.verb.split(), *self.words, *program, *self.args])

    def found(self) -> Script:
        """Return the same with an absolute path of its file.

        Returns
        -------
        Script
            The script, whose file is there.

        Raises
        ------
        SpecError
            When there is no such file on this machine.
        """
        if self.kind != "file":
            return self
        path = absolute(self.target)
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "is not there"
            raise SpecError(
                f"{self.target} {what}: `%sky {self.verb}` takes a Python file of this machine, `-m` and a module, or "
                "with --no-python a program of the nodes"
            )
        return replace(self, target=os.path.normpath(path), typed=self.typed or self.target)

    def here(self) -> Script:
        """Return the same with absolute paths among its launcher's options.

        Returns
        -------
        Script
            The script as any folder understands it.
        """
        if not self.config:
            return self
        path = str(absolute(self.config))
        return replace(self, config=path, words=tuple(path if word == self.config else word for word in self.words))

    def pool_options(self) -> dict[str, int]:
        """Return the options of a pool that is created for it."""
        nodes = 1 if self.nodes is None else self.nodes[1]
        options = {} if self.nodes is None else {"nodes": nodes}
        each = self.per_node
        if self.processes is not None and self.processes % nodes == 0:
            each = self.processes // nodes
        return options | ({"ranks_per_node": each} if isinstance(each, int) else {})


def run_script(pool: Pool, script: Script, cell: Cell, namespace: dict[str, Any]) -> None:
    """Run a script on a pool that is live, as `run_cell` runs a cell.

    Parameters
    ----------
    pool : Pool
        The pool.
    script : Script
        The script, with the absolute path of its file.
    cell : Cell
        The options that it shares with cells; its code is made here.
    namespace : dict
        The notebook's namespace.

    Raises
    ------
    SpecError
        When the pool cannot have the processes that the script asks for.
    CellError
        When ranks failed.
    """
    # Imported here: `%load_ext` does not need the nodes' half.
    from ..node.kernel.script_run import ScriptPlan

    ranks = _ranks(pool, script, cell.ranks)
    nodes = len({rank // pool.spec.ranks_per_node for rank in ranks})
    key = secrets.token_hex(8)
    plan = ScriptPlan(
        id=script.id or key,
        key=key,
        kind=script.kind,
        target=script.target,
        args=list(script.args),
        ranks=ranks,
        per_node=_per_node(pool, _shared_out(script, nodes)),
        restarts=script.restarts,
        role=script.role,
        # Local nodes read the file itself, and so find what lies beside it.
        sent=script.kind == "file" and bool(pool.machines),
        # Scripts of torchrun find the variables that torchrun sets, and none of Open MPI's.
        jax=script.verb == "run",
        accelerate={"options": list(script.options), "config": _config(script)} if script.accelerate else None,
    )
    for note in script.notes:
        print(note)
    if plan.sent:
        pool.code.local.include_script(Path(script.target))
    call = f"__import__({ScriptPlan.__module__!r}, fromlist=['run']).run({plan.to_json()!r})"
    title = replace(script, target=script.typed or script.target).line
    code = f"# %sky {title}".replace("\n", " ") + f"\n{call}"
    capture = Capture(modules=_modules(script, sent=plan.sent))
    shown = [rank for rank in cell.shown if rank in ranks]
    run_cell(pool, replace(cell, code=code, source=code, ranks=ranks, shown=shown, script=capture), namespace)


def _ranks(pool: Pool, script: Script, ranks: Sequence[int]) -> list[int]:
    """Return the ranks on as many nodes as the script asks for."""
    each = pool.spec.ranks_per_node
    nodes = sorted({rank // each for rank in ranks})
    if script.nodes is None:
        return list(ranks)
    least, most = script.nodes
    if len(nodes) < least:
        raise SpecError(
            f"--nnodes asks for {least} nodes, and pool {pool.spec.name} has {len(nodes)} here: "
            f"`%sky resize {least}` gives it more"
        )
    return [rank for rank in ranks if rank // each in nodes[:most]]


def _per_node(pool: Pool, script: Script) -> int:
    """Return the number of processes on each node; 0 for one per rank."""
    count, accelerator = script.per_node, pool.spec.accelerator
    if count == "gpu" and accelerator is None:
        raise SpecError(
            f"--nproc-per-node gpu: pool {pool.spec.name} was not asked for accelerators, so their number is not "
            "known: give a number, or make the pool with --accelerator"
        )
    if count in ("gpu", "auto"):
        count = accelerator.count if accelerator is not None else None
    if count is not None and not pool.spec.options.cluster:
        raise SpecError(
            f"--nproc-per-node: the ranks of pool {pool.spec.name} are independent (--no-cluster), and each runs the "
            "script by itself; leave it out"
        )
    return 0 if count is None or count == pool.spec.ranks_per_node else int(count)


def _shared_out(script: Script, nodes: int) -> Script:
    """Return the script with its number of processes per node instead of in all."""
    if script.processes is None:
        return script
    if script.processes % nodes:
        raise SpecError(
            f"--num_processes {script.processes} cannot be shared out among {nodes} nodes equally: give a multiple of "
            f"{nodes}, or choose nodes with --num_machines"
        )
    return replace(script, per_node=script.processes // nodes)


def _config(script: Script) -> str | None:
    """Return the text of the file of ``accelerate config``; None if there is none."""
    from ..plugins.huggingface import home

    own = Path(os.path.expanduser(home()), "accelerate", "default_config.yaml")
    path = absolute(script.config) if script.config else own
    if not script.config and (not path.is_file() or "--cpu" in script.options):
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SpecError(f"--config_file {script.config or path} cannot be read: {error}") from None


def _modules(script: Script, *, sent: bool) -> frozenset[str]:
    """Return the modules that a script imports, except those that lie beside it."""
    if script.kind == "module":
        return frozenset([script.target])
    if script.kind != "file" or not sent:
        return frozenset()
    path = Path(script.target)
    try:
        names = imports_of(path.read_text(encoding="utf-8")).names
    except (SyntaxError, ValueError, OSError):
        # The nodes' Python reports what is wrong with it.
        return frozenset()
    beside = {one.name.partition(".")[0] for one in path.parent.iterdir()}
    return frozenset(name for name in names if name.partition(".")[0] not in beside)
