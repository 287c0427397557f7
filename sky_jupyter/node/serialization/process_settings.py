"""Settings of a process: how each kind is read in one process and set in another.

They are read in the notebook and set in the ranks. A setting of a module is read and set only if the module is loaded:
nothing here imports one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

# matplotlib's settings that each process has for itself: window system and file paths.
_PLOTS_OWN = re.compile(
    r"(?i:backend|interactive|toolbar|timezone|datapath|savefig\.directory|docstring\.|webagg\.|tk\.|macosx\.|keymap\."
    r"|animation\.\w+_(path|args))"
)
_NUMPY = {
    "edgeitems": 3,
    "threshold": 1000,
    "floatmode": "maxprec",
    "precision": 8,
    "suppress": False,
    "linewidth": 75,
    "nanstr": "nan",
    "infstr": "inf",
    "sign": "-",
    "formatter": None,
    "legacy": False,
}
_NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
JAX = {
    "jax_enable_x64": False,
    "jax_debug_nans": False,
    "jax_debug_infs": False,
    "jax_disable_jit": False,
    "jax_default_matmul_precision": None,
    "jax_numpy_rank_promotion": "allow",
}
# Loggers of the software that runs the kernels and the pool.
_RUNTIME = re.compile(
    r"(sky_jupyter|distributed|dask|tornado|asyncio|traitlets|IPython|ipykernel|jupyter\w*|comm|concurrent|parso"
    r"|zmq|bokeh|paramiko|boto3|botocore|urllib3|kubernetes|Comm|stack_data|pytest|hypothesis)(\.|\Z)"
    # traitlets' application loggers: IPKernelApp, TerminalIPythonApp.
    r"|[A-Z]\w*App\Z"
)
# Default filters of Python and IPython.
_FILTERS = {
    ("default", "", "builtins:DeprecationWarning", "__main__", 0),
    ("ignore", "", "builtins:DeprecationWarning", "", 0),
    ("ignore", "", "builtins:PendingDeprecationWarning", "", 0),
    ("ignore", "", "builtins:ImportWarning", "", 0),
    ("ignore", "", "builtins:ResourceWarning", "", 0),
}


class NotSendable(NamedTuple):
    """Marker for a setting that cannot be sent to another process."""

    what: str


@dataclass(frozen=True)
class Family:
    """Kind of setting: how to read it, set it and name it.

    Parameters
    ----------
    module : str
        Module of the setting; empty if it is always loaded.
    read : callable
        Returns the current values by key.
    fresh : callable
        Returns the values of a new process.
    put : callable
        Sets one value; None removes it.
    line : str
        Code that sets it, with ``{key}``, for messages.
    own : re.Pattern, optional
        Keys that each process has for itself, and that are not sent.
    """

    module: str
    read: Callable[[], dict[str, Any]]
    fresh: Callable[[], dict[str, Any]]
    put: Callable[[str, Any], None]
    line: str
    own: re.Pattern[str] | None = None


# Environment variables.


def _variables() -> dict[str, Any]:
    # Decoding takes longer than everything else here: it is repeated only after a change.
    raw = getattr(os.environ, "_data", None)
    if raw is None or raw != _environment["raw"]:
        _environment.update(raw=dict(raw or {}), read=dict(os.environ))
    return _environment["read"]


_environment: dict[str, dict[Any, Any]] = {"raw": {}, "read": {}}


def _put_variable(name: str, value: Any) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


# matplotlib.


def _plots(attribute: str) -> dict[str, Any]:
    options = getattr(sys.modules["matplotlib"], attribute)
    # `rcParams[...]` may select a backend.
    return dict(dict.items(options))


def _put_plots(key: str, value: Any) -> None:
    sys.modules["matplotlib"].rcParams[key] = value


# pandas.


def _tables() -> dict[str, Any]:
    found: dict[str, Any] = {}
    stack: list[tuple[str, Mapping[str, Any]]] = [("", sys.modules["pandas._config.config"]._global_config)]
    while stack:
        before, options = stack.pop()
        for key, value in options.items():
            if isinstance(value, dict):
                stack.append((f"{before}{key}.", value))
            else:
                found[before + key] = value
    return found


def _fresh_tables() -> dict[str, Any]:
    known = sys.modules["pandas._config.config"]._registered_options
    return {key: option.defval for key, option in known.items()}


def _put_tables(key: str, value: Any) -> None:
    sys.modules["pandas"].set_option(key, value)


# numpy.


def _arrays() -> dict[str, Any]:
    options = sys.modules["numpy"].get_printoptions()
    return {key: options.get(key) for key in _NUMPY}


def _put_arrays(key: str, value: Any) -> None:
    sys.modules["numpy"].set_printoptions(**{key: value})


def _put_array_errors(key: str, value: Any) -> None:
    sys.modules["numpy"].seterr(**{key: value})


# torch and JAX.


def _tensors() -> dict[str, Any]:
    return {"default_dtype": str(sys.modules["torch"].get_default_dtype()).rpartition(".")[2]}


def _put_tensors(key: str, value: Any) -> None:
    torch: Any = sys.modules["torch"]
    torch.set_default_dtype(getattr(torch, value))


def _jax() -> dict[str, Any]:
    config = sys.modules["jax"].config
    return {name: getattr(config, name) for name in JAX}


def _fresh_jax() -> dict[str, Any]:
    given = {name: os.environ.get(name.upper()) for name in JAX}
    return {
        name: usual
        if (text := given[name]) is None
        else text.lower() in ("1", "true", "yes", "on", "t", "y")
        if isinstance(usual, bool)
        else text
        for name, usual in JAX.items()
    }


def _put_jax(key: str, value: Any) -> None:
    sys.modules["jax"].config.update(key, value)


# Warnings: the filters are one list, and its order matters.


def _filters() -> dict[str, Any]:
    # Filters are tuples: the same ones give the same result. This runs with each call.
    raw = list(warnings.filters)
    if raw != _filters_read["raw"]:
        _filters_read.update(raw=raw, found=_read_filters(raw))
    return {"": _filters_read["found"]}


_filters_read: dict[str, list[Any]] = {"raw": [], "found": []}


def _read_filters(filters: Iterable[Any]) -> list[Any]:
    found = []
    for action, message, category, module, line in filters:
        if isinstance(category, type) and category.__module__ != "__main__":
            named = f"{category.__module__}:{category.__qualname__}"
            one = action, _pattern(message), named, _pattern(module), line
            if one not in _FILTERS:
                found.append(one)
    return found


def _pattern(one: Any) -> str:
    """Return a filter's regular expression as text; "" for none."""
    return str(getattr(one, "pattern", one) or "")


