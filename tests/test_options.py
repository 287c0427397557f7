"""What `Options`, `Worker`, and what is asked of machines refuse, whoever makes them."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import PoolSpec


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"selection": "cheap"}, r"selection must be one of 'first', 'cheapest', not 'cheap'; did you mean 'cheapest'"),
        ({"provision_timeout": 0}, "provision_timeout must be a number of seconds above 0, at most a year, not 0"),
        ({"ssh_timeout": float("inf")}, "ssh_timeout must be"),
        ({"bootstrap_timeout": True}, "bootstrap_timeout must be"),
        ({"shutdown_timeout": "1m"}, "shutdown_timeout must be"),
        ({"provision_retry_delay": -1}, "provision_retry_delay must be a number of seconds 0 or more"),
        ({"max_provision_attempts": 0}, "max_provision_attempts must be a whole number from 1"),
        ({"retry_on_interruption": 1.5}, "retry_on_interruption must be a whole number from 0"),
        ({"console": 1}, "console must be True or False, not 1"),
        ({"cluster": None}, "cluster must be True or False"),
        ({"worker": 4}, r"worker must be sky.Worker\(concurrency=…\), not 4"),
        ({"logging": "LOUD"}, "logging must be True, False, a level such as 'INFO', or a LogConfig, not 'LOUD'"),
        ({"logging": None}, "logging must be"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(sky.SpecError, match=told):
        sky.Options(**fields)


def test_a_pool_is_tried_once_where_its_machines_are_there() -> None:
    assert sky.Options().attempts(made=True) == 3
    assert sky.Options().attempts(made=False) == 1
    assert sky.Options(max_provision_attempts=5).attempts(made=False) == 5
    assert sky.Options(provision_retry_delay=0, retry_on_interruption=0).provision_retry_delay == 0


def test_levels_are_the_standard_librarys() -> None:
    assert sky.Options(logging="debug").logging == logging.DEBUG
    assert sky.Options(logging=False).logging is False
    assert sky.LogConfig("warning").level == logging.WARNING
    with pytest.raises(sky.SpecError, match="file must be the path"):
        sky.LogConfig(file="")


def test_a_workers_slots_are_the_ranks_of_a_node() -> None:
    options = sky.Options(worker=sky.Worker(concurrency=3, executor="thread"))
    assert sky.Compute(nodes=2, options=options).spec.world_size == 6
    assert sky.Compute(ranks_per_node=3, options=options).spec.ranks_per_node == 3
    with pytest.raises(sky.SpecError, match=r"ranks_per_node=2 and Worker\(concurrency=3\) say the same thing"):
        sky.Compute(ranks_per_node=2, options=options)
    with pytest.raises(sky.SpecError, match="executor must be one of"):
        sky.Worker(executor="fork")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"options": {"cluster": False}}, r"options must be sky.Options\(…\)"),
        ({"region": ""}, "region must be a name such as 'us-east-1', not ''"),
        ({"allocation": "spott"}, "allocation must be one of spot, on-demand.*did you mean 'spot'"),
        ({"max_hourly_cost": 0}, "max_hourly_cost must be a number above 0"),
        ({"memory_gb": "16"}, "memory_gb must be a number above 0"),
        ({"disk_gb": -1}, "disk_gb must be a number above 0"),
        ({"ttl": -1}, "ttl must be a number of seconds above 0"),
        ({"ttl": float("nan")}, "ttl must be"),
    ],
)
def test_what_machines_cannot_be_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(sky.SpecError, match=told):
        PoolSpec(provider=Local(), **fields)
    with pytest.raises(sky.SpecError, match=told):
        sky.Compute(**fields)


def test_what_has_no_meaning_for_machines_that_are_there_is_known() -> None:
    spec = sky.Compute(
        region="eu-west-1", allocation="spot", max_hourly_cost=2, vcpus=4, memory_gb=16, disk_gb=200, ttl="2h"
    ).spec
    assert spec.ignored == ("region", "allocation", "max_hourly_cost", "vcpus", "memory_gb", "disk_gb")
    assert (spec.region, spec.allocation, spec.ttl) == ("eu-west-1", "spot", 7200.0)
    assert sky.Compute(allocation="spot_if_available").spec.allocation == "spot-if-available"
    assert sky.Compute(ttl=0).spec.ttl is None
    assert sky.Compute().spec.ignored == ()


@pytest.mark.parametrize("plugin", [sky.plugins.jax(), sky.plugins.torch(), "keras"])
def test_a_plugin_that_needs_the_others_refuses_nodes_that_stand_alone(plugin: Any) -> None:
    plugins = ["jax", "keras"] if plugin == "keras" else [plugin]
    alone = sky.Options(cluster=False)
    with pytest.raises(sky.SpecError, match=r"each rank is a world of its own, and .*leave cluster=False out"):
        sky.Compute(nodes=2, plugins=plugins, options=alone)
    assert sky.Compute(nodes=1, plugins=plugins, options=alone).spec.world_size == 1


def test_pools_differ_in_whether_nodes_work_together_and_not_in_how_they_are_watched() -> None:
    spec = PoolSpec(provider=Local())
    watched = PoolSpec(provider=Local(), options=sky.Options(console=False, ssh_timeout=5))
    alone = PoolSpec(provider=Local(), options=sky.Options(cluster=False))
    assert spec.differences(watched) == []
    assert spec.differences(alone) == ["options: together -> each node for itself (cluster=False)"]


def test_options_travel() -> None:
    options = sky.Options(logging=sky.LogConfig(file="x.log"), worker=sky.Worker(2))
    assert pickle.loads(pickle.dumps(options)) == options
