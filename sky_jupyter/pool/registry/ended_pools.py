"""Ended remote pools, whose cells must not run on this machine instead."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...spec.options import DEFAULT_EXIT_TIMEOUT
from ...spec.pool_spec import DEFAULT_JOURNAL, PoolSpec
from ...util.redaction import without_secrets

if TYPE_CHECKING:
    from ...providers.line_options import LineOption


@dataclass(frozen=True)
class Gone:
    """Remote pool that has ended, or was never ready.

    Parameters
    ----------
    name : str
        Name of the pool.
    text : str
        Its machines, and what has happened to it.
    again : str
        The magic line that makes it again.
    """

    name: str
    text: str
    again: str

    @classmethod
    def of(cls, spec: PoolSpec, what: str) -> Gone:
        """Describe a pool; ``what`` is a verb phrase such as "was ended"."""
        return cls(spec.name, f"pool {spec.name!r} on {spec.provider} {what}", line(spec))

    def refusal(self, cell: str, others: tuple[str, ...] = ()) -> str:
        """Return a message on why nothing runs, and what to do.

        ``cell`` is the magic line that runs the cell on this machine, such as ``"%%sky --provider local"``;
        ``others`` are the names of live pools.
        """
        use = f", `--name {others[0]}` uses a running one ({', '.join(others)})" if others else ""
        words = {"start": "starts it again", "join": "joins it once it is running"}
        makes = words.get(self.again.split()[1], "recreates it")
        return f"{self.text}. `{self.again}` {makes}{use}, and `{cell}` uses this machine"


# Fields of providers that are options of a line.
_OF_PROVIDERS = (
    *("user", "port", "jump", "profile", "region", "regions", "instance_type", "subnet", "ami"),
    *("iam_instance_profile", "reservation", "ssh_from"),
)

# What the machines may cost, and must have.
_LIMITS = ("max_cost", "max_hourly_cost", "vcpus", "memory_gb", "disk_gb")


def line(spec: PoolSpec) -> str:
    """Return the magic line that makes such a pool, without secrets."""
    return " ".join(["%sky", "up", *_words(_given(spec)), *_switches(spec)])


def changes(old: PoolSpec, new: PoolSpec) -> str:
    """Return the options of ``new`` that ``old`` lacks, without secrets."""
    before, switched = _given(old), _switches(old)
    words = _words({name: value for name, value in _given(new).items() if before.get(name) != value})
    return " ".join([*words, *(word for word in _switches(new) if word not in switched)])


def _given(spec: PoolSpec) -> dict[str, object]:
    """Return the options of a pool, by name."""
    provider, image = spec.provider, spec.image
    given: dict[str, object] = {"provider": provider.kind}
    if spec.name != "default":
        given["name"] = spec.name
    if hosts := getattr(provider, "hosts", ()):
        given["hosts"] = ",".join(hosts)
        given["key"] = ",".join(getattr(provider, "key", ()))
    for name in dict.fromkeys((*_OF_PROVIDERS, *(key for key, one in _declared(provider) if one.metavar))):
        value = getattr(provider, name, None)
        # The class attribute is the field's default.
        if value and value != getattr(type(provider), name, None):
            given[name.replace("_", "-")] = _text(value)
    given["region"] = spec.region or given.get("region")
    given["allocation"] = spec.allocation
    if spec.nodes != (len(hosts) or 1):
        given["nodes"] = spec.nodes
    if spec.ranks_per_node > 1:
        given["ranks-per-node"] = spec.ranks_per_node
    given["plugins"] = ",".join(map(str, spec.plugins))
    given["accelerator"] = spec.accelerator
    given["pip"] = ",".join(map(without_secrets, image.pip))
    given["python"] = image.python
    given["env"] = ",".join(f"{name}=…" for name in image.env)
    given["idle-timeout"] = _seconds(spec.idle_timeout)
    given["ttl"] = _seconds(spec.ttl)
    for name in _LIMITS:
        limit = getattr(spec, name)
        given[name.replace("_", "-")] = None if limit is None else f"{limit:.15g}"
    exit_timeout = spec.options.exit_timeout
    given["exit-timeout"] = _seconds(exit_timeout) if exit_timeout != DEFAULT_EXIT_TIMEOUT else None
    given["journal"] = spec.journal if spec.journal != DEFAULT_JOURNAL else None
    given["blob-limit"] = spec.blob_limit
    return {name: value for name, value in given.items() if value is not None and value != ""}


def _switches(spec: PoolSpec) -> list[str]:
    provider = spec.provider
    accepted = getattr(provider, "accept_host_keys", False) is True
    switches = {"accept-host-keys": accepted, "offline": provider.offline, "keep": spec.keep}
    switches["no-cluster"] = not spec.options.cluster
    switches |= {key: getattr(provider, key) is True for key, one in _declared(provider) if not one.metavar}
    return [f"--{name}" for name, on in switches.items() if on]


def _text(value: object) -> str:
    """Return a provider's field as its option takes it: joined by commas or spaces."""
    if not isinstance(value, tuple):
        return str(value)
    texts = ["=".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in value]
    return (" " if any(one.startswith("-") for one in texts) else ",").join(texts)


def _declared(provider: object) -> list[tuple[str, LineOption]]:
    """Return the options that a provider's class declares for the line."""
    return list(getattr(provider, "line_options", {}).items())


def _words(given: Mapping[str, object]) -> list[str]:
    texts = [(f"--{name}", str(value)) for name, value in given.items()]
    # A value that looks like an option is joined to its option.
    pairs = [[f"{name}={text}"] if text.startswith("-") else [name, text] for name, text in texts]
    return [shlex.quote(word) for pair in pairs for word in pair]


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:g}s"
