"""Plain JAX on a mesh of all nodes' devices: sharded batches, one set of parameters, no library on top.

Run it: python examples/jax_mesh.py
"""

import sky_jupyter as sky


@sky.function
@sky.stdout(only="head")
def train(epochs: int, batch: int) -> dict[str, float]:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    info = sky.instance_info()
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    by_row, everywhere = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())
    print(f"{jax.process_count()} processes, {jax.device_count()} devices")

    # Ten clouds of points, the same on every node.
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 2000)
    points = (random.normal(0, 1, (10, 32))[labels] + random.normal(0, 1.2, (2000, 32))).astype(np.float32)
    x, y = sky.shard(points, labels, shuffle=True, drop_last=True)

    parameters = {
        "hidden": random.normal(0, 1 / 6, (32, 32)).astype(np.float32),
        "out": random.normal(0, 1 / 6, (32, 10)).astype(np.float32),
    }
    parameters = jax.device_put(parameters, everywhere)

    def loss_of(parameters, x, y):
        scores = jnp.tanh(x @ parameters["hidden"]) @ parameters["out"]
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], axis=1).mean()

    @jax.jit
    def step(parameters, x, y):
        # The batch lies on all nodes, the parameters are whole on each: XLA averages the gradients.
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        return jax.tree.map(lambda value, slope: value - 0.5 * slope, parameters, gradients), loss

    # Each process gives its rows; together they are one array.
    def whole(rows):
        return jax.make_array_from_process_local_data(by_row, rows)

    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(x))
        for start in range(0, len(x) - batch + 1, batch):
            rows = order[start : start + batch]
            parameters, loss = step(parameters, whole(x[rows]), whole(y[rows]))
        print(f"epoch {epoch + 1}: loss {float(loss):.3f}")

    hidden, out = (np.asarray(parameters[name]) for name in ("hidden", "out"))
    right = (np.tanh(points @ hidden) @ out).argmax(axis=1) == labels
    return {
        "node": info.node,
        "accuracy": float(right.mean()),
        "weights": float(np.abs(hidden).sum() + np.abs(out).sum()),
    }


if __name__ == "__main__":
    with sky.Compute(provider=sky.Local(), nodes=2, plugins=[sky.plugins.jax()]) as pool:
        results = train(epochs=4, batch=32) @ pool

    for result in results:
        print(f"node {result['node']}: accuracy {result['accuracy']:.3f}, weights {result['weights']:.6f}")
