"""Matcher for IPython's completer: passes ``%sky`` lines to `option_completion`."""

from __future__ import annotations

import re
from typing import Any

from IPython.core.completer import CompletionContext, context_matcher

_OURS = re.compile(r"\s*%%?sky(?:\s|\Z)")


@context_matcher()
def sky_matcher(context: CompletionContext) -> dict[str, Any]:
    """Match for IPython: on our lines, only our candidates."""
    if _OURS.match(context.line_with_cursor) is None:
        return {"completions": [], "suppress": False}
    # Imported here: the table of options takes longer to import than all that loading the extension needs.
    from .option_completion import matches

    return matches(context)
