"""Two functions, and one answer of each from a node.

Run it: python examples/hello.py
"""

import sky_jupyter as sky


@sky.function
def greet(name: str) -> str:
    info = sky.instance_info()
    return f"hello {name}, from node {info.node} of {info.total_nodes}"


@sky.function
def spread(numbers: list[float]) -> dict[str, float]:
    import statistics

    return {"mean": statistics.fmean(numbers), "deviation": statistics.pstdev(numbers)}


if __name__ == "__main__":
    with sky.Compute(provider=sky.Local()) as pool:
        print(greet("you") >> pool)
        # The module itself stands for the pool of the block.
        print(spread([2, 4, 4, 4, 5, 5, 7, 9]) >> sky)
        # The plain function, called here.
        print(spread.local([1, 3]))
