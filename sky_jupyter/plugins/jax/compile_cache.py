"""Cache of what JAX compiles, kept on the machine for later pools.

JAX's own cache decides what is cached, and under which key. This module only replaces how its files are read and
written. JAX writes files in place: a killed rank or a full disk leaves an incomplete file, of which every later start
warns. To limit the cache's size, JAX also locks each read, and needs a package that it does not install.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...util.atomic_write import atomic_write
from ..core import rank_resources

if TYPE_CHECKING:
    from ...node.runtime.instance_info import InstanceInfo

FOLDER = "jax"
# If the user has set one of these, JAX's own cache is used as it is.
OWN = ("JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE")
# By default JAX caches programs that took a second to compile; the many small programs of a start take less.
THRESHOLDS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
BYTES = 2 * 1024**3
FILES = 20_000
_SUFFIX = "-cache"
_PART = ".part-"
# Number of puts between two checks of the total size.
_EVERY = 200
_STALE = 3600.0
_WRITE = ("cache_key", "compile_time_secs", "module_name", "backend", "executable", "host_callbacks")

log = logging.getLogger(__name__)


class Kept:
    """Folder of compiled programs, as JAX's `CacheInterface`; processes may share it.

    Parameters
    ----------
    path : Path
        The folder.
    valid : callable
        Raises if the bytes of a file are incomplete.
    most : int
        Maximum bytes of all files; the least recently used are evicted.
    files : int
        Maximum number of files.
    """

    def __init__(
        self, path: Path, valid: Callable[[bytes], object] = len, most: int = BYTES, files: int = FILES
    ) -> None:
        self.path = self._path = path
        self._valid, self._most, self._files = valid, most, files
        self._puts = 0

    def get(self, key: str) -> bytes | None:
        """Return the value cached under a key; None if there is none."""
        file = self.path / f"{key}{_SUFFIX}"
        try:
            value = file.read_bytes()
            self._valid(value)
        except OSError:
            return None
        except Exception:
            # A user's process was killed while JAX wrote the file.
            file.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Cache a value; do nothing if that fails, as on a full disk."""
        file = self.path / f"{key}{_SUFFIX}"
        if len(value) > self._most or file.exists():
            return
        try:
            # (`%sky clean` may have removed it meanwhile.)
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic_write(file, prefix=_PART) as out:
                out.write(value)
        except OSError as error:
            log.info("what JAX compiled is not kept: %s", error)
        if self._puts % _EVERY == 0:
            self.prune()
        self._puts += 1

    def prune(self) -> None:
        """Evict the least recently used files beyond the limits, and old partial ones."""
        found = sorted(self._all())
        size, count = sum(size for _, size, _ in found), len(found)
        for used, taken, file in found:
            half = file.name.startswith(_PART) and used < time.time() - _STALE
            if size > self._most or count > self._files or half:
                file.unlink(missing_ok=True)
                size, count = size - taken, count - 1

    def _all(self) -> Iterator[tuple[float, int, Path]]:
        """Yield each file's last use, bytes and path, XLA's own in subfolders too."""
        for root, _, names in os.walk(self.path):
            for name in names:
                file = Path(root, name)
                with contextlib.suppress(OSError):
                    about = file.stat()
                    yield about.st_mtime, about.st_size, file


def install(info: InstanceInfo) -> None:
    """Cache what this rank compiles, unless the user has configured JAX's cache."""
    import jax

    if any(name in os.environ for name in OWN) or getattr(jax.config, "jax_compilation_cache_dir", None):
        return
    if info.accelerators and len(set(info.peers)) > 1:
        # If one machine's ranks find a program in the cache while another's compile it, they wait for each other: on
        # GPUs, XLA distributes its trials over all ranks.
        return
    path = rank_resources.kept_folder(f"{FOLDER}-{_processor()}")
    if path is None:
        return
    try:
        _install(path)
    except (ImportError, AttributeError, TypeError) as error:
        log.warning("this release of JAX keeps what it compiles in another way, and nothing is kept: %s", error)
        return
    for name, value in THRESHOLDS.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
            os.environ[name.upper()] = str(value)
    jax.config.update("jax_compilation_cache_dir", str(path))
    # For processes that a cell starts.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(path)


def _install(path: Path) -> None:
    """Make JAX use `Kept` for this folder, and every rank write there.

    Raise ImportError, AttributeError or TypeError if this release of JAX has changed.
    """
    from jax._src import compilation_cache, compiler, distributed

    others, write = compilation_cache.get_file_cache, compiler._cache_write
    put, valid = compilation_cache.put_executable_and_time, compilation_cache.decompress_executable
    if tuple(inspect.signature(write).parameters) != _WRITE:
        raise TypeError(f"_cache_write{inspect.signature(write)}")

    def get_file_cache(asked: str) -> Any:
        return (_Chosen(Kept(path, valid), others), asked) if asked == str(path) else others(asked)

    def cache_write(key: str, seconds: float, name: str, backend: Any, executable: Any, callbacks: Any) -> None:
        if distributed.global_state.process_id == 0 or backend.platform != "cpu":
            # On GPUs all ranks have the same keys: the first rank writes for all.
            write(key, seconds, name, backend, executable, callbacks)
        elif not callbacks:
            # JAX lets only the first process write, but other ranks may have programs of their own, or another disk.
            with contextlib.suppress(Exception):
                put(key, name, executable, backend, int(seconds))

    compilation_cache.get_file_cache = get_file_cache
    compiler._cache_write = cache_write


class _Chosen:
    """Cache that follows a cell's change of JAX's cache folder; JAX would ignore it."""

    def __init__(self, kept: Kept, others: Callable[[str], Any]) -> None:
        self._kept, self._others, self._path = kept, others, kept._path
        self._made: dict[str, Any] = {}

    def get(self, key: str) -> bytes | None:
        """Return the value cached under a key; None if there is none."""
        cache = self._now()
        return None if cache is None else cache.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Cache a value."""
        cache = self._now()
        if cache is not None:
            cache.put(key, value)

    def _now(self) -> Any:
        import jax

        asked = jax.config.jax_compilation_cache_dir
        if not asked or asked == str(self._kept.path):
            return self._kept if asked else None
        if asked not in self._made:
            self._made[asked] = self._others(asked)[0]
        return self._made[asked]


def _processor() -> str:
    """Return a hash of this processor's kind.

    Machines that share a home folder may have different processors, and code compiled for one may not run on another.
    """
    words = [platform.machine()]
    with contextlib.suppress(OSError):
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
        words += [line for line in first.splitlines() if line.startswith(("model name", "flags", "Features", "CPU "))]
    return hashlib.blake2b("\n".join(words).encode(), digest_size=6).hexdigest()
