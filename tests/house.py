"""Draw the packages of `sky_jupyter` and which imports which: docs/images/packages.svg.

Run as ``python -m tests.house`` after an import between two packages has come or gone. An arrow that others imply is
left out.
"""

from __future__ import annotations

from html import escape

from tests import test_layout as layout

PICTURE = layout.ROOT / "docs" / "images" / "packages.svg"
WHAT = {
    "cli": "the program sky-jupyter",
    "magics": "%sky and %%sky",
    "api": "Compute, @function, operators",
    "session": "a run or a start with its view",
    "widgets": "ipywidgets of ranks",
    "display": "views",
    "server": "Jupyter Server extension",
    "mcp_server": "pools as tools of agents",
    "access": "pools of other processes",
    "pool": "manager of a pool",
    "capture": "what a cell depends on",
    "providers": "make and end machines",
    "bootstrap": "image to environment",
    "machines": "run a command, move a file",
    "plugins": "what frameworks need",
    "spec": "descriptions of pools",
    "node": "all that runs on a node",
}
ROOMS = list(WHAT)
WIDTH, HEIGHT, ACROSS, DOWN = 196, 46, 26, 44


def arrows() -> dict[str, set[str]]:
    """Return which packages each imports from, those left out that others of them lead to."""
    direct: dict[str, set[str]] = {room: set() for room in ROOMS}
    for path in layout.modules():
        for item in layout.imports_of(path):
            room, target = item.room, (item.inner or "").partition(".")[0]
            if room in direct and target in direct and target != room:
                direct[room].add(target)
    return {
        room: {target for target in targets if not any(_leads(direct, other, target) for other in targets - {target})}
        for room, targets in direct.items()
    }


def _leads(direct: dict[str, set[str]], start: str, end: str) -> bool:
    return end in direct[start] or any(_leads(direct, middle, end) for middle in direct[start])


def floors(drawn: dict[str, set[str]]) -> list[list[str]]:
    """Return the packages by how far they are above the lowest one, the highest first."""

    def height_of(room: str) -> int:
        return max((height_of(target) + 1 for target in drawn[room]), default=0)

    height = {room: height_of(room) for room in ROOMS}
    top = max(height.values())
    return [[room for room in ROOMS if height[room] == level] for level in range(top, -1, -1)]


def picture() -> str:
    """Return the picture as SVG."""
    drawn = arrows()
    rows = floors(drawn)
    wide = max(len(row) for row in rows) * (WIDTH + ACROSS) - ACROSS + 40
    place: dict[str, tuple[float, float]] = {}

    def middle(room: str) -> float:
        """Return where the packages stand that import it, so that arrows cross few boxes."""
        above = [place[other][0] for other in place if room in drawn[other]]
        return sum(above) / len(above) if above else 0.0

    for level, unsorted in enumerate(rows):
        row = sorted(unsorted, key=middle)
        left = (wide - len(row) * (WIDTH + ACROSS) + ACROSS) / 2
        for at, room in enumerate(row):
            place[room] = (left + at * (WIDTH + ACROSS), 20 + level * (HEIGHT + DOWN))
    high = 40 + len(rows) * (HEIGHT + DOWN) - DOWN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high:.0f}" '
        f'viewBox="0 0 {wide:.0f} {high:.0f}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#5b6472"/></marker>',
    ]
    for room, targets in drawn.items():
        for target in sorted(targets, key=ROOMS.index):
            (x, y), (to_x, to_y) = place[room], place[target]
            x, y, to_x, bend = x + WIDTH / 2, y + HEIGHT, to_x + WIDTH / 2, (to_y - y - HEIGHT) / 2
            curve = f"M{x:.0f} {y:.0f} C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y:.0f}"
            lines.append(f'<path d="{curve}" fill="none" stroke="#5b6472" marker-end="url(#tip)"/>')
    for room, (x, y) in place.items():
        lines += [
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#eef3fb" stroke="#4472c4"/>',
            f'<text x="{x + WIDTH / 2:.0f}" y="{y + 19:.0f}" text-anchor="middle" font-size="14" '
            f'font-weight="bold" fill="#1d2530">{room}</text>',
            f'<text x="{x + WIDTH / 2:.0f}" y="{y + 36:.0f}" text-anchor="middle" font-size="11" '
            f'fill="#1d2530">{escape(WHAT[room])}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
