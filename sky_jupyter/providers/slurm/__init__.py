"""Jobs of a Slurm cluster as pools."""

from .slurm_provider import Slurm

__all__ = ["Slurm"]
