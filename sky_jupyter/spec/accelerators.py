"""The catalogue of accelerators by name, and the packages that suit each.

``accelerators.A100(count=8)``, ``accelerators.H100(memory="94GB")`` and the texts ``"A100:8"``, ``"H100-94GB"`` make
the same `Accelerator`. The models are the rows of `accelerators.json`; nodes report only NVIDIA's yet.
`docs/accelerators.md` has the whole table.

Sources. Memory is what the makers' data sheets say; compute capability is what NVIDIA lists
(developer.nvidia.com/cuda-gpus). `builds` knows which packages those need.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SpecError
from ..util.validate import check_whole, is_whole
from .cuda_builds import of_jax, of_torch, takes_cuda, why_none_of_torch, why_not_torch

NVIDIA, GOOGLE = "NVIDIA", "Google"
_COUNT = re.compile(r"(?P<rest>.*?)\s*(?::\s*(?P<count>[0-9]+))?\Z", re.DOTALL)
_MEMORY = re.compile(r"(?P<rest>.+?)[-_ ]+(?P<memory>[0-9]+)\s*gi?b\Z", re.IGNORECASE | re.DOTALL)
_GB = re.compile(r"(?P<number>[0-9]+)\s*(gi?b?)?\Z", re.IGNORECASE)
_CUSTOM = "custom:"
_CUSTOM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,62}\Z")
_WORD = re.compile(r"[a-z0-9]+")
MAX_COUNT = 1024


@dataclass(frozen=True)
class Model:
    """Model of the catalogue; calling it makes an `Accelerator`.

    Such as ``A100(count=8, memory="40GB")``.

    Parameters
    ----------
    name : str
        Name in the catalogue.
    memories : tuple of int
        Memory sizes in GB, the usual one first.
    capability : tuple of int, optional
        CUDA compute capability, such as ``(8, 0)``; None if it is not NVIDIA's.
    maker : str
        Manufacturer.
    also : tuple of str
        Other names.
    arm : bool
        True if the machines that it is made for have Arm processors.
    """

    name: str
    memories: tuple[int, ...]
    capability: tuple[int, int] | None = None
    maker: str = NVIDIA
    also: tuple[str, ...] = ()
    arm: bool = False

    def __call__(self, count: int = 1, memory: int | str | None = None) -> Accelerator:
        """Return an `Accelerator` of this model.

        Parameters
        ----------
        count : int
            The number on each node.
        memory : int or str, optional
            GB of each, such as ``40`` or ``"40GB"``; any size that it is made with by default.

        Returns
        -------
        Accelerator
            The value for ``accelerator=``.

        Raises
        ------
        SpecError
            When the model is not made with that size, or the count is not valid.
        """
        return Accelerator(self.name, count, None if memory is None else _gigabytes(memory))


@dataclass(frozen=True)
class Accelerator:
    """Kind and number of accelerators that a node must have.

    Written as ``A100:8`` or ``H100-94GB:4``.

    Parameters
    ----------
    name : str
        Name in the catalogue, such as ``"A100"``, in any spelling; `Custom` makes others.
    count : int
        Number on each node.
    variant : int, optional
        Memory of each in GB, to choose one of several sizes.
    """

    name: str
    count: int = 1
    variant: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SpecError(f"an accelerator must be a name such as 'A100', not {self.name!r}")
        check_whole(f"{self.name}: count", self.count, 1, MAX_COUNT)
        if self.is_custom:
            if not _CUSTOM_NAME.match(self.kind.removeprefix(_CUSTOM)):
                raise SpecError(f"{self.name!r} is not {_CUSTOM} and a name of letters, digits, spaces and ._-")
            return
        model = _known(self.name)
        object.__setattr__(self, "name", model.name)
        if self.variant is not None and self.variant not in model.memories:
            sizes = " or ".join(str(size) for size in sorted(model.memories))
            raise SpecError(f"{model.name} has {sizes} GB, not {self.variant}; leave the size out for any of them")
        if len(model.memories) == 1:
            object.__setattr__(self, "variant", None)

    @classmethod
    def parse(cls, text: str) -> Accelerator:
        """Parse a text such as ``"A100:8"``.

        Other forms are ``"A100"``, ``"h100-94gb:4"``, ``"RTX 4090"`` and ``"custom:Quadro K2200:2"``.

        Parameters
        ----------
        text : str
            Text in any of these forms; case and spaces do not matter.

        Returns
        -------
        Accelerator
            Its value.

        Raises
        ------
        SpecError
            When the text has another form or names an unknown model; the nearest one is suggested.
        """
        given = text.strip()
        custom = given[: len(_CUSTOM)].lower() == _CUSTOM
        match = _COUNT.match(given[len(_CUSTOM) :] if custom else given)
        assert match is not None
        name, memory = match["rest"], None
        if not name or match["count"] == "0" or ":" in name:
            raise SpecError(
                f"accelerator {text!r} is not NAME or NAME:COUNT, such as A100, A100:8, H100-94GB:4 or RTX_4090"
            )
        if sized := _MEMORY.match(name):
            name, memory = sized["rest"], int(sized["memory"])
        return cls(_CUSTOM + name if custom else name, int(match["count"] or 1), memory)

    @property
    def is_custom(self) -> bool:
        """Whether the catalogue lacks it."""
        return self.name.startswith(_CUSTOM)

    @property
    def kind(self) -> str:
        """The text of a single one, for `parse`: ``"A100"`` or ``"A100-80GB"``."""
        return self.name if self.variant is None else f"{self.name}-{self.variant}GB"

    @property
    def memory(self) -> int | None:
        """The GB of each: the size asked for, else the usual one; None if unknown."""
        return self.variant if self.variant is not None or self.is_custom else CATALOGUE[self.name].memories[0]

    @property
    def capability(self) -> tuple[int, int] | None:
        """The CUDA compute capability, such as ``(9, 0)``; None if none or unknown."""
        return None if self.is_custom else CATALOGUE[self.name].capability

    @property
    def arm(self) -> bool:
        """Whether the machines that it is made for have Arm processors."""
        return not self.is_custom and CATALOGUE[self.name].arm

    @property
    def maker(self) -> str:
        """The manufacturer. A custom one is NVIDIA's: nodes report no others yet."""
        return NVIDIA if self.is_custom else CATALOGUE[self.name].maker

    @property
    def jax(self) -> str | None:
        """The best package of JAX, such as ``"jax[cuda13]"``; None if PyPI has none."""
        return self.jax_for()

    def jax_for(self, python: int = 14) -> str | None:
        """Return the best package of JAX for a Python version.

        Parameters
        ----------
        python : int
            The minor version, as 12 for Python 3.12. Earlier ones get earlier releases, which lack some extras.

        Returns
        -------
        str or None
            The requirement; None if PyPI has none.
        """
        if self.maker == GOOGLE:
            return "jax[tpu]"
        if self.capability is None:
            return None
        extra = of_jax(self.capability, python)
        return None if extra is None else f"jax[{extra}]"

    @property
    def torch(self) -> str | None:
        """The best build of torch, such as ``"cu130"``; None if PyTorch has none."""
        return self.torch_for()

    def torch_for(self, release: tuple[int, ...] | None = None) -> str | None:
        """Return the best build of one release of torch.

        Parameters
        ----------
        release : tuple of int, optional
            Such as ``(2, 8)``; the newest by default.

        Returns
        -------
        str or None
            The build; None if PyTorch has none.
        """
        return next(iter(self.torch_builds(release)), None)

    def torch_builds(self, release: tuple[int, ...] | None = None) -> list[str]:
        """Return the builds of torch that run on it, the best first.

        Parameters
        ----------
        release : tuple of int, optional
            Such as ``(2, 8)``; the newest by default.

        Returns
        -------
        list of str
            Such as ``["cu130", "cu128"]``.
        """
        return of_torch(self.capability, release, arm=self.arm) if self.capability else []

    def why_not_torch(self, build: str | None, release: tuple[int, ...] | None = None) -> str:
        """Explain why a build of torch does not run on it.

        Parameters
        ----------
        build : str or None
            Such as ``"cu126"``; None asks why no build does.
        release : tuple of int, optional
            Such as ``(2, 8)``; the newest by default.

        Returns
        -------
        str
            The reason; empty if it runs, as far as is known.
        """
        if self.capability is None:
            return ""
        if build is None:
            return why_none_of_torch(self.capability, release, arm=self.arm)
        return why_not_torch(build, self.capability, release, arm=self.arm)

    def takes_cuda(self, major: int) -> bool:
        """Tell whether a CUDA release runs on it, as far as is known.

        Parameters
        ----------
        major : int
            The release: 13 has dropped what came before Turing.

        Returns
        -------
        bool
            True as well if its capability is unknown.
        """
        return self.capability is None or takes_cuda(self.capability, major)

    def fits(self, name: str) -> bool:
        """Return True if a driver's device name, as ``NVIDIA A100-SXM4-80GB``, fits.

        If the name does not have the memory, as in ``NVIDIA GeForce RTX 3080``, only the model is compared.

        Parameters
        ----------
        name : str
            Name as ``nvidia-smi -L`` prints it.

        Returns
        -------
        bool
            True if model and chosen memory size match.
        """
        if self.is_custom:
            wanted = _words(self.name[len(_CUSTOM) :])
            return _find(wanted, _words(name)) >= 0 and (self.variant is None or f"{self.variant}gb" in _words(name))
        found, memory = recognised(name)
        return found == self.name and (self.variant is None or memory in (None, self.variant))

    def __str__(self) -> str:
        return self.kind if self.count == 1 else f"{self.kind}:{self.count}"


