"""Settings of the documentation that `python3 dev.py docs` builds: the pages of this folder, and the API reference.

The source folder is the repository, so that the links between its Markdown files lead where they lead on a forge.
"""

from __future__ import annotations

from pathlib import Path

import sky_jupyter

ROOT = Path(__file__).resolve().parent.parent

project = "Sky Jupyter"
author = "The Sky Jupyter authors"
release = version = sky_jupyter.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md"]
# Hidden folders and folders without a page are not walked through.
exclude_patterns = [
    *(f"{path.name}/**" for path in ROOT.iterdir() if path.is_dir() and path.name != "docs"),
    *(path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "docs"),
]

# Links such as `names.md#which-value` lead to headings of up to this level.
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

# Docstrings are numpydoc's; a name in single backticks is a link where there is something of that name.
default_role = "py:obj"
napoleon_google_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
# A longer signature has a line for each parameter.
maximum_signature_line_length = 88
# What `Compute` takes has defaults that are long, and said in words.
autodoc_preserve_defaults = True

# The blocks of lines in the pages are programs, shells and outputs; only those that say so are highlighted.
highlight_language = "none"

html_theme = "furo"
html_title = f"Sky Jupyter {version}"
html_show_sourcelink = False
