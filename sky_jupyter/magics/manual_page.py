"""The manual page that ``%%sky?`` shows, made from the table of options."""

from __future__ import annotations

from .option_table import CELL, CELL_SWITCHES, CONFIG, NAME, POOL, POOL_SWITCHES, VERBS, Option, Switch, targets_text


def _rows(*items: Option | Switch) -> str:
    return "\n".join(
        f"  {f'{item.flag} {item.metavar}' if isinstance(item, Option) else item.flag:28} {item.help}" for item in items
    )


def _verbs() -> str:
    return "\n".join(f"  {f'{verb} {targets_text(verb)}'.strip():28} {text}" for verb, text in VERBS.items())


MANUAL = f"""Run the cell on every rank of a pool of nodes.

::

  %%sky [pool options] [cell options]
  CODE

The names that the cell reads are sent from the notebook where it has them; what the cell assigns
stays on the nodes for the next cell, and the last writer of a name wins. What each rank prints and
returns is shown below the cell; ``_sky`` holds the values (``_sky.values``, ``_sky[0]``,
``_sky.stdout(1)``).

Pool options (the first cell makes the pool; later ones need none)
{_rows(*POOL, *POOL_SWITCHES, NAME, CONFIG)}

Cell options
{_rows(*CELL, *CELL_SWITCHES)}

``%sky VERB`` looks after the pools
{_verbs()}

Examples::

  %%sky --nodes 2 --plugins jax,keras
  import jax
  jax.device_count()

  %%sky --shard x,y
  model.fit(x, y)

  %%sky --on head --out first
  sum(data)

  %sky auto --on head
  %sky auto off

  %sky up --nodes 2 --ranks-per-node 2 --plugins torch --name trainers
  %sky down --all

  %sky up --nodes 4 --plugins jax --name night --keep --idle-timeout 30m
  %%sky --name night --detach --out losses
  train(data)

  %sky offers --accelerator A100:8 --spot
  %%sky --provider aws --accelerator A100:8 --nodes 2 --spot --plugins jax,keras
  model.fit(x, y)

  %sky run train.py --epochs 3
  %sky torchrun --nproc-per-node 4 --detach train.py --epochs 3

  %sky resize 3 --name night
  %sky resize --add gpu4 --remove 2

  %sky attach night
  %sky wait
  %sky logs 3f9a2c1b --rank 0-1
  %sky logs --to printed/
  %sky logs --pod 2 --previous

  %sky exec -- nvidia-smi
  %sky exec --on 0 --detach -- python -m http.server 8000 --bind localhost

  %sky put data/train.parquet
  %sky get checkpoints results/ --on 0,2

  %sky copy --to 2
  %sky copy model,step --from 0 --to 1-3

  %sky pull model --on head
  %sky pull losses --stack --as all_losses
"""