def Custom(name: str, memory: int | str | None = None, count: int = 1) -> Accelerator:
    """Return an NVIDIA accelerator that the catalogue lacks.

    Parameters
    ----------
    name : str
        Words of the driver's device name, as ``nvidia-smi -L`` prints it, such as ``"Quadro K2200"``.
    memory : int or str, optional
        GB of each, if the driver's name has it and the size matters.
    count : int
        The number on each node.

    Returns
    -------
    Accelerator
        The value for ``accelerator=``.
    """
    return Accelerator(_CUSTOM + name, count, None if memory is None else _gigabytes(memory))


def recognised(name: str) -> tuple[str | None, int | None]:
    """Return the catalogue's name and the GB for a driver's device name.

    For example ``("A100", 80)``; None stands for what is not known.
    """
    words = _words(name)
    found = [(len(parts), model) for parts, model in _BY_WORDS if _find(parts, words) >= 0]
    if not found:
        return None, None
    _, model = max(found, key=lambda item: item[0])
    told = [int(word[:-2]) for word in words if re.fullmatch(r"[0-9]+gb", word)]
    # The 480 GB in the name GH200 480GB are the processor's memory.
    memory = next((size for size in told if size in model.memories), None)
    if model.name == "H100" and memory is None:
        memory = 94 if "nvl" in words else 80
    return model.name, memory if len(model.memories) > 1 else model.memories[0]


