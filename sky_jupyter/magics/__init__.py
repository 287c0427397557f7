"""The magics: they parse a line and call what `session` does."""

from .extension import load as load
from .extension import unload as unload
