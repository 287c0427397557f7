"""Lines that start a local pool: its host starts while the package is imported.

Only the words are looked at here. Errors in them are reported later, and the host is ended then.
"""

from __future__ import annotations

# Options that leave a pool on this machine, in the notebook's own environment.
_HERE = {
    *("--nodes", "--ranks-per-node", "--plugins", "--name", "--exit-timeout", "--journal", "--blob-limit", "--yes"),
    *("--on", "--only", "--out", "--timeout", "--grace", "--push", "--shard", "--no-capture", "--include", "--saved"),
    *("--timings", "--quiet"),
}


def is_local_start(line: str, *, is_cell: bool) -> bool:
    """Return whether a line, by its words, starts a local pool where there is none.

    Parameters
    ----------
    line : str
        The text after ``%sky`` or ``%%sky``.
    is_cell : bool
        Whether a cell follows.

    Returns
    -------
    bool
        True if the words say so; the line may still be refused, or attach to an existing pool.
    """
    words = line.split()
    if not is_cell:
        if words[:1] != ["up"]:
            return False
        del words[0]
    flags = [word.partition("=")[0] for word in words if word.startswith("-")]
    # A cell whose first word is no option has a verb.
    return not (words and not words[0].startswith("-")) and _HERE.issuperset(flags)
