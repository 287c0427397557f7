"""Calls of the Kubeflow SDK, which takes more than a second to import."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import SpecError
from ...machines.pods import kube_clients
from . import pod_template

if TYPE_CHECKING:
    from ...machines.pods.kube_clients import KubeClients
    from ..provisioning_types import Order
    from .context import PodContext

_lock = threading.Lock()
_BACKEND = "kubeflow.trainer.backends.kubernetes.backend"


def client(clients: KubeClients) -> Any:
    """Return a `TrainerClient` over these clients; raise SpecError without the SDK."""
    try:
        from kubeflow.common.types import KubernetesBackendConfig
        from kubeflow.trainer import TrainerClient
    except ImportError as error:
        raise SpecError(f"Kubeflow needs its SDK: pip install 'sky-jupyter[kubeflow]' ({error})") from None
    with _lock, _without_notice():
        if "trainer" not in clients.kept:
            config = KubernetesBackendConfig(namespace=clients.place.namespace)
            config.client_configuration = clients.configuration
            clients.kept["trainer"] = made = TrainerClient(config)
            _limit(made.backend.custom_api.api_client.rest_client)
        return clients.kept["trainer"]


def _limit(rest: Any) -> None:
    """Set our timeouts on requests: the SDK has none and would wait forever."""
    given = rest.request

    def request(*args: Any, _request_timeout: Any = None, **options: Any) -> Any:
        return given(*args, _request_timeout=_request_timeout or kube_clients.TIMEOUT, **options)

    rest.request = request


def train(
    trainer: Any,
    runtime: Any,
    provider: PodContext,
    order: Order,
    count: int,
    *,
    image: str,
    resources: Mapping[str, str],
    command: list[str],
    labels: Mapping[str, str],
) -> str:
    """Create the TrainJob of an order, and return its name.

    Parameters
    ----------
    trainer : TrainerClient
        The SDK's client.
    runtime : Runtime
        The SDK's runtime.
    provider : PodContext
        The provider.
    order : Order
        The order, which names the job.
    count : int
        Number of pods.
    image : str
        Image of the pods.
    resources : mapping of str to str
        Resources of each pod; the runtime's by default.
    command : list of str
        Command of the container.
    labels : mapping of str to str
        Labels of the job besides those of every order, such as its queue.

    Returns
    -------
    str
        The name.
    """
    from kubeflow.trainer import CustomTrainerContainer
    from kubeflow.trainer.options import common, kubernetes

    limit = pod_template.seconds_left(order)
    return str(
        trainer.train(
            runtime=runtime,
            trainer=CustomTrainerContainer(
                image=image,
                num_nodes=count,
                resources_per_node=dict(resources) or None,
                env=pod_template.env(provider),
            ),
            options=[
                common.Name(pod_template.job_name(order)),
                kubernetes.Labels({**pod_template.labels(order), **labels}),
                kubernetes.Annotations(pod_template.notes(order)),
                kubernetes.TrainerCommand(command),
                *([] if limit is None else [kubernetes.ActiveDeadlineSeconds(limit)]),
                _patch(kubernetes, provider, order),
            ],
        )
    )


def _patch(kubernetes: Any, provider: PodContext, order: Order) -> Any:
    """Return the patch that the runtime's pods get."""
    volumes, mounts = pod_template.mounts(provider)
    placed = pod_template.placement(provider)
    container = kubernetes.ContainerPatch(
        name=pod_template.CONTAINER, volume_mounts=mounts, security_context=pod_template.container_security()
    )
    pod = kubernetes.PodSpecPatch(
        service_account_name=placed.get("serviceAccountName"),
        node_selector=placed.get("nodeSelector"),
        tolerations=placed.get("tolerations"),
        security_context=pod_template.pod_security(provider),
        volumes=volumes,
        containers=[container],
    )
    template = kubernetes.PodTemplatePatch(metadata=pod_template.metadata(order), spec=pod)
    job = kubernetes.JobTemplatePatch(spec=kubernetes.JobSpecPatch(template=template))
    jobs = [kubernetes.ReplicatedJobPatch(name=pod_template.CONTAINER, template=job)]
    jobset = kubernetes.JobSetTemplatePatch(
        metadata={"labels": pod_template.labels(order)}, spec=kubernetes.JobSetSpecPatch(replicated_jobs=jobs)
    )
    return kubernetes.RuntimePatch(training_runtime_spec=kubernetes.TrainingRuntimeSpecPatch(template=jobset))


@contextlib.contextmanager
def _without_notice() -> Iterator[None]:
    """Suppress the SDK's warning about Trainer's version; the API's answers show it."""
    logger = logging.getLogger(_BACKEND)

    def drop(record: logging.LogRecord) -> bool:
        return "version info is not available" not in record.getMessage()

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


__all__ = ["client", "train"]
