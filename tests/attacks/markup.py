"""Saved outputs of real runs and pools, with each of their values and names exchanged for what a page might run.

`record` runs cells on a real pool and gives what their notebook keeps. `mutations` exchanges one value or name at a
time, `dressed` all texts at once. `notebook` puts such outputs into a file, `PRESS` does in a page what a person may.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat

RUN = "application/vnd.sky.run.v1+json"
POOL = "application/vnd.sky.pool.v1+json"
#: What a script that runs writes on the console, and what an address that is loaded holds.
MARK = "sky-ran"
_DO = f"console.log('{MARK}')"

#: What a value becomes: each would run, load or be obeyed in another part of a page.
PAYLOADS = {
    "handler": f'<img src="/sky-x" onerror="{_DO}">',
    "script": f'"><script>{_DO}</script>',
    "svg": f'</textarea></title></style></pre><svg onload="{_DO}"><animate onbegin="{_DO}" attributeName="x">',
    "address": f"javascript:{_DO}//",
    "attribute": f'x" autofocus tabindex="0" onfocus="{_DO}" onmouseover="{_DO}" onclick="{_DO}" y="',
    "style": f"red;background:url(/{MARK}-style)}}</style><style>*{{background:url(/{MARK}-sheet) !important}}",
    "frame": f"""<iframe srcdoc="<script>parent.{_DO}</script>"></iframe><object data="javascript:{_DO}"></object>""",
    "link": f'<a href="javascript:{_DO}" data-commandlinker-command="sky-jupyter:refresh-pools">press</a>',
    "page": f'<base href="//{MARK}.invalid/"><meta http-equiv="refresh" content="0;url=javascript:{_DO}">',
    "import": f'<link rel="stylesheet" href="/{MARK}-link"><script src="/{MARK}-script"></script>',
    "latex": rf"$\href{{javascript:{_DO}}}{{press}}$ \(\style{{background:url(/{MARK}-tex)}}{{x}}\)",
    "markdown": f"[press](javascript:{_DO}) ![x](/sky-x) <https://{MARK}.invalid/>",
    "colours": f'\x1b[31;"onmouseover="{_DO}"m<b onclick="{_DO}">\x1b]8;;javascript:{_DO}\x07x\x1b[0m',
    "bar": f'50%|{"█" * 5}| <img src="/sky-x" onerror="{_DO}"> 5/10 [00:01<00:01, <svg onload="{_DO}">]',
    "template": f"${{{_DO}}} {{{{constructor.constructor('{_DO}')()}}}} %sky up\n!touch /tmp/{MARK}",
    "name": "__proto__",
}
#: All of them that hold markup, in one text.
EVERYTHING = "".join(PAYLOADS[name] for name in ("attribute", "svg", "script", "handler", "frame", "link", "style"))
#: What a value becomes that is of another kind.
SHAPES: dict[str, Any] = {
    "everything": EVERYTHING,
    "list": [PAYLOADS["handler"]],
    "object": {"toString": PAYLOADS["handler"], "length": 3, "__proto__": {"polluted": MARK}},
    "null": None,
    "true": True,
    "huge": 1e308,
    "negative": -1,
    "fraction": 0.5,
}

_ITEMS = """
from IPython.display import HTML, JSON, Latex, Markdown, SVG, Image, display
import base64, sys, sky_jupyter as sky
rank = sky.instance_info().rank
dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
print("\\x1b[31mred\\x1b[0m of rank", rank)
print("to stderr", file=sys.stderr)
for step in range(3):
    print(f"\\rtrain:  {step}0%|###       | {step}/10 [00:01<00:01, 4.2it/s]", end="", file=sys.stderr)
