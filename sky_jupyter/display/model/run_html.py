"""A run's view as HTML for notebooks and as text for terminals.

These are pure functions: the display calls them up to ten times a second with its present state. HTML uses only tags
and inline styles that survive the sanitizer of an untrusted notebook. Text and background colours are inherited from
the theme.
"""

from __future__ import annotations

import base64
import html
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ...util.text import format_ranks, rank_label
from . import ansi
from .folding import common_end, common_start, fold
from .transcript import Rich, Segment, Text

State = Literal["running", "done", "failed", "died", "timed out", "interrupted"]


@dataclass(frozen=True)
class RankView:
    """Output and state of one rank.

    Parameters
    ----------
    rank : int
        Its number.
    segments : tuple of Text and Rich
        Its output in order, as `RankOutput.segments` gives it.
    dropped : int
        Number of dropped lines before them.
    state : str
        ``"running"``, ``"done"``, ``"failed"``, ``"died"``, ``"timed out"`` or ``"interrupted"``.
    note : str
        Note about it, such as the signal that killed it; ``"asks"`` or ``"stopped"`` while it waits for the user.
    result : Rich, optional
        The value of its last expression.
    traceback : str
        Traceback, with colours; the notebook shows it as the cell's error too.
    """

    rank: int
    segments: tuple[Segment, ...] = ()
    dropped: int = 0
    state: State = "running"
    note: str = ""
    result: Rich | None = None
    traceback: str = ""


@dataclass(frozen=True)
class RunViewModel:
    """View of a run.

    Parameters
    ----------
    title : str
        Title, such as the pool's name.
    elapsed : float
        Seconds since the run began.
    ranks : tuple of RankView
        Ranks whose output is shown.
    finished : bool
        True if nothing will change any more.
    notices : tuple of str
        Notices about the run, such as new kernels.
    unseen : tuple of RankView
        Other ranks of the run, without their output.
    cost : str
        The costs of its pool; empty if nothing is bought.
    """

    title: str
    elapsed: float
    ranks: tuple[RankView, ...]
    finished: bool = False
    notices: tuple[str, ...] = ()
    unseen: tuple[RankView, ...] = ()
    cost: str = ""

    @property
    def all(self) -> tuple[RankView, ...]:
        """Ranks of the run, in order."""
        return tuple(sorted((*self.ranks, *self.unseen), key=lambda view: view.rank))


class Shown(NamedTuple):
    """The one representation of a rich item that is shown."""

    kind: str
    value: str
    size: str = ""


Atom = str | Shown


class Block(NamedTuple):
    """Output that `ranks` have in common, after a number of lines that were left out."""

    ranks: list[int]
    atoms: tuple[Atom, ...]
    left_out: int = 0


# Jupyter's order of preference, but an image before the text that describes it.
_KINDS = ("text/html", "image/svg+xml", "image/png", "image/jpeg", "image/gif")
_TEXTS = ("text/markdown", "text/latex", "text/plain")
# The states of ranks that did not end well, the most likely cause first.
TROUBLES: tuple[State, ...] = ("died", "failed", "timed out", "interrupted")
_COLOURS = {"running": "34", "done": "32", "failed": "31", "died": "31", "interrupted": "33", "timed out": "33"}
_STYLES = {state: ansi.css(colour) for state, colour in _COLOURS.items()}
# Jupyter indents its own text outputs slightly more than HTML.
_OUTER = "margin:0;padding:0 0 0 8px"
# The fixed size counts if a page has no such variable, or a sanitizer drops it.
_CODE = (
    "font-size:13px;font-size:var(--jp-code-font-size,13px);"
    "font-family:monospace;font-family:var(--jp-code-font-family,monospace)"
)
# Mark of stderr, visible on light and dark pages and without colours.
_BESIDE = "border-left:2px solid #e03e3e;padding-left:6px"
_MUTED = "opacity:0.75;font-size:85%"
# Most groups that get their full share of lines; more groups share the lines of so many.
_FULL_GROUPS = 4
# A saved notebook shows more lines folded; its reader unfolds them.
_OPEN_LINES = 100
# A line counts once more for each so many characters.
_LINE = 500
_EMPTY_LINE = re.compile(r"(?<=\n)([ \t]*)\n")
_KEEPS_LINES = re.compile(r"<(pre|textarea|script)\b", re.IGNORECASE)
# Images have fewer pixels in each direction.
_MOST_PIXELS = 100_000