def names() -> list[str]:
    """Return the catalogue's names, and one per size of models with several sizes."""
    sized = [f"{m.name}-{size}GB" for m in CATALOGUE.values() if len(m.memories) > 1 for size in m.memories]
    return [*CATALOGUE, *sized]


def _gigabytes(memory: int | str) -> int:
    if is_whole(memory, 1):
        return memory
    match = _GB.match(memory.strip()) if isinstance(memory, str) else None
    if match is None:
        raise SpecError(f"memory must be in GB, such as 40 or '40GB', not {memory!r}")
    return int(match["number"])


def _known(name: str) -> Model:
    key = "".join(_words(name)) if isinstance(name, str) else ""
    if key not in _BY_KEY:
        import difflib

        near = difflib.get_close_matches(key, list(_BY_KEY), n=1, cutoff=0.5)
        hint = f"; did you mean {_BY_KEY[near[0]].name!r}?" if near else ""
        raise SpecError(
            f"unknown accelerator {name!r}{hint} (sky.accelerators has them all; "
            f"another one of NVIDIA's is {_CUSTOM}NAME, with its driver's words)"
        )
    return _BY_KEY[key]


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.lower()))


def _find(part: tuple[str, ...], words: tuple[str, ...]) -> int:
    """Return the index of consecutive words among others; -1 if there is none."""
    return next((at for at in range(len(words) - len(part) + 1) if words[at : at + len(part)] == part), -1)


