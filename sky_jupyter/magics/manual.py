"""The manual page that ``%%sky?`` shows, made from the table of options."""

from __future__ import annotations

from .options import CELL, CONFIG, NAME, POOL, QUIET, VERBS, Option


def _rows(options: tuple[Option, ...]) -> str:
    return "\n".join(f"  {option.flag + ' ' + option.metavar:28} {option.help}" for option in options)


MANUAL = f"""Run the cell on every rank of a pool of nodes.

::

  %%sky [pool options] [cell options]
  CODE

The names that the cell reads are sent from the notebook where it has them; what the cell assigns
stays on the nodes for the next cell, and the last writer of a name wins. What each rank prints and
returns is shown below the cell; ``_sky`` holds the values (``_sky.values``, ``_sky[0]``,
``_sky.stdout(1)``).

Pool options (the first cell makes the pool; later ones need none)
{_rows((*POOL, NAME, CONFIG))}

Cell options
{_rows(CELL)}
  {QUIET:28} show only errors

``%sky VERB`` looks after the pools
{chr(10).join(f"  {verb:28} {text}" for verb, text in VERBS.items())}

Examples::

  %%sky --nodes 2 --plugins jax,keras
  import jax
  jax.device_count()

  %%sky --on head --out first
  sum(data)

  %sky up --nodes 2 --ranks-per-node 2 --plugins torch --name trainers
  %sky down --all
"""
