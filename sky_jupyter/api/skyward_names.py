"""Hints for names that Skyward has and Sky Jupyter has not.

It is imported when an unknown name of the package is accessed.
"""

from __future__ import annotations

_CLOUDS = (
    "GCP Hyperstack JarvisLabs Lambda LambdaCloud MassedCompute Novita RunPod Salad Scaleway TensorDock VastAI "
    "Verda Vultr"
)
_RENAMED = {
    "Container": "Local",
    "DEFAULT_IMAGE": "Image()",
    "DistributedRegistry": "dict",
    "Executor": "Worker",
    "Info": "InstanceInfo",
    "NoOffersError": "ProvisionError",
    "Pending": "PendingCall",
    "PendingFunction": "PendingCall",
    "PendingFunctionGroup": "Group",
    "ProvisioningError": "ProvisionError",
    "SkywardError": "SkyError",
    "Streaming": "PendingCall",
    "registry": "dict",
}
_OTHERS = {
    "Nodes": "nodes is a number: pools do not grow and shrink by themselves",
    "Volume": "Compute.put and Compute.get move files",
    "Storage": "Compute.put and Compute.get move files",
    "TaskFailedError": "what a function raised keeps its type: catch that",
    "app": "a script is run by python",
    "main": "a script is run by python",
    "redirect_output": "contextlib.redirect_stdout does it",
}


def hint(name: str) -> str:
    """Return the end of an error message: what to write instead, or nothing."""
    if name in _CLOUDS.split():
        return ": of clouds, only sky.AWS() makes machines; sky.SSH([...]) takes any machine that has an address"
    if name in _RENAMED:
        return f": Skyward's {name} is sky.{_RENAMED[name]} here"
    return f": {_OTHERS[name]} (docs/from-skyward.md)" if name in _OTHERS else ""
