"""Lines that start a local pool: its host starts while the package is imported.

Only the words are looked at here: what is wrong with them is said later, and the host is ended then.
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
        What stands behind ``%sky`` or ``%%sky``.
    is_cell : bool
        Whether a cell follows.

    Returns
    -------
    bool
        What the words say; the line may still be refused, or take up a pool that is there.
    """
    words = line.split()
    if not is_cell:
        if words[:1] != ["up"]:
            return False
        del words[0]
    flags = [word.partition("=")[0] for word in words if word.startswith("-")]
    # A cell whose first word is no option has a verb.
    return not (words and not words[0].startswith("-")) and _HERE.issuperset(flags)