print(file=sys.stderr)
bar = "<progress value='5' max='10'></progress> [5/10 00:01]"
display(HTML(f"<table><tr><td>7</td></tr></table>{bar}"), display_id="table")
display(Markdown("*words*"), Latex("$x^2$"), JSON({"a": 1}), SVG("<svg xmlns='http://www.w3.org/2000/svg'/>"))
display(Image(base64.b64decode(dot), format="png"))
Markdown(f"result of **{rank}**")"""
_RAISES = """
print("before")
if rank == 1:
    raise ValueError("shard 1 is empty")"""
CELLS = {
    "load": "%load_ext sky_jupyter",
    "rich": f"%%sky --nodes 2\n{_ITEMS}",
    "failed": f"%%sky --grace 1\n{_RAISES}",
    "one": f"%%sky --on 0\n{_ITEMS}",
    "died": "%%sky\nimport os\nif rank == 1: os._exit(3)",
    "panel": "%sky",
    "end": "%sky down",
}
_MANY = 300


def record(folder: Path) -> dict[str, dict[str, Any]]:
    """The outputs of real runs and of a real pool's panel, by name, as nbclient saves them."""
    from nbclient import NotebookClient

    cells = [nbformat.v4.new_code_cell(source, metadata={"tags": ["raises-exception"]}) for source in CELLS.values()]
    book = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    found = {}
    for name, cell in zip(CELLS, book.cells, strict=True):
        for output in cell.outputs:
            if kind := next((kind for kind in (RUN, POOL) if kind in output.get("data", {})), None):
                found[name] = {"kind": kind, "text": output["data"]["text/plain"], "bundle": output["data"][kind]}
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def variants(outputs: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What real outputs become: a run that goes on, one of 300 ranks, a pool that is being started."""
    rich, panel = outputs["rich"], outputs["panel"]
    going = copy.deepcopy(rich["bundle"]) | {"finished": False, "state": "running", "view": "f" * 32}
    for rank in going["ranks"]:
        rank["state"] = "running"
    many = copy.deepcopy(rich["bundle"])
    many["ranks"] = [{**many["ranks"][number % 2], "rank": number} for number in range(_MANY)]
    start = {**panel["bundle"], "pools": [], "start": {"pool": "p", "text": "environment 1 s"}}
    return {
        **outputs,
        "going": {**rich, "bundle": going},
        "many": {**rich, "bundle": many},
        "start": {**panel, "bundle": start},
    }


Place = tuple[str | int, ...]


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """The places of all values in a bundle, inner ones too."""
    if place:
        yield place
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*place, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*place, index))


def mutations(bundle: Any, shapes: Mapping[str, Any], seen: set[Place]) -> Iterator[tuple[str, Any]]:
    """The bundle with one value exchanged for each of the shapes, or one name for markup; each with what was done.

    Of places that differ by a number in a list only, the first one is taken; those in `seen` have had their turn.
    """
    for place in places(bundle):
        kind = tuple("*" if isinstance(step, int) else step for step in place)
        if kind in seen:
            continue
        seen.add(kind)
        where = ".".join(map(str, place))
        for name, shape in shapes.items():
            yield f"{where}: {name}", changed(bundle, place, shape)
        if isinstance(place[-1], str):
            yield f"{where}: name", changed(bundle, place, None, name=PAYLOADS["handler"])
            yield f"{where}: gone", changed(bundle, place, None, name="")


def changed(bundle: Any, place: Place, shape: Any, name: str | None = None) -> Any:
    """A copy of a bundle with another value at a place, or the same value under another name; without it for ""."""
    copied = copy.deepcopy(bundle)
    holder = copied
    for step in place[:-1]:
        holder = holder[step]
    if name is None:
        holder[place[-1]] = shape
    else:
        kept = holder.pop(place[-1])
        if name:
            holder[name] = kept
    return copied


def dressed(value: Any, payload: str) -> Any:
    """The bundle with a payload behind each of its texts: it fits, and nothing in it is as it should be."""
    if isinstance(value, dict):
        return {name: inner if name in _FIXED else dressed(inner, payload) for name, inner in value.items()}
    if isinstance(value, list):
        return [dressed(inner, payload) for inner in value]
    return f"{value}{payload}" if isinstance(value, str) else value


# Of a run these are one of a few words; of a pool anything.
_FIXED = ("state", "stream")


def attacks(outputs: Mapping[str, dict[str, Any]], shapes: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """All mutated outputs, each with a name that says what was done."""
    found = []
    seen: dict[str, set[Place]] = {RUN: set(), POOL: set()}
    for name, output in variants(outputs).items():
        kind, bundle = output["kind"], output["bundle"]
        changes = [(f"dressed: {payload}", dressed(bundle, text)) for payload, text in PAYLOADS.items()]
        if name == "many":
            # Of so many ranks one is enough to draw.
            changes = changes[:1]
        changes += mutations(bundle, shapes, seen[kind])
        changes += [(f"version {version!r}", {**bundle, "version": version}) for version in (0, 2, EVERYTHING)]
        found += [(f"{name} {what}", {**output, "bundle": changed}) for what, changed in changes]
    return found


def notebook(outputs: Sequence[dict[str, Any]], path: Path, per_cell: int = 25) -> None:
    """A notebook that nobody trusts, with these outputs."""
    made = [
        nbformat.v4.new_output(
            "display_data", data={output["kind"]: output["bundle"], "text/plain": f"{output['text'][:200]}{EVERYTHING}"}
        )
        for output in outputs
    ]
    cells = [
        nbformat.v4.new_code_cell("'somebody else'", outputs=made[start : start + per_cell])
        for start in range(0, len(made), per_cell)
    ]
    book = nbformat.v4.new_notebook(cells=cells)
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    # Not by nbformat, which trusts nothing here and refuses what is not as it should be.
    path.write_text(json.dumps(book))


#: Shows the first tabs, unfolds, filters, presses each button, and passes the pointer and the focus over everything.
PRESS = """async () => {
    const frames = async () => {
        for (let count = 0; count < 3; count++) {
            await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
        }
    };
    const views = [...document.querySelectorAll(".sky-run, .sky-live, .sky-as-text")];
    const each = async (selector, act) => {
        views.forEach((view, index) =>
            view.querySelectorAll(selector).forEach((node, place) => act(node, place, index)));
        await frames();
    };
    for (let tab = 0; tab < 3; tab++) {
        await each("[role=tab]", (node, place) => place === tab && node.click());
    }
    await each("[role=tab]", (node, place) => {
        if (place === 1) {
            node.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
        }
    });
    await each("details", node => { node.open = true; });
    await each("input[type=search]", node => {
        node.value = "e";
        node.dispatchEvent(new Event("input"));
    });
    // One file is enough.
    await each("button:not([role=tab])", (node, _, index) => {
        if (index === 0 || node.textContent !== "Download") {
            node.click();
        }
    });
    await each("*", node => {
        node.dispatchEvent(new MouseEvent("mouseover"));
        node.dispatchEvent(new FocusEvent("focus"));
    });
    return views.length;
}"""
#: What stands in the outputs that could run, or lead somewhere, though nobody has pressed it yet.
FOUND = """() => {
    const found = [];
    const look = (root) => {
        for (const node of root.querySelectorAll(".sky-run *, .sky-live *, .sky-as-text, .sky-as-text *")) {
            const bad = [...node.attributes].filter(({ name, value }) =>
                /^on|^srcdoc$|commandlinker/i.test(name) || /^\\s*javascript:/i.test(value) && name !== "aria-label");
            const frame = node.tagName === "IFRAME" && node.getAttribute("sandbox") === "allow-same-origin";
            if ((bad.length && !frame) || /^(script|object|embed|base|meta|link)$/i.test(node.tagName)) {
                found.push(node.outerHTML.slice(0, 200));
            }
        }
    };
    look(document);
    return { found, polluted: ({}).polluted ?? null };
}"""
