"""The same function on every node, each with its part of a text; the parts' counts are added up here.

Run it: python examples/broadcast.py
"""

from collections import Counter
from collections.abc import Sequence

import sky_jupyter as sky

TEXT = """
a pool is nodes made from one spec
a node is one machine of a pool
a rank is one process of a node
a run is one cell or call on a pool
"""


@sky.function
def count_words(lines: Sequence[str]) -> tuple[int, Counter[str]]:
    # All lines come to every node, which takes those that are its own.
    mine = sky.shard(lines)
    return len(mine), Counter(word for line in mine for word in line.split())


if __name__ == "__main__":
    lines = TEXT.strip().splitlines()
    with sky.Compute(provider=sky.Local(), nodes=2) as pool:
        answers = count_words(lines) @ pool

    for node, (seen, words) in enumerate(answers):
        print(f"node {node}: {seen} lines, {words.total()} words")
    merged = sum((words for _, words in answers), Counter[str]())
    print("most common:", merged.most_common(2))
