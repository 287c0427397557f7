"""Items go to a function and come from it one by one, while both sides work.

Run it: python examples/streaming.py
"""

from collections import deque
from collections.abc import Iterator

import sky_jupyter as sky


@sky.function
def squares() -> Iterator[int]:
    """Yield for ever: a stream goes no further ahead than its reader."""
    number = 0
    while True:
        yield number * number
        number += 1


@sky.function
def average(samples: Iterator[float]) -> float:
    """Take samples as they come; they are never all in memory."""
    total, count = 0.0, 0
    for sample in samples:
        total, count = total + sample, count + 1
    return total / count


@sky.function
def smooth(samples: Iterator[float], width: int) -> Iterator[float]:
    """Both at once."""
    window: deque[float] = deque(maxlen=width)
    for sample in samples:
        window.append(sample)
        yield sum(window) / len(window)


if __name__ == "__main__":
    with sky.Compute(provider=sky.Local(), nodes=2) as pool:
        first = []
        for square in squares() >> pool:
            first.append(square)
            if square > 50:
                break
        print("squares:", first)
        print("average:", average(number / 10 for number in range(1000)) >> pool)
        print("smoothed:", [round(value, 2) for value in smooth(iter([0.0, 3.0, 6.0, 9.0]), width=2) >> pool])
