"""Builds of torch and extras of JAX for NVIDIA GPUs, with their requirements.

Sources. Requirements of CUDA on a device and its driver: JAX (docs.jax.dev/en/latest/installation.html: CUDA 12 needs
capability 5.2 and driver 525, CUDA 13 needs 7.5 and driver 580). Builds of torch and their capabilities: PyTorch
(github.com/pytorch/pytorch: pull requests 175253 and 182849, issues 178665, 190355 and 190385): CUDA 12.8 ends with
torch 2.11, 12.6 with 2.14; Volta (V100) and earlier only have builds for CUDA 12; for Arm processors there is no build
below capability 8.0. A build runs on later capabilities of its major number: one for 8.0 runs on 8.9.
"""

from __future__ import annotations

from dataclasses import dataclass

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Build:
    """Build of torch.

    Parameters
    ----------
    name : str
        Name, as for ``cuda=``.
    lowest, highest : tuple of int
        Range of compute capabilities.
    first, last : tuple of int
        First and last release of torch that has it; None if the newest has it.
    legacy : bool
        True to choose the last release that has it if no newer build runs on a device.
    """

    name: str
    lowest: Numbers
    highest: Numbers
    first: Numbers
    last: Numbers | None = None
    legacy: bool = False

    def is_in(self, release: Numbers | None) -> bool:
        """Return True if a release of torch, or the newest, has the build."""
        if release is None:
            return self.last is None
        return self.first <= release[:2] and (self.last is None or release[:2] <= self.last)

    def runs_on(self, capability: Numbers, *, arm: bool) -> bool:
        """Return True if the build runs on a device, on Arm machines or others."""
        return (max(self.lowest, ARM_LOWEST) if arm else self.lowest) <= capability <= self.highest


ARM_LOWEST = (8, 0)
# The best build first.
TORCH = (
    Build("cu130", (7, 5), (12, 1), (2, 9)),
    Build("cu132", (7, 5), (12, 1), (2, 12)),
    Build("cu128", (7, 0), (12, 1), (2, 7), (2, 10)),
    Build("cu128", (7, 5), (12, 1), (2, 11), (2, 11)),
    Build("cu126", (5, 0), (9, 0), (2, 6), (2, 14), legacy=True),
)
_FIRST = min(build.first for build in TORCH)
# First CUDA version for a capability, for builds of earlier releases.
_CUDA_FIRST = (((10, 0), 128), ((8, 9), 118))
# Extras of jax: name, lowest capability, first Python 3 minor version with a release of jax that has it.
JAX = (("cuda13", (7, 5), 11), ("cuda12", (5, 2), 10))


def of_torch(capability: Numbers, release: Numbers | None = None, *, arm: bool = False) -> list[str]:
    """Return the builds of a torch release that run on a device, the best first."""
    fits = [build for build in TORCH if build.runs_on(capability, arm=arm)]
    return [build.name for build in fits if build.is_in(release) or (build.legacy and release is None)]


def why_none_of_torch(capability: Numbers, release: Numbers | None = None, *, arm: bool = False) -> str:
    """Return why no build of a torch release runs on a device; empty if one may."""
    # Earlier releases had CUDA 11.8 to 12.4.
    unknown = release is not None and release[:2] < _FIRST and not _too_new(capability, 124)
    if unknown or of_torch(capability, release, arm=arm):
        return ""
    name = f"torch {dotted(release[:2])}" if release else "torch"
    there = [build for build in TORCH if build.runs_on(capability, arm=arm)]
    if not there:
        beside = " beside a processor by Arm" if arm else ""
        return f"PyTorch builds nothing for compute capability {dotted(capability)}{beside}"
    newest = max(build.last or (99,) for build in there)
    spans = f"from {dotted(min(build.first for build in there))}" + (
        f" to {dotted(newest)}" if newest < (99,) else " on"
    )
    return f"no build of {name} runs on compute capability {dotted(capability)}; those of torch {spans} do"


def why_not_torch(name: str, capability: Numbers, release: Numbers | None = None, *, arm: bool = False) -> str:
    """Return why a build of torch does not run on a device; empty if it may."""
    known = [build for build in TORCH if build.name == name]
    if not known:
        if _too_new(capability, int(name[2:])):
            return f"it has nothing for compute capability {dotted(capability)} yet"
        return ""
    there = [build for build in known if build.is_in(release)] if release else known[-1:]
    if not there:
        spans = f"from {dotted(known[0].first)}" + (f" to {dotted(known[-1].last)}" if known[-1].last else " on")
        return f"torch {dotted((release or ())[:2])} is not built so; torch {spans} is"
    if not there[0].runs_on(capability, arm=arm):
        beside = " beside a processor by Arm" if arm else ""
        return f"it is not built for compute capability {dotted(capability)}{beside}"
    return ""


def of_jax(capability: Numbers, python: int) -> str | None:
    """Return the extra of JAX for a device and the nodes' Python 3.``python``."""
    return next((extra for extra, lowest, first in JAX if capability >= lowest and python >= first), None)


def why_not_jax(extra: str, python: int) -> str:
    """Return why JAX has no such extra for a Python; empty if it has.

    Installers only warn of a missing extra, and leave JAX without GPUs.
    """
    first = next(first for name, _, first in JAX if name == extra)
    return "" if python >= first else f"no release of JAX for Python 3.{python} has it; Python 3.{first} and newer do"


def takes_cuda(capability: Numbers, major: int) -> bool:
    """Return True if a CUDA version runs on a device: 13 dropped those before Turing."""
    return capability >= {12: (5, 2), 13: (7, 5)}.get(major, (0, 0))


def dotted(numbers: Numbers) -> str:
    """Return ``(2, 11)`` as ``"2.11"``."""
    return ".".join(map(str, numbers))


def _too_new(capability: Numbers, cuda: int) -> bool:
    """Return True if a device is newer than a CUDA version, such as 128 for cu128."""
    return any(capability >= lowest and cuda < first for lowest, first in _CUDA_FIRST)
