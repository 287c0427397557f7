"""Magics: they parse a line and call the functions of `session`."""

from .extension import load as load
from .extension import unload as unload
