"""Many calls at once: a fixed few with `&`, as many as there are with `gather`, one as a future.

Run it: python examples/parallel.py
"""

import time

import sky_jupyter as sky


@sky.function
def total(numbers: list[int]) -> int:
    return sum(numbers)


@sky.function
def digits(number: int) -> str:
    return str(2**number)


@sky.function
def wait(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


if __name__ == "__main__":
    with sky.Compute(provider=sky.Local(), nodes=2) as pool:
        chunks = [range(first, first + 100) for first in range(0, 400, 100)]
        print("chunks:", sky.gather(*(total(list(chunk)) for chunk in chunks)) >> pool)

        # Different functions, each answer of its own type.
        number, text = (total([1, 2, 3]) & digits(10)) >> pool
        print("both:", number + 1, text + "!")

        # As they end, or in the order asked for.
        calls = [wait(0.6), wait(0.05)]
        print("as they end:", list(sky.gather(*calls, stream=True, ordered=False) >> pool))
        print("in order:", list(sky.gather(*calls, stream=True) >> pool))

        # It runs while this goes on.
        future = digits(64) > pool
        print("meanwhile:", sum(range(5)))
        print("future:", future.result())

        print("map:", pool.map(digits, [1, 2, 3]))
