"""The magics: they parse a line and call what `session` does."""

from .sky_magics import load as load
from .sky_magics import unload as unload
