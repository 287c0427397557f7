#!/usr/bin/env python3
"""Write `catalog.json` of the AWS provider: instance types and list prices, as AWS tells them.

It needs the credentials of an AWS account, and changes nothing there. It takes the region and the families without
accelerators from the present file, and all families with accelerators that the provider's images support.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sky_jupyter import AWS  # noqa: E402
from sky_jupyter.providers.aws import instance_type_catalog, offers, prices  # noqa: E402
from sky_jupyter.providers.aws.instance_type_catalog import InstanceType  # noqa: E402

FILE = ROOT / "sky_jupyter" / "providers" / "aws" / "catalog.json"
HEADS = ("columns", "sources", "priced", "region")
# Types whose prices are asked for at a time.
AT_ONCE = 16


def text(aws: AWS, day: str) -> str:
    """Return the file's new content, a family a line; raise SystemExit if prices cannot be asked for."""
    old = instance_type_catalog.catalogue()
    there = instance_type_catalog.available(aws.clients, old["region"])
    kept = {name: one for name, one in there.items() if not one.is_metal and offers.is_supported(one)}
    listed: dict[str, float] = {}
    names = sorted(kept)
    for start in range(0, len(names), AT_ONCE):
        found = prices.listed(aws.clients, names[start : start + AT_ONCE], old["region"])
        listed |= {name: price for name, (price, said) in found.items() if not said.endswith(old["region"])}
    if not listed:
        raise SystemExit("AWS tells no list prices: is pricing:GetProducts allowed?")
    heads = {"columns": old["columns"], "sources": "AWS's API", "priced": day, "region": old["region"]}
    lines = [f"  {json.dumps(name)}: {json.dumps(heads[name])}," for name in HEADS]
    families = {name.partition(".")[0]: _family(name.partition(".")[0], kept, listed) for name in names}
    rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in families.items())
    return "\n".join(["{", *lines, '  "families": {', rows, "  }", "}", ""])


def _family(family: str, kept: Mapping[str, InstanceType], listed: Mapping[str, float]) -> dict[str, Any]:
    sizes = sorted((one for name, one in kept.items() if name.partition(".")[0] == family), key=lambda one: one.vcpus)
    about = {"accelerator": sizes[0].accelerator, "arch": "" if sizes[0].arch == "x86_64" else sizes[0].arch}
    rows = {
        one.name.partition(".")[2]: [one.vcpus, _short(one.memory_gb), one.count, listed.get(one.name)] for one in sizes
    }
    return {**{key: value for key, value in about.items() if value}, "sizes": rows}


def _short(number: float) -> float:
    return int(number) if number == int(number) else number


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SKY_ANSWER_CACHE"] = cache
        FILE.write_text(text(AWS(), time.strftime("%Y-%m-%d")), encoding="utf-8")