def _read_catalogue() -> dict[str, Model]:
    """Read the models of accelerators.json, in its order."""
    rows: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    for row in rows.values():
        row.update({key: tuple(value) for key, value in row.items() if isinstance(value, list)})
    return {name: Model(name, **row) for name, row in rows.items()}


CATALOGUE = _read_catalogue()
_BY_KEY = {"".join(_words(word)): model for model in CATALOGUE.values() for word in (model.name, *model.also)}
_BY_WORDS = [(_words(model.name), model) for model in CATALOGUE.values() if model.maker == NVIDIA]
if TYPE_CHECKING:
    # The names for type checkers and editors; a test compares them with accelerators.json.
    P4 = P40 = P100 = V100 = T4 = T4G = A2 = A10 = A10G = A16 = A30 = A40 = A100 = A800 = L4 = L40 = Model("", ())
    L40S = H20 = H100 = H800 = H200 = GH200 = B100 = B200 = B300 = GB200 = GB300 = TITAN_Xp = TITAN_V = Model("", ())
    TITAN_RTX = Quadro_RTX_4000 = Quadro_RTX_5000 = Quadro_RTX_6000 = Quadro_RTX_8000 = RTX_A2000 = Model("", ())
    RTX_A4000 = RTX_A4500 = RTX_A5000 = RTX_A5500 = RTX_A6000 = RTX_2000_Ada = RTX_4000_Ada = Model("", ())
    RTX_4500_Ada = RTX_5000_Ada = RTX_6000_Ada = RTX_PRO_4000 = RTX_PRO_4500 = RTX_PRO_5000 = Model("", ())
    RTX_PRO_6000 = GTX_1050 = GTX_1050_Ti = GTX_1060 = GTX_1070 = GTX_1070_Ti = GTX_1080 = GTX_1080_Ti = Model("", ())
    GTX_1650 = GTX_1650_SUPER = GTX_1660 = GTX_1660_SUPER = GTX_1660_Ti = RTX_2060 = RTX_2060_SUPER = Model("", ())
    RTX_2070 = RTX_2070_SUPER = RTX_2080 = RTX_2080_SUPER = RTX_2080_Ti = RTX_3050 = RTX_3060 = Model("", ())
    RTX_3060_Ti = RTX_3070 = RTX_3070_Ti = RTX_3080 = RTX_3080_Ti = RTX_3090 = RTX_3090_Ti = RTX_4060 = Model("", ())
    RTX_4060_Ti = RTX_4070 = RTX_4070_SUPER = RTX_4070_Ti = RTX_4070_Ti_SUPER = RTX_4080 = Model("", ())
    RTX_4080_SUPER = RTX_4090 = RTX_5050 = RTX_5060 = RTX_5060_Ti = RTX_5070 = RTX_5070_Ti = RTX_5080 = Model("", ())
    RTX_5090 = Trainium1 = Trainium2 = Trainium3 = Inferentia1 = Inferentia2 = TPUv2 = TPUv3 = TPUv4 = Model("", ())
    TPUv5e = TPUv5p = TPUv6 = MI100 = MI210 = MI250 = MI250X = MI300A = MI300X = MI325X = MI355X = Model("", ())
    Gaudi = Gaudi2 = Gaudi3 = Model("", ())
else:
    globals().update(CATALOGUE)
