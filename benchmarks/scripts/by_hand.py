"""JAX and Keras on several ranks without a pool: ``KERAS_BACKEND=jax python by_hand.py RANK RANKS PORT``.

Says ``ready`` once all have met in a collective. Then, for each number of epochs that it reads, it
trains on the digits and says ``took`` and how many seconds, on the clock and on processors.
"""

import sys

import jax
import keras
from jax.experimental import multihost_utils

rank, ranks, port = map(int, sys.argv[1:])
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=ranks, process_id=rank)
keras.utils.set_random_seed(int(multihost_utils.broadcast_one_to_all(jax.numpy.uint32(1))))
everything = keras.distribution.list_devices()
keras.distribution.set_distribution(keras.distribution.DataParallel(devices=everything, auto_shard_dataset=False))
print("ready", flush=True)

train = None
for line in sys.stdin:
    if train is None:
        from digits import prepared

        train = prepared(rank, ranks)
    print("took", *train(int(line)), flush=True)
jax.distributed.shutdown()
