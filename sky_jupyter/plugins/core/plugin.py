"""The Plugin type: what a framework needs before a cell runs, with hooks.

A plugin is created in the notebook (`sky.plugins.jax()`, or `Plugin.create("mine").with_…`), and stored in the pool's
spec. It is sent to the nodes, where `around_process` is entered once in each rank's process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...errors import SpecError
from ...spec.pool_spec import Image, PoolSpec
from .secrets import Secret

if TYPE_CHECKING:
    from ...node.runtime.instance_info import InstanceInfo

AroundProcess = Callable[["InstanceInfo"], AbstractContextManager[Any]]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")


@dataclass(frozen=True)
class Step:
    """Command that runs on each machine when it is prepared.

    Parameters
    ----------
    argv : sequence of str, or str
        The program and its arguments, or a text for ``/bin/sh``. ``python`` is the environment's own.
    env : mapping of str to str or Secret
        Variables besides those of the image. A secret's name is shown nowhere else, and its text nowhere.
    """

    argv: Sequence[str] | str
    env: Mapping[str, str | Secret] = field(default_factory=dict, repr=False)

    @property
    def command(self) -> list[str]:
        """Program and arguments."""
        return ["/bin/sh", "-c", self.argv] if isinstance(self.argv, str) else list(self.argv)

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the command, with the secrets that are known here."""
        values = {key: value.reveal() if isinstance(value, Secret) else value for key, value in self.env.items()}
        return {key: value for key, value in values.items() if value is not None}

    def hide(self, line: str) -> str:
        """Return a line of its output without its secrets.

        Parameters
        ----------
        line : str
            Line of the command's output.

        Returns
        -------
        str
            The line, with each secret replaced.
        """
        for value in self.env.values():
            text = value.reveal() if isinstance(value, Secret) else None
            line = line.replace(text, str(value)) if text else line
        return line


Steps = Sequence["Step | Sequence[str] | str"]


