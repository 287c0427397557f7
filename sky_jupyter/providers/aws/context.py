"""Protocol of the provider, as the modules that call AWS see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .clients import Clients


class AWSContext(Protocol):
    """Provider as its parts see it; `AWS` documents its clients and options."""

    @property
    def clients(self) -> Clients: ...

    @property
    def profile(self) -> str | None: ...

    @property
    def region(self) -> str | None: ...

    @property
    def regions(self) -> tuple[str, ...]: ...

    @property
    def instance_type(self) -> str | None: ...

    @property
    def subnet(self) -> str | None: ...

    @property
    def ami(self) -> str | None: ...

    @property
    def disk_gb(self) -> int | None: ...

    @property
    def iam_instance_profile(self) -> str | None: ...

    @property
    def reservation(self) -> str | None: ...

    @property
    def ssh_from(self) -> str | None: ...

    @property
    def jump(self) -> str | None: ...
