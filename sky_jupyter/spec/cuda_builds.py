"""Which builds of torch and which extras of JAX there are for NVIDIA's devices, and what each runs on. Values only.

Sources. What CUDA needs of a device, and of its driver, is JAX's word (docs.jax.dev/en/latest/installation.html: CUDA
12 from capability 5.2 and driver 525, CUDA 13 from 7.5 and driver 580). Which builds of torch there are, and for which
capabilities, is PyTorch's (github.com/pytorch/pytorch: pull requests 175253 and 182849, issues 178665, 190355 and
190385): CUDA 12.8 ends with torch 2.11, 12.6 with 2.14; Volta (V100) and earlier only have builds for CUDA 12; and for
processors by Arm nothing is built for less than capability 8.0. A build for 8.0 runs on 8.9, and so on within one
major number.
"""

from __future__ import annotations

from dataclasses import dataclass

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Build:
    """A build of torch.

    Parameters
    ----------
    name : str
        As ``cuda=`` takes it.
    lowest, highest : tuple of int
        The capabilities that it is for.
    first, last : tuple of int
        The releases of torch that have it; None where the newest does.
    legacy : bool
        Whether it is chosen, from the last release that has it, where nothing newer runs on a device.
    """

    name: str
    lowest: Numbers
    highest: Numbers
    first: Numbers
    last: Numbers | None = None
    legacy: bool = False

    def is_in(self, release: Numbers | None) -> bool:
        """Whether a release of torch, or the newest, has it."""
        if release is None:
            return self.last is None
        return self.first <= release[:2] and (self.last is None or release[:2] <= self.last)

    def runs_on(self, capability: Numbers, *, arm: bool) -> bool:
        """Whether it runs on such devices, on machines with processors by Arm or others."""
        return (max(self.lowest, ARM_LOWEST) if arm else self.lowest) <= capability <= self.highest


ARM_LOWEST = (8, 0)
# The best first.
TORCH = (
    Build("cu130", (7, 5), (12, 1), (2, 9)),
    Build("cu132", (7, 5), (12, 1), (2, 12)),
    Build("cu128", (7, 0), (12, 1), (2, 7), (2, 10)),
    Build("cu128", (7, 5), (12, 1), (2, 11), (2, 11)),
    Build("cu126", (5, 0), (9, 0), (2, 6), (2, 14), legacy=True),
)
_FIRST = min(build.first for build in TORCH)
# The first CUDA that has a capability: for builds of earlier releases.
_CUDA_FIRST = (((10, 0), 128), ((8, 9), 118))
# The extras of jax: name, the lowest capability, the first Python that has a release of jax with it.
JAX = (("cuda13", (7, 5), 11), ("cuda12", (5, 2), 10))


def of_torch(capability: Numbers, release: Numbers | None = None, *, arm: bool = False) -> list[str]:
    """The builds of a release of torch, or of the newest, that run on a device; the best first."""
    fits = [build for build in TORCH if build.runs_on(capability, arm=arm)]
    return [build.name for build in fits if build.is_in(release) or (build.legacy and release is None)]


def why_none_of_torch(capability: Numbers, release: Numbers | None = None, *, arm: bool = False) -> str:
    """Why no build of a release of torch runs on a device; empty where one does, or where that is not known."""
    # Those before had CUDA 11.8 to 12.4.
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
    """Why one build of torch does not run on a device, or is not there; empty where it may."""
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
    """The extra of JAX that suits a device and the nodes' Python 3.``python``."""
    return next((extra for extra, lowest, first in JAX if capability >= lowest and python >= first), None)


def why_not_jax(extra: str, python: int) -> str:
    """Why JAX has no such extra for a Python: installers only warn of that, and leave JAX without GPUs."""
    first = next(first for name, _, first in JAX if name == extra)
    return "" if python >= first else f"no release of JAX for Python 3.{python} has it; Python 3.{first} and newer do"


def takes_cuda(capability: Numbers, major: int) -> bool:
    """Whether that CUDA runs on a device, as far as is known: 13 has dropped what came before Turing."""
    return capability >= {12: (5, 2), 13: (7, 5)}.get(major, (0, 0))


def dotted(numbers: Numbers) -> str:
    """``(2, 11)`` as 2.11."""
    return ".".join(map(str, numbers))


def _too_new(capability: Numbers, cuda: int) -> bool:
    """Whether a device came after a CUDA, such as the 128 of cu128."""
    return any(capability >= lowest and cuda < first for lowest, first in _CUDA_FIRST)