@dataclass(frozen=True)
class Plugin:
    """Requirements of a framework on a pool: a frozen value with hooks.

    Two plugins are equal if their names and arguments are equal; these determine the hooks.

    Parameters
    ----------
    name : str
        Name in ``--plugins``.
    args : tuple of (str, value)
        Arguments of the factory, as given.
    after : tuple of str
        Names of plugins that must be entered before this one.
    needs : tuple of str
        Names of plugins that are required too, before or after this one.
    behind : tuple of str
        Names of plugins that must be entered before this one if they are present.
    preload : tuple of str
        Modules that the forkserver imports once for all ranks. They must start no thread and
        no backend when imported.
    collective : bool
        True if the ranks depend on each other once it is entered: after the loss of one rank, all ranks enter it
        again. Its coordinator listens at ``info.port(name)``. On Linux that port is reserved: bind it with
        ``SO_REUSEADDR``.
    head_bound : bool
        True if the other ranks cannot survive the head's rank 0, which coordinates them.
    noise : tuple of str
        Regular expressions of lines that the framework's native code prints. Such lines go to the rank's log instead
        of the cell's output.
    collectives : tuple of str
        Regular expressions of functions in which a rank may wait for other ranks. Each is searched for in
        ``path/file.py:function`` of a rank's stack (``library.so:function`` in C). What its group ``call`` matches
        is shown as the collective's name, such as ``all_reduce``; without the group, the cell's own line is shown.
    secret_variables : tuple of str
        Names of environment variables that hold secrets. No process of the pool inherits them from the notebook;
        ``around_process`` sets them in the ranks, from a `Secret`.
    fits : callable, optional
        ``(spec) -> None``, raises SpecError for a pool that cannot have this plugin.
    transform : callable, optional
        ``(image, spec) -> image``.
    bootstrap : callable, optional
        ``(spec) -> steps``, commands to run on each machine while it is prepared: lists of a program and its
        arguments, strings for ``/bin/sh``, or `Step` values.
    around_process : callable, optional
        ``(info) -> context manager``, entered in each rank before any user code.
    again : callable, optional
        ``(info) -> None``, sets the framework up again in a living process after a soft abort.
    abort : callable, optional
        ``(info) -> None``, breaks a collective that blocks this rank, from another thread. The blocked call
        raises; `again` must be able to set the framework up again afterwards.
    gone : str
        Objects of the framework that do not survive `again`, for a message.
    check : callable, optional
        ``(info) -> None``, a cheap collective that raises when the ranks are out of step; called on
        all ranks together after an interrupt.
    ended : callable, optional
        ``(info) -> str``, names what the user's code has shut down of the framework; an empty text if nothing.
        Called in each rank after each cell and call; it must not wait for other ranks. If a rank returns a text,
        `again` is called on all.
    around_partial_run : callable, optional
        ``(info) -> context manager``, entered in a rank around each cell and call that leaves out some of the
        pool's ranks.
    around_app : callable, optional
        ``(info) -> context manager``, entered in the agent of each node.
    decorate : callable, optional
        ``(function) -> function``, wraps each function that is called through the pool; the first
        plugin's is outermost.
    around_client : callable, optional
        ``(pool) -> context manager``, entered in the notebook for the pool's life.
    """

    name: str
    args: tuple[tuple[str, Any], ...] = ()
    after: tuple[str, ...] = field(default=(), compare=False)
    needs: tuple[str, ...] = field(default=(), compare=False)
    behind: tuple[str, ...] = field(default=(), compare=False)
    preload: tuple[str, ...] = field(default=(), compare=False)
    collective: bool = field(default=False, compare=False)
    head_bound: bool = field(default=False, compare=False)
    noise: tuple[str, ...] = field(default=(), compare=False)
    collectives: tuple[str, ...] = field(default=(), compare=False, repr=False)
    secret_variables: tuple[str, ...] = field(default=(), compare=False, repr=False)
    fits: Callable[[PoolSpec], None] | None = field(default=None, compare=False, repr=False)
    transform: Callable[[Image, PoolSpec], Image] | None = field(default=None, compare=False, repr=False)
    bootstrap: Callable[[PoolSpec], Steps] | None = field(default=None, compare=False, repr=False)
    around_process: AroundProcess | None = field(default=None, compare=False, repr=False)
    again: Callable[[InstanceInfo], None] | None = field(default=None, compare=False, repr=False)
    abort: Callable[[InstanceInfo], None] | None = field(default=None, compare=False, repr=False)
    gone: str = field(default="", compare=False, repr=False)
    check: Callable[[InstanceInfo], None] | None = field(default=None, compare=False, repr=False)
    ended: Callable[[InstanceInfo], str] | None = field(default=None, compare=False, repr=False)
    around_partial_run: AroundProcess | None = field(default=None, compare=False, repr=False)
    around_app: AroundProcess | None = field(default=None, compare=False, repr=False)
    decorate: Callable[[Callable[..., Any]], Callable[..., Any]] | None = field(default=None, compare=False, repr=False)
    around_client: Callable[[Any], AbstractContextManager[Any]] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def create(cls, name: str) -> Plugin:
        """Return a plugin with no hooks yet.

        Parameters
        ----------
        name : str
            The plugin's name in ``--plugins``.

        Returns
        -------
        Plugin
            Add hooks with its ``with_…`` methods.

        Raises
        ------
        SpecError
            When the name is not valid.
        """
        if not _NAME.match(name):
            raise SpecError(f"plugin name {name!r} is not valid; use letters, digits, _ and -")
        return cls(name)

    def with_image_transform(self, transform: Callable[[Image, PoolSpec], Image]) -> Plugin:
        """Return this plugin with a hook that changes the image.

        Parameters
        ----------
        transform : callable
            ``(image, spec) -> image``.

        Returns
        -------
        Plugin
            The new plugin.
        """
        return replace(self, transform=transform)

    def with_bootstrap(self, bootstrap: Callable[[PoolSpec], Steps]) -> Plugin:
        """Return this plugin with commands that run on each machine.

        Parameters
        ----------
        bootstrap : callable
            ``(spec) -> steps``: lists of a program and its arguments, texts for ``/bin/sh``, or `Step` values.

        Returns
        -------
        Plugin
            The new plugin.
        """
        return replace(self, bootstrap=bootstrap)

    def with_around_process(self, around: AroundProcess, again: Callable[[InstanceInfo], None] | None = None) -> Plugin:
        """Return this plugin with a hook around each rank's life.

        Parameters
        ----------
        around : callable
            ``(info) -> context manager``, entered in each rank before any user code.
        again : callable, optional
            ``(info) -> None``, sets up again, in the living process, what ``around`` had set up; called after a soft
            abort.

        Returns
        -------
        Plugin
            The new plugin.
        """
        return replace(self, around_process=around, again=again)

    def with_around_app(self, around: AroundProcess) -> Plugin:
        """Return this plugin with a hook around the life of each node's agent.

        Parameters
        ----------
        around : callable
            ``(info) -> context manager``, entered in the agent.

        Returns
        -------
        Plugin
            The new plugin.
        """
        return replace(self, around_app=around)

    def with_decorator(self, decorate: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Plugin:
        """Return this plugin with a decorator for each function that is called.

        Parameters
        ----------
        decorate : callable
            ``(function) -> function``.

        Returns
        -------
        Plugin
            The new plugin.
        """
        return replace(self, decorate=decorate)

    def with_around_client(self, around: Callable[[Any], AbstractContextManager[Any]]) -> Plugin:
        """Return this plugin with a hook in the notebook for the pool's life.

        Parameters
        ----------
        around : callable
            ``(pool) -> context manager``.

        Returns
        -------
        Plugin
            The new plugin.
        """
        return replace(self, around_client=around)

    def with_preload(self, *modules: str) -> Plugin:
        """Return this plugin with modules that the forkserver imports once for all ranks.

        Parameters
        ----------
        *modules : str
            Their names. They must start no thread and no backend when imported.

        Returns
        -------
        Plugin
            The new plugin.
        """
        return replace(self, preload=(*self.preload, *modules))

    def with_secret_variables(self, *names: str) -> Plugin:
        """Return this plugin with environment variables that hold secrets.

        Parameters
        ----------
        *names : str
            Variables of the notebook that no process of the pool inherits.

        Returns
        -------
        Plugin
            The new plugin.
        """
        return replace(self, secret_variables=(*self.secret_variables, *names))

    def transform_image(self, image: Image, spec: PoolSpec) -> Image:
        """Return an image with the plugin's additions.

        Parameters
        ----------
        image : Image
            The image so far.
        spec : PoolSpec
            The pool's description.

        Returns
        -------
        Image
            The image itself if the plugin has no such hook.
        """
        return image if self.transform is None else self.transform(image, spec)

    def __str__(self) -> str:
        inner = ", ".join(f"{key}={_written(value)}" for key, value in self.args)
        return f"{self.name}({inner})" if inner else self.name


def steps_of(plugin: Plugin, spec: PoolSpec) -> list[Step]:
    """Return the commands that a plugin runs on each machine.

    Parameters
    ----------
    plugin : Plugin
        The plugin.
    spec : PoolSpec
        The pool's description.

    Returns
    -------
    list of Step
        In order.

    Raises
    ------
    SpecError
        When the plugin's hook did not return a list of commands.
    """
    found = () if plugin.bootstrap is None else plugin.bootstrap(spec)
    if isinstance(found, str) or not all(isinstance(one, (Step, str, Sequence)) for one in found):
        raise SpecError(f"plugin {plugin.name}: bootstrap must return a list of commands, not {found!r}")
    return [one if isinstance(one, Step) else Step(one) for one in found]


def given(**arguments: Any) -> tuple[tuple[str, Any], ...]:
    """Return the arguments that are not None, for `Plugin.args`."""
    return tuple((name, value) for name, value in arguments.items() if value is not None)


def _written(value: Any) -> str:
    """Return an argument's value as text, in quotes if it has commas or brackets."""
    return repr(value) if isinstance(value, str) and re.search(r"[,()\s]", value) else str(value)
