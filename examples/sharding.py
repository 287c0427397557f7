"""Each node takes its part of arrays that belong together, whatever their types.

Run it: python examples/sharding.py
"""

import numpy as np

import sky_jupyter as sky


@sky.function
def look(points: np.ndarray, labels: list[int]) -> tuple[list[int], bool]:
    # The same rows of both, in an order that all nodes agree on.
    mine, its_labels = sky.shard(points, labels, shuffle=True, seed=7)
    return its_labels, all(int(point[0]) == label for point, label in zip(mine, its_labels, strict=True))


@sky.function
def kinds() -> list[str]:
    whole = [list(range(10)), tuple(range(10)), range(10), "abcdefghij", np.arange(10)]
    return [type(sky.shard(kind)).__name__ for kind in whole]


@sky.function
def equal_parts(numbers: list[int]) -> list[int]:
    return sky.shard(numbers, drop_last=True)


if __name__ == "__main__":
    labels = list(range(100))
    points = np.stack([np.array(labels, float), np.sqrt(labels)], axis=1)
    with sky.Compute(provider=sky.Local(), nodes=2) as pool:
        answers = look(points, labels) @ pool
        for node, (rows, paired) in enumerate(answers):
            print(f"node {node}: {len(rows)} rows, still paired: {paired}")
        together = sorted(label for rows, _ in answers for label in rows)
        print("every row once:", together == labels)
        print("kinds:", *(kinds() >> pool))
        print("equal parts:", [len(part) for part in equal_parts([*labels, 100]) @ pool])

    # What a node of four would get, without a pool.
    print("third of four:", sky.shard(labels[:8], node=2, total_nodes=4))
