"""Access to a cluster's API, from the kubernetes client's configuration."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import ssl
import tempfile
import threading
import types
import urllib.parse
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...errors import SpecError
from ..ssh.types import shown


@dataclass(frozen=True)
class Credentials:
    """Parameters of a connection to the API, at one moment.

    Attributes
    ----------
    host, port : str, int
        Address of the API server.
    prefix : str
        Prefix of its paths; usually empty.
    tls : ssl.SSLContext, optional
        Its certificate authority and our client certificate; None for plain HTTP.
    server_name : str
        The name that its certificate must have.
    proxy : str, optional
        URL of the HTTP proxy to use.
    headers : dict of str to str
        Headers with which we log in.
    """

    host: str
    port: int
    prefix: str = ""
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    server_name: str = ""
    proxy: str | None = field(default=None, repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)


class ApiAccess:
    """Access to one cluster as one user, made by `access_to`; thread-safe.

    Parameters
    ----------
    kubeconfig : tuple of str
        Absolute paths of kubeconfig files; empty for the service account of the pod that this process runs in.
    context : str, optional
        Context of the kubeconfig; its current one by default.
    """

    def __init__(self, kubeconfig: tuple[str, ...], context: str | None) -> None:
        self._kubeconfig, self._context = kubeconfig, context
        self._lock = threading.Lock()
        self._loaded: Any = None
        self._tls: ssl.SSLContext | None = None
        self._files: list[Any] = []
        self._generation = 0

    def __str__(self) -> str:
        if not self._kubeconfig:
            return "the service account of this pod"
        return os.pathsep.join(self._kubeconfig) + (f", context {self._context}" if self._context else "")

    def configuration(self, refused: int = -1) -> Any:
        """Return the kubernetes client's configuration with currently valid credentials.

        They are read again if their files have changed, or if those of the generation ``refused`` were refused. The
        client itself renews credentials that expire. Raises SpecError if there are none.
        """
        with self._lock:
            return self._current(refused)

    def credentials(self, refused: int = -1) -> tuple[Credentials, int]:
        """Return current credentials and their generation; see `configuration`."""
        with self._lock:
            found = self._current(refused)
            with self._named(), _captured():
                if found.refresh_api_key_hook is not None:
                    found.refresh_api_key_hook(found)
                if self._tls is None:
                    self._tls = _tls(found)
            return self._shaped(found), self._generation

    def _current(self, refused: int) -> Any:
        files = [_signature(path) for path in self._kubeconfig]
        if self._loaded is None or files != self._files or refused == self._generation:
            with self._named():
                self._loaded, self._tls = self._load(), None
            self._files, self._generation = files, self._generation + 1
        return self._loaded

    def _load(self) -> Any:
        from kubernetes import client, config

        made = client.Configuration()
        # Some versions of the client read this variable, but do not use it.
        made.no_proxy = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        with _captured() as said, _folder() as folder:
            if self._kubeconfig:
                joined = os.pathsep.join(self._kubeconfig)
                config.load_kube_config(joined, context=self._context, client_configuration=made, temp_file_path=folder)
                if folder is not None:
                    _keep_in_memory(made, folder)
                if url := _proxy_url(joined, self._context):
                    # As in kubectl, it counts for this cluster whatever the environment says.
                    made.proxy, made.no_proxy = url, None
            else:
                config.load_incluster_config(client_configuration=made)
        if said:
            # The client only logs that its exec plugin failed.
            raise SpecError(said[0])
        return made

    def _shaped(self, found: Any) -> Credentials:
        url = urllib.parse.urlsplit(found.host)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise SpecError(f"{self}: {shown(found.host)!r} is not the URL of a cluster's API")
        token = found.api_key.get("BearerToken") or found.api_key.get("authorization") or ""
        if any(letter in token.strip() for letter in "\r\n\0"):
            raise SpecError(f"{self}: the credentials have a line break, which no header can have")
        secure = url.scheme == "https"
        return Credentials(
            url.hostname,
            url.port or (443 if secure else 80),
            url.path.rstrip("/"),
            self._tls if secure else None,
            found.tls_server_name or url.hostname,
            _proxy(found),
            {"Authorization": token.strip()} if token else {},
        )

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Raise the errors of the block as SpecError that says which access it is."""
        try:
            yield
        except ImportError as error:
            raise SpecError(f"Kubernetes needs its client: pip install 'sky-jupyter[kubernetes]' ({error})") from None
        except Exception as error:
            raise SpecError(f"no access to the cluster by {self}: {shown(str(error))}") from None


