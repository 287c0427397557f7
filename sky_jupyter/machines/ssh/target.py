"""SSH target: a host and how to connect to it; see `resolve_target`."""

from __future__ import annotations

from dataclasses import dataclass, field

PORT = 22
DEFAULT_TIMEOUT = 15.0


@dataclass(frozen=True)
class Target:
    """Host and all that is needed to connect to it; see `resolve_target.resolve`.

    Attributes
    ----------
    name : str
        Name in messages, as the user gave it.
    host, port, user
        Host name, port and user to log in with.
    keys, certificates : tuple of str
        Files to log in with; without keys, OpenSSH's default ones.
    identities_only : bool
        True to skip the agent's other keys.
    agent : str, optional
        The agent's socket; ``SSH_AUTH_SOCK`` stands for that variable's value, None for no agent.
    jump : Target, optional
        The jump host.
    proxy_command : str, optional
        The command whose input and output are the connection.
    known_hosts : tuple of str
        Files with host keys; new keys are added to the first.
    system_known_hosts : tuple of str
        Further files, read only.
    host_key_alias : str, optional
        Name of the host in these files, as HostKeyAlias; by default `host_key_name` makes one.
    strict : str
        ``ask``, ``yes`` or ``accept-new``, as StrictHostKeyChecking.
    hash_known_hosts : bool
        Whether new host keys are added under a hashed name.
    timeout : float
        Seconds for the connection to be made, as ConnectTimeout.
    family : str
        ``any``, ``inet`` or ``inet6``, as AddressFamily.
    bind : str, optional
        Address of this machine to connect from, as BindAddress.
    """

    name: str
    host: str
    user: str
    port: int = PORT
    keys: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()
    identities_only: bool = False
    agent: str | None = "SSH_AUTH_SOCK"
    jump: Target | None = None
    proxy_command: str | None = field(default=None, repr=False)
    known_hosts: tuple[str, ...] = ()
    system_known_hosts: tuple[str, ...] = ()
    host_key_alias: str | None = None
    strict: str = "ask"
    hash_known_hosts: bool = False
    timeout: float = DEFAULT_TIMEOUT
    family: str = "any"
    bind: str | None = None

    @property
    def host_key_name(self) -> str:
        """Name of the host in known_hosts files, with the port if it is not 22."""
        if self.host_key_alias:
            return self.host_key_alias
        return self.host.lower() if self.port == PORT else f"[{self.host.lower()}]:{self.port}"

    def __str__(self) -> str:
        port = "" if self.port == PORT else f":{self.port}"
        address = f"{self.user}@{f'[{self.host}]' if ':' in self.host else self.host}{port}"
        return address if self.name in (address, self.host) else f"{self.name} ({address})"