def _put_filters(_: str, value: Any) -> None:
    """Put the notebook's filters first, in place of its former ones."""
    wanted = [one for one in map(_filter, value or ()) if one is not None]
    before, _filters_put[:] = list(_filters_put), wanted
    kept = [one for one in before if one in wanted]
    # Unchanged filters stay behind those that a cell has added since; if their order has changed, all are added again.
    fresh = wanted[: len(wanted) - len(kept)] if wanted[len(wanted) - len(kept) :] == kept else wanted
    gone = [one for one in before if one not in wanted]
    filters: Any = warnings.filters
    filters[:] = [*fresh, *(one for one in filters if one not in fresh and one not in gone)]
    with warnings.catch_warnings():
        """Entering resets Python's cache of the former filters."""


_filters_put: list[Any] = []


def homes(filters: Any) -> set[str]:
    """Return the modules of the warning classes in filters."""
    return {one[2].partition(":")[0] for one in filters or ()}


def _filter(one: Any) -> Any:
    """Build a filter for this process; None if its warning class is not loaded."""
    action, message, named, module, line = one
    home, _, name = named.partition(":")
    category: Any = sys.modules.get(home)
    for part in name.split("."):
        category = getattr(category, part, None)
    if not isinstance(category, type):
        return None
    patterns = (re.compile(message, re.IGNORECASE) if message else None), (re.compile(module) if module else None)
    return action, patterns[0], category, patterns[1], line


# Loggers: level, propagate, disabled, and handlers that write to a standard stream.

_USUAL = (logging.NOTSET, True, False)


