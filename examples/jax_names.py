"""A small GPT over letters in plain JAX: every node reads its part of the names, all train one model.

Run it: python examples/jax_names.py
"""

from typing import Any

import sky_jupyter as sky

NAMES = """
ada alan alma anna barbara bela clara dana donald edsger edith emma erna fran grace greta hanna hedy helen ida
ines irene jana jean joan john kara karen katherine lara lena leslie linda lotte mara maria marian mary mila
nadia nina nora olga paula petra radia rosa sara sofia stella tara tina ursula vera vita wanda
"""
LENGTH, WIDTH = 12, 32


@sky.function
@sky.stdout(only="head")
def train(steps: int) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    # The same letters and first parameters on all nodes.
    random = np.random.default_rng(1)
    names = NAMES.split()
    letters = ["", *sorted(set("".join(names)))]
    sizes = {
        "letter": (len(letters), WIDTH),
        "place": (LENGTH, WIDTH),
        **dict.fromkeys(("query", "key", "value", "mix"), (WIDTH, WIDTH)),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }
    start = {name: random.normal(0, 0.08, size).astype(np.float32) for name, size in sizes.items()}

    # A row is a name between two ends, filled up with ends.
    mine = sky.shard(names, drop_last=True)
    rows = np.zeros((len(mine), LENGTH + 1), np.int32)
    for row, name in zip(rows, mine, strict=True):
        row[1 : len(name) + 1] = [letters.index(letter) for letter in name]
    print(f"{len(mine)} names on each of {jax.process_count()} nodes")

    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    batch = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("batch")), rows)
    parameters = jax.device_put(start, NamedSharding(mesh, PartitionSpec()))

    def norm(x):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    def predict(p, tokens):
        x = p["letter"][tokens] + p["place"]
        seen = norm(x)
        fit = (seen @ p["query"]) @ (seen @ p["key"]).swapaxes(-1, -2) / WIDTH**0.5
        fit = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), fit, -1e9)
        x = x + jax.nn.softmax(fit) @ (seen @ p["value"]) @ p["mix"]
        x = x + jax.nn.relu(norm(x) @ p["up"]) @ p["down"]
        return norm(x) @ p["letter"].T

    def loss_of(p, rows):
        chances = jax.nn.log_softmax(predict(p, rows[:, :-1]))
        picked = jnp.take_along_axis(chances, rows[:, 1:, None], axis=-1)[..., 0]
        # Of the ends that fill a row up only the first counts.
        counts = (rows[:, :-1] > 0) | (jnp.arange(LENGTH) == 0)
        return -(picked * counts).sum() / counts.sum()

    @jax.jit
    def step(p, speed, rows):
        loss, slopes = jax.value_and_grad(loss_of)(p, rows)
        speed = jax.tree.map(lambda old, slope: 0.9 * old + slope, speed, slopes)
        return jax.tree.map(lambda value, v: value - 0.1 * v, p, speed), speed, loss

    speed, losses = jax.tree.map(jnp.zeros_like, parameters), []
    for number in range(steps):
        parameters, speed, loss = step(parameters, speed, batch)
        losses.append(float(loss))
        if number % 50 == 0:
            print(f"step {number}: loss {losses[-1]:.2f}")

    # Each node has all parameters, and can make names by itself.
    alone, predict = jax.tree.map(np.asarray, parameters), jax.jit(predict)
    made = []
    for _ in range(3):
        tokens = np.zeros((1, LENGTH), np.int32)
        for place in range(LENGTH - 1):
            scores = np.asarray(predict(alone, tokens))[0, place] / 0.7
            chances = np.exp(scores - scores.max())
            tokens[0, place + 1] = random.choice(len(letters), p=chances / chances.sum())
            if not tokens[0, place + 1]:
                break
        made.append("".join(letters[token] for token in tokens[0]))
    return {"first": losses[0], "last": losses[-1], "made": made}


if __name__ == "__main__":
    with sky.Compute(provider=sky.Local(), nodes=2, plugins=[sky.plugins.jax()]) as pool:
        results = train(steps=151) @ pool

    for node, result in enumerate(results):
        print(f"node {node}: loss {result['first']:.3f} to {result['last']:.6f}; {', '.join(result['made'])}")
