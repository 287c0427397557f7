from __future__ import annotations
from typing_extensions import assert_type
import sky_jupyter as sky


def pools() -> None:
    with sky.Compute(provider=sky.Local(), nodes=2) as pool:
        assert_type(pool, sky.Compute)
    x = sky.shard([1, 2, 3])
    reveal_type(x)
    reveal_type(sky.shard([1], (2,)))
    reveal_type(sky.instance_info().rank)
