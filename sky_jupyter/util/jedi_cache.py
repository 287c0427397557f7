"""Protection of jedi's cache files from processes that are killed while writing."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

from .atomic_write import atomic_write


def protect() -> None:
    """Make this process write jedi's cache files atomically and skip broken ones.

    parso, which parses for jedi, writes them in place, and `parso.cache` raises for a truncated file. Then IPython
    shows no completions, in each process of this user, until the file's source changes. A version of parso that works
    differently is left unchanged. Loads parso; call it before jedi is used.
    """
    try:
        import parso.cache as cache
    except ImportError:  # IPython also works without jedi.
        return
    read = getattr(cache, "_load_from_file_system", None)
    path_of = getattr(cache, "_get_hashed_path", None)
    if read is None or path_of is None or not hasattr(cache, "_save_to_file_system") or hasattr(read, "__wrapped__"):
        return

    @functools.wraps(read)
    def load(*args: Any, **options: Any) -> Any:
        try:
            return read(*args, **options)
        except OSError:
            raise
        except Exception:  # A broken file may raise anything; the source is parsed, and the file written again.
            return None

    def save(grammar: str, path: Any, item: Any, cache_path: Any = None) -> None:
        try:
            with atomic_write(Path(path_of(grammar, path, cache_path=cache_path))) as file:
                pickle.dump(item, file, pickle.HIGHEST_PROTOCOL)
        except PermissionError:
            raise  # parso warns of it.
        except OSError:
            pass  # The disk may be full; the cache in memory works all the same.

    cache._load_from_file_system = load
    cache._save_to_file_system = save
