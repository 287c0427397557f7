"""Training a Keras model on scikit-learn's digits over several ranks: the same text in a cell and by hand.

Expects JAX and Keras set up across the ranks.
"""

import time

import keras
import numpy as np
from sklearn.datasets import load_digits


def prepared(rank: int, ranks: int):
    """A function that trains for a number of epochs; returns the seconds from the first step to the last.

    Those on the clock, and those of this process on processors.
    """
    images, labels = load_digits(return_X_y=True)
    even = len(images) // ranks * ranks
    x, y = (images[:even] / 16).astype(np.float32)[rank::ranks], labels[:even][rank::ranks]
    layers = [keras.layers.Dense(256, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

    def train(epochs: int) -> tuple[float, float]:
        began, spent = time.perf_counter(), time.process_time()
        model.fit(x, y, batch_size=32, epochs=epochs, verbose=1 if rank == 0 else 0)
        return time.perf_counter() - began, time.process_time() - spent

    train(1)  # compiles
    return train