class _StandardHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler from the notebook that writes to the current standard stream."""

    def __init__(self, logger: logging.Logger, name: str, level: int, text: str, dates: str | None) -> None:
        logging.Handler.__init__(self, level)
        self.logger, self.which = logger, name
        self.setFormatter(logging.Formatter(text, dates))

    @property
    def stream(self) -> Any:
        return getattr(sys, self.which)

    def emit(self, record: logging.LogRecord) -> None:
        # A cell or a library may have added a handler here too: avoid duplicate output.
        stream = self.stream
        others = (one for one in self.logger.handlers if not isinstance(one, _StandardHandler))
        if not any(getattr(one, "stream", None) is stream for one in others):
            super().emit(record)


def _loggers() -> dict[str, Any]:
    root = logging.getLogger()
    found = {"": (root.level, True, False, *_handlers(root))}
    # Most loggers are unchanged, and are skipped here: this runs with each call.
    set_here = [
        (name, one)
        for name, one in list(root.manager.loggerDict.items())
        if isinstance(one, logging.Logger) and (one.level or one.handlers or not one.propagate or one.disabled)
    ]
    for name, one in set_here:
        if not _is_runtime(name):
            # A library adds its own handlers when it is imported.
            is_library = (top := name.partition(".")[0]) in sys.modules and top != "__main__"
            more = (True, False) if is_library else (one.propagate, one.disabled, *_handlers(one))
            if (state := (one.level, *more)) != _USUAL:
                found[name] = state
    return found


@functools.cache
def _is_runtime(name: str) -> bool:
    return _RUNTIME.match(name) is not None


def _handlers(logger: logging.Logger) -> list[Any]:
    return [_handler(one) for one in logger.handlers if not isinstance(one, logging.NullHandler)]


def _handler(one: logging.Handler) -> Any:
    kind = type(one)
    form = one.formatter or logging.Formatter()
    style = getattr(form, "_style", None)
    which = next((n for n in ("stderr", "stdout") if getattr(one, "stream", None) is getattr(sys, n)), "")
    plain = kind is logging.StreamHandler and type(form) is logging.Formatter and not one.filters
    if plain and which and type(style) is logging.PercentStyle:
        return which, one.level, style._fmt, form.datefmt
    return NotSendable(f"{kind.__module__}.{kind.__qualname__}")


def _put_logger(name: str, value: Any) -> None:
    logger = logging.getLogger(name or None)
    level, propagate, disabled, *handlers = value or _USUAL
    logger.setLevel(level)
    top = name.partition(".")[0]
    if top == "__main__" or top not in sys.modules:
        logger.propagate, logger.disabled = propagate, disabled
    for one in [one for one in logger.handlers if isinstance(one, _StandardHandler)]:
        logger.removeHandler(one)
    for which, its, text, dates in handlers:
        logger.addHandler(_StandardHandler(logger, which, its, text, dates))


FAMILIES = {
    "env": Family("", _variables, dict, _put_variable, "os.environ[{key!r}]"),
    "warnings": Family("", _filters, lambda: {"": []}, _put_filters, "warnings.filterwarnings"),
    "logging": Family(
        "", _loggers, lambda: {"": (logging.WARNING, True, False)}, _put_logger, "logging.getLogger({key!r})"
    ),
    "matplotlib": Family(
        "matplotlib",
        lambda: _plots("rcParams"),
        lambda: _plots("rcParamsOrig"),
        _put_plots,
        "plt.rcParams[{key!r}]",
        _PLOTS_OWN,
    ),
    "pandas": Family("pandas", _tables, _fresh_tables, _put_tables, "pd.set_option({key!r}, …)"),
    "numpy": Family("numpy", _arrays, lambda: dict(_NUMPY), _put_arrays, "np.set_printoptions({key}=…)"),
    "numpy errors": Family(
        "numpy",
        lambda: dict(sys.modules["numpy"].geterr()),
        lambda: dict(_NUMPY_ERRORS),
        _put_array_errors,
        "np.seterr({key}=…)",
    ),
    "torch": Family("torch", _tensors, lambda: {"default_dtype": "float32"}, _put_tensors, "torch.set_default_dtype"),
    "jax": Family("jax", _jax, _fresh_jax, _put_jax, "jax.config.update({key!r}, …)"),
}


def read(kinds: Iterable[str] = FAMILIES) -> dict[str, dict[str, Any]]:
    """Return the current values of each kind whose module is loaded, by kind.

    Parameters
    ----------
    kinds : iterable of str
        Kinds of settings, by default all.

    Returns
    -------
    dict
        Kind -> key -> value. A kind is missing if it cannot be read: a library of another version, or one that is being
        imported, must not keep a cell from running.
    """
    found: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        family = FAMILIES[kind]
        if not family.module or family.module in sys.modules:
            with contextlib.suppress(Exception):
                found[kind] = family.read()
    return found
