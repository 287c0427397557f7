"""Nodes that know nothing of each other: each call is a world of its own.

Run it: python examples/standalone.py
"""

import sky_jupyter as sky


@sky.function
def checksum(chunk: int) -> tuple[int, str]:
    import hashlib

    text = "".join(str(number) for number in range(chunk * 1000, (chunk + 1) * 1000))
    return chunk, hashlib.sha256(text.encode()).hexdigest()[:8]


if __name__ == "__main__":
    alone = sky.Options(cluster=False)
    with sky.Compute(provider=sky.Local(), nodes=2, options=alone) as pool:
        for chunk, digest in sky.gather(*(checksum(chunk) for chunk in range(6))) >> pool:
            print(f"chunk {chunk}: {digest}")
        print("everywhere:", checksum(0) @ pool)
