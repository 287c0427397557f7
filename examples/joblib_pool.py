"""joblib's `Parallel` runs on the pool's ranks instead of this machine's processes.

Run it: python examples/joblib_pool.py
"""

import os

from joblib import Parallel, delayed

import sky_jupyter as sky


def cube(number: int) -> tuple[int, int]:
    return number**3, os.getpid()


if __name__ == "__main__":
    with sky.Compute(provider=sky.Local(), nodes=2, plugins=[sky.plugins.joblib()]):
        answers = Parallel(n_jobs=-1)(delayed(cube)(number) for number in range(40))

    print("cubes:", [answer for answer, _ in answers] == [number**3 for number in range(40)])
    print("computed here:", sum(pid == os.getpid() for _, pid in answers))
    print("computed by:", len({pid for _, pid in answers}), "processes")