def to_html(model: RunViewModel, max_lines: int = 1000) -> str:
    """Return the view as one HTML element.

    Parameters
    ----------
    model : RunViewModel
        What there is to show.
    max_lines : int
        Limit of lines of a group of ranks; four times as many in all.

    Returns
    -------
    str
        A ``div`` that needs nothing else.
    """
    several = len(model.ranks) > 1
    rows = [
        _html_header(model),
        *(
            _html_row(
                rank_label(block.ranks) if several else "",
                _html_block(block),
                lines=len(block.atoms) if model.finished else None,
            )
            for block in _blocks(model, _shown, max_lines)
        ),
    ]
    for ranks, shown in _results(model, _shown):
        rows.append(_html_row(", ".join(["Out", *[rank_label(ranks)] * several]), _html_block(Block(ranks, shown))))
    for ranks, state, note in _notes(model):
        red = f'<span style="{_STYLES[state]}">{rank_label(ranks)} {state}: </span>'
        rows.append(_html_row("", _pre(red + ansi.to_html(note))))
    quiet = _quiet_ranks(model)
    rows.extend(_html_aside(text) for text in [f"{rank_label(quiet)}: no output"] * bool(quiet) + [*model.notices])
    return f'<div style="{_OUTER}">{"".join(rows)}</div>'


def to_text(model: RunViewModel, max_lines: int = 1000, *, colours: bool = True) -> str:
    """Return the view as text, each line marked with its ranks.

    Parameters
    ----------
    model : RunViewModel
        What there is to show.
    max_lines : int
        As for `to_html`.
    colours : bool
        Keep the colours that the ranks printed.

    Returns
    -------
    str
        Lines, without a newline after the last.
    """
    rows = [" · ".join(header(model))]

    def add(ranks: Iterable[int], lines: Iterable[str]) -> None:
        mark = f"[{format_ranks(ranks)}] " if len(model.ranks) > 1 else ""
        rows.extend((mark + (ansi.italic(line) if ansi.is_stderr(line) else line)).rstrip() for line in lines)

    for block in _blocks(model, _as_lines, max_lines):
        if block.left_out:
            add(block.ranks, [_left_out(block.left_out)])
        add(block.ranks, map(str, block.atoms))
    for ranks, shown in _results(model, _as_lines):
        add(ranks, (("Out: " if index == 0 else "     ") + str(line) for index, line in enumerate(shown)))
    for ranks, state, note in _notes(model):
        add(ranks, f"{state}: {note}".splitlines())
    text = "\n".join([*rows, *model.notices])
    return text if colours else ansi.strip(text)


# Content, the same for HTML and text.


