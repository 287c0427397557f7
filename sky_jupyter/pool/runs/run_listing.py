"""Listing of the runs that nodes know.

All nodes of a run know the same ranks and code, which would be most of each node's answer for a run of many ranks. So
only one node sends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ...node.protocol import rpc

if TYPE_CHECKING:
    from ..control.control_client import Control


async def ask(control: Control, nodes: Collection[int] | None = None) -> dict[int, dict[str, dict[str, Any]]]:
    """Return what nodes (by default all) know of their runs, as ``list_runs`` does."""
    answers: dict[int, dict[str, dict[str, Any]]] = await control.ask(rpc.LIST_RUNS, nodes, brief=True)
    tellers: dict[str, int] = {}
    for node, runs in answers.items():
        for id, facts in runs.items():
            if facts.get("brief"):
                tellers.setdefault(id, node)
    asked: dict[int, list[str]] = {}
    for id, node in tellers.items():
        asked.setdefault(node, []).append(id)
    told = await asyncio.gather(*(control.ask(rpc.LIST_RUNS, [node], runs=ids) for node, ids in asked.items()))
    whole = {id: facts["begin"] for answer in told for runs in answer.values() for id, facts in runs.items()}
    for runs in answers.values():
        for id, facts in runs.items():
            if facts.get("brief"):
                # A run that was evicted meanwhile is returned as far as it is known.
                facts["begin"] = {**whole.get(id, {}), **facts["begin"]}
    return answers
