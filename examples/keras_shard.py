"""One Keras model, trained by two nodes on their shards of scikit-learn's digits.

Run it: python examples/keras_shard.py
"""

import sky_jupyter as sky


@sky.function
@sky.stdout(only="head")
def train(epochs):
    import keras
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    info = sky.instance_info()
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(images / 16, labels, test_size=0.2, random_state=0)

    # Equal parts: the nodes take their steps together. The keras plugin averages their gradients.
    x_train, y_train = sky.shard(x_train, y_train, shuffle=True, drop_last=True)
    x_test, y_test = sky.shard(x_test, y_test)
    print(f"{info.total_nodes} nodes, {len(x_train)} images on each")

    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x_train, y_train, batch_size=32, epochs=epochs, verbose=2)

    right = model.predict(x_test, verbose=0).argmax(axis=1) == y_test
    weights = sum(float(abs(weight).sum()) for weight in model.get_weights())
    return {"node": info.node, "accuracy": float(right.mean()), "weights": weights}


if __name__ == "__main__":
    plugins = [sky.plugins.jax(), sky.plugins.keras(backend="jax")]
    with sky.Compute(provider=sky.Local(), nodes=2, plugins=plugins) as pool:
        results = train(epochs=10) @ pool

    for result in results:
        print(f"node {result['node']}: accuracy {result['accuracy']:.3f}, weights {result['weights']:.6f}")