@functools.lru_cache(maxsize=64)
def access_to(kubeconfig: tuple[str, ...], context: str | None = None) -> ApiAccess:
    """Return a kubeconfig's access, shared in this process as exec plugins are slow."""
    return ApiAccess(kubeconfig, context)


@contextlib.contextmanager
def _folder() -> Iterator[str | None]:
    """Yield a folder for the client's keys, if they can be kept in memory; else None."""
    if not (hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="sky-", ignore_cleanup_errors=True) as made:
        yield made


def _keep_in_memory(configuration: Any, folder: str) -> None:
    """Replace key files in ``folder`` by memory: a killed process would leave them."""
    for name in ("ssl_ca_cert", "cert_file", "key_file"):
        path = getattr(configuration, name)
        if path and os.path.dirname(path) == folder:
            with open(path, "rb") as source:
                data = source.read()
            descriptor = os.memfd_create("sky-credentials")
            # Keep the file open as long as the configuration, which every user of the credentials holds.
            weakref.finalize(configuration, os.close, descriptor).atexit = False
            with open(descriptor, "wb", closefd=False) as there:
                there.write(data)
            setattr(configuration, name, f"/proc/self/fd/{descriptor}")
    hook = configuration.refresh_api_key_hook
    if hook is None:
        return

    def refresh(configuration: Any) -> None:
        # The client's own hook would set the files' paths again, so it gets another object.
        known = types.SimpleNamespace(api_key={})
        hook(known)
        configuration.api_key.update(known.api_key)
        shutil.rmtree(folder, ignore_errors=True)

    configuration.refresh_api_key_hook = refresh


def _proxy_url(kubeconfig: str, context: str | None) -> str | None:
    """Return the ``proxy-url`` of a context's cluster; the client's loader omits it."""
    from kubernetes.config.kube_config import KubeConfigMerger

    merged = KubeConfigMerger(kubeconfig).config
    cluster = merged["contexts"].get_with_name(context or merged["current-context"])["context"]["cluster"]
    found = merged["clusters"].get_with_name(cluster)["cluster"].safe_get("proxy-url")
    return str(found) if found else None


def _signature(path: str) -> Any:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _tls(found: Any) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=found.ssl_ca_cert or None)
    # Authorities of many clusters lack what RFC 5280 asks for, and Python checks from 3.13 on; kubectl does not.
    made.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    if not found.verify_ssl:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if found.cert_file:
        made.load_cert_chain(found.cert_file, found.key_file or None)
    return made


def _proxy(found: Any) -> str | None:
    from requests.utils import should_bypass_proxies

    if not found.proxy or should_bypass_proxies(found.host, no_proxy=found.no_proxy or ""):
        return None
    return str(found.proxy)


@contextlib.contextmanager
def _captured() -> Iterator[list[str]]:
    """Collect and hide the kubernetes client's root logger messages in this thread."""
    said: list[str] = []
    thread = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        if record.thread != thread or "kubernetes" not in record.pathname:
            return True
        said.append(record.getMessage())
        return False

    root, quiet = logging.getLogger(), logging.NullHandler()
    # Without a handler, `logging.error` would add one permanently.
    root.addHandler(quiet)
    root.addFilter(keep)
    try:
        yield said
    finally:
        root.removeFilter(keep)
        root.removeHandler(quiet)


__all__ = ["ApiAccess", "Credentials", "access_to"]
