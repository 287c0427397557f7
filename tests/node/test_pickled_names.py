"""Names in pickles between managers and pools: where one moves, pools of earlier versions cannot be worked with."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pandas as pd

import sky_jupyter as sky
from sky_jupyter.capture.blobs import NotebookPickler
from sky_jupyter.node.protocol.version import PROTOCOL
from sky_jupyter.node.serialization.result_values import ResultPickler
from sky_jupyter.node.serialization.unpicklable_placeholders import RemoteRepr
from sky_jupyter.plugins import Plugin, Secret
from sky_jupyter.spec.pool_spec import PoolSpec

# By the protocol's number. Where a name is gone, raise the number, and write down what is there now.
NAMES = {
    11: {
        "node.serialization.arrays.frame_of",
        "node.serialization.exceptions.make",
        "node.serialization.pickling._fill",
        "node.serialization.pickling.make_function",
        "node.serialization.pickling.set_function_state",
        "node.serialization.unpicklable_placeholders.RemoteRepr",
        "plugins.core.plugin.Plugin",
        "plugins.core.secrets.Secret",
        "providers.aws.provider.AWS",
        "providers.kubeflow.bare_pods.Kubernetes",
        "providers.kubeflow.kubeflow_provider.Kubeflow",
        "providers.local.Local",
        "providers.ssh.SSH",
        "spec.image.Image",
        "spec.options.Options",
        "spec.pool_spec.PoolSpec",
    }
}
CELL = """
def outer(x):
    return lambda: x

class Odd(Exception):
    def __init__(self, one, other):
        pass

values = outer(1), Odd(1, 2)
"""


class Names(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.found: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        package, _, path = module.partition(".")
        if package == "sky_jupyter":
            self.found.add(f"{path}.{name}")
        return super().find_class(module, name)


def names(value: object, pickler: type[pickle.Pickler], namespace: dict[str, Any]) -> set[str]:
    """This package's names in a value's pickle."""
    file = io.BytesIO()
    pickler(file, namespace).dump(value)  # type: ignore[arg-type]
    reader = Names(file.getvalue())
    reader.load()
    return reader.found


def test_what_is_pickled_by_name_is_where_this_version_of_the_protocol_has_it() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(CELL, namespace)
    providers = [sky.Local(), sky.SSH("a"), sky.AWS(), sky.Kubeflow(image="x"), sky.Kubernetes(image="x")]
    specs = [PoolSpec(provider=one, nodes=1, plugins=(Plugin("own"),)) for one in providers]
    found = names([*namespace["values"], pd.DataFrame({"a": [1]}), Secret("name"), *specs], NotebookPickler, namespace)
    found |= names(RemoteRepr("text", "type", "reason"), ResultPickler, namespace)
    assert found == NAMES[PROTOCOL]