def _blocks(model: RunViewModel, pick: Callable[[Rich], tuple[Atom, ...]], max_lines: int) -> list[Block]:
    """Return the output of all ranks, each part once, in each rank's own order."""
    spoken = {view.rank: (view.dropped, _atoms(view.segments, pick)) for view in model.ranks}
    groups = [Block(ranks, atoms, gone) for ranks, (gone, atoms) in fold(spoken) if gone or atoms]
    start, end = _shared(groups, model.finished)
    everyone = sorted(rank for block in groups for rank in block.ranks)
    limit = max_lines if len(groups) <= _FULL_GROUPS else max(10, max_lines * _FULL_GROUPS // len(groups))
    blocks: list[Block] = []
    if end:
        last, used = _cut(Block(everyone, groups[0].atoms[len(groups[0].atoms) - end :]), limit)
        blocks, limit = [last], limit - used
    middles = [
        _cut(Block(ranks, atoms[start : len(atoms) - end], 0 if start else gone), limit)
        for ranks, atoms, gone in groups
    ]
    blocks = [block for block, _ in middles if block.atoms or block.left_out] + blocks
    if start:
        limit -= max(used for _, used in middles)
        first, _ = _cut(Block(everyone, groups[0].atoms[:start], groups[0].left_out), limit)
        blocks.insert(0, first)
    return blocks


def _atoms(segments: Iterable[Segment], pick: Callable[[Rich], tuple[Atom, ...]]) -> tuple[Atom, ...]:
    return tuple(
        itertools.chain.from_iterable(part.lines if isinstance(part, Text) else pick(part) for part in segments)
    )


def _shared(groups: Sequence[Block], finished: bool) -> tuple[int, int]:
    """Return how many atoms differing groups share at their start and end."""
    if len(groups) < 2:
        return 0, 0
    start = end = 0
    # If different numbers of lines are left out, the first remaining lines do not belong together.
    if len({block.left_out for block in groups}) == 1:
        start = common_start([block.atoms for block in groups])
        start *= _worth(groups[0].atoms[:start])
    # While ranks are running, a common end only means that one is ahead of the other.
    if finished:
        end = common_end([block.atoms[start:] for block in groups])
        end *= _worth(groups[0].atoms[len(groups[0].atoms) - end :])
    return start, end


def _worth(atoms: Sequence[Atom]) -> bool:
    return any(not isinstance(atom, str) or atom.strip() for atom in atoms)


def _cut(block: Block, limit: int) -> tuple[Block, int]:
    """Cut a block to its last lines; return also how many of the limit it took.

    All rich items are kept.
    """
    kept: list[Atom] = []
    used, gone = 0, 0
    for atom in reversed(block.atoms):
        if isinstance(atom, str):
            cost = 1 + len(atom) // _LINE
            # The last line is shown however long it is, unless nothing may be.
            if gone or (used + cost > limit and (used or limit <= 0)):
                gone += 1
                continue
            used += cost
        kept.append(atom)
    return Block(block.ranks, tuple(reversed(kept)), block.left_out + gone), used


def _results(model: RunViewModel, pick: Callable[[Rich], tuple[Atom, ...]]) -> list[tuple[list[int], tuple[Atom, ...]]]:
    return fold({view.rank: pick(view.result) for view in model.ranks if view.result is not None})


def _troubles(model: RunViewModel) -> list[tuple[list[int], State]]:
    """Return the ranks that did not end well, the most likely cause first."""
    found = fold({view.rank: view.state for view in model.all if view.state in TROUBLES})
    return sorted(found, key=lambda item: TROUBLES.index(item[1]))


def _notes(model: RunViewModel) -> list[tuple[list[int], State, str]]:
    noted = {view.rank: (view.state, view.note) for view in model.all if view.note and view.state != "running"}
    return [(ranks, state, note) for ranks, (state, note) in fold(noted)]


def _quiet_ranks(model: RunViewModel) -> list[int]:
    """Return the ranks that ended well and showed nothing, when others did."""
    silent = [view for view in model.ranks if not (view.segments or view.dropped or view.result or view.note)]
    quiet = [view.rank for view in silent if view.state == "done"]
    return quiet if model.finished and len(quiet) < len(model.ranks) else []


def header(model: RunViewModel) -> list[str]:
    """Return the header: title, number of ranks, duration, states, and cost."""
    count = len(model.all)
    shown = f", output of {rank_label(view.rank for view in model.ranks)}" if model.unseen else ""
    said = [model.title, f"{count} rank{'s' * (count != 1)}{shown}", duration(model.elapsed), *_status(model)]
    return [*said, model.cost] if model.cost else said


def _status(model: RunViewModel) -> list[str]:
    """Return states such as ``["running, 1 of 2 done"]`` or ``["rank 0 failed"]``."""
    troubles = _troubles(model)
    words = [f"{rank_label(ranks)} {state}" for ranks, state in troubles]
    if not model.finished:
        done = sum(view.state == "done" for view in model.all)
        waiting = fold({view.rank: view.note for view in model.all if view.note and view.state == "running"})
        words = [*(f"{rank_label(ranks)} {word}" for ranks, word in waiting), *words]
        return [f"running, {done} of {len(model.all)} done" if done else "running", *words]
    if len(troubles) == 1 and len(troubles[0][0]) == len(model.all):
        return [troubles[0][1]]
    # The view is over, but the run may go on.
    return words or ["goes on" if _is_running(model) else "done"]


def _is_running(model: RunViewModel) -> bool:
    """Return whether the run is running, though its view may be over."""
    return not model.finished or any(view.state == "running" for view in model.all)


def duration(seconds: float) -> str:
    """Format seconds for people: ``1.3 s``, ``2 min 5 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def pace(elapsed: float, usual: float) -> str:
    """Format progress, such as ``12.0 s of about 40.0 s``.

    The usual time is left out once it is exceeded.
    """
    return f"{duration(elapsed)}{' of about' if elapsed <= usual else ', usually'} {duration(usual)}"


def _left_out(count: int) -> str:
    return f"… {count:,} earlier line{'s' * (count != 1)} left out; result.stdout(rank) has all of them"


# Rich items.


def _shown(rich: Rich) -> tuple[Atom, ...]:
    """Return a rich item as HTML."""
    for kind in (*_KINDS, *_TEXTS):
        if kind in rich.data:
            return (Shown(kind, _joined(rich.data[kind]), _size(rich.metadata.get(kind))),)
    return _as_lines(rich)


def _as_lines(rich: Rich) -> tuple[str, ...]:
    """Return a rich item as text: its plain text, else its media types."""
    for kind in reversed(_TEXTS):
        if kind in rich.data:
            return tuple(_joined(rich.data[kind]).splitlines()) or ("",)
    return (f"({', '.join(sorted(rich.data)) or 'nothing to show'})",)


def _joined(value: Any) -> str:
    """Return a mimebundle's value as text; long text may be a list of lines."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _size(metadata: Any) -> str:
    if not isinstance(metadata, Mapping):
        return ""
    sizes = [(name, metadata.get(name)) for name in ("width", "height")]
    # JSON may also hold infinite sizes.
    fit = [(name, size) for name, size in sizes if isinstance(size, (int, float)) and 0 < size < _MOST_PIXELS]
    return "".join(f' {name}="{int(size)}"' for name, size in fit)


# HTML.


def html_line(text: str, *, state: State, aside: str = "") -> str:
    """Return a line of state with a coloured dot; ``aside`` is in a lighter colour."""
    dot = f'<span style="{_STYLES[state]}">●</span>'
    quiet = f'<span style="opacity:0.75">{html.escape(aside)}</span>' if aside else ""
    return f'<div style="font-size:85%;margin:0 0 4px 0">{dot} {html.escape(text)}{quiet}</div>'


def html_start(text: str, *, state: State, aside: str = "", below: Iterable[str] = ()) -> str:
    """Return `html_line` as an output of its own, with more lines ``below``."""
    lines = "".join(_html_aside(line) for line in below)
    return f'<div style="{_OUTER}">{html_line(text, state=state, aside=aside)}{lines}</div>'


def _html_header(model: RunViewModel) -> str:
    troubles = _troubles(model)
    state: State = troubles[0][1] if troubles else "running" if _is_running(model) else "done"
    return html_line(" · ".join(header(model)), state=state)


def _html_aside(text: str) -> str:
    return f'<div style="{_MUTED};margin:0 0 2px 0">{html.escape(text)}</div>'


def _html_row(label: str, content: str, *, lines: int | None = None) -> str:
    """Return content under its ranks; it can be folded if it has ``lines``."""
    many = lines is not None and lines > _OPEN_LINES
    if many:
        label = " · ".join([*[label] * bool(label), f"{lines:,} lines"])
    if not label:
        return f'<div style="margin:0 0 2px 0">{content}</div>'
    if lines is not None:
        return (
            f'<details{"" if many else " open"} style="margin:0 0 2px 0">'
            f'<summary style="{_MUTED};line-height:1.4">{label}</summary>'
            f'<div style="border-left:2px solid #9e9e9e;padding-left:8px;margin:0 0 0 3px">{content}</div></details>'
        )
    return (
        '<div style="display:flex;margin:0 0 2px 0">'
        f'<div style="min-width:8em;max-width:8em;{_MUTED};line-height:1.4;padding:0 8px 0 0">'
        f'{label}</div><div style="min-width:0;width:100%;border-left:2px solid #9e9e9e;padding-left:8px">'
        f"{content}</div></div>"
    )


def _html_block(block: Block) -> str:
    parts = []
    if block.left_out:
        parts.append(_html_aside(_left_out(block.left_out)))
    for kind, atoms in itertools.groupby(block.atoms, _kind):
        if kind == "item":
            parts.extend(_html_shown(atom) for atom in atoms if isinstance(atom, Shown))
        else:
            parts.append(_pre(ansi.to_html("\n".join(map(str, atoms))), stderr=kind == "stderr"))
    return "".join(parts)


def _kind(atom: Atom) -> str:
    """Return the kind of an atom; neighbours of one kind may share an element."""
    if not isinstance(atom, str):
        return "item"
    return "stderr" if ansi.is_stderr(atom) else "stdout"


def _pre(content: str, *, stderr: bool = False) -> str:
    # A browser drops one newline right after the tag.
    content = "\n" * content.startswith("\n") + content
    style = (
        f"margin:0;padding:0;background:transparent;white-space:pre-wrap;word-wrap:break-word;{_CODE};line-height:1.3"
    )
    if stderr:
        style += f";{_BESIDE}"
    # In Markdown, which nbconvert makes of a notebook, an empty line ends HTML.
    return _EMPTY_LINE.sub(r"\1&#10;", f'<pre style="{style}">{content}</pre>')


def _html_shown(shown: Shown) -> str:
    if shown.kind == "text/html":
        # The same for values in which empty lines have no meaning.
        value = shown.value if _KEEPS_LINES.search(shown.value) else _EMPTY_LINE.sub("", shown.value)
        return f'<div style="overflow-x:auto">{value}</div>'
    if shown.kind.startswith("image/"):
        value = shown.value
        if shown.kind == "image/svg+xml":
            value = base64.b64encode(value.encode()).decode()
        source = f"data:{shown.kind};base64,{html.escape(''.join(value.split()))}"
        return f'<div><img src="{source}"{shown.size} alt="image" style="max-width:100%"></div>'
    return _pre(ansi.to_html(shown.value))
