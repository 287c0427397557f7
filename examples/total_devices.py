"""Every node sees the devices of all nodes, and one computation runs on a mesh of them.

Run it: python examples/total_devices.py
"""

import sky_jupyter as sky


@sky.function
def count_devices():
    import jax
    import numpy as np
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    print(f"node {sky.instance_info().node}: {jax.local_device_count()} devices of {jax.device_count()}")

    # One array with a number on each device of the mesh; its sum needs all nodes.
    mesh = jax.make_mesh((jax.device_count(),), ("devices",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("devices"))
    ones = jax.make_array_from_process_local_data(sharding, np.ones(jax.local_device_count()))
    return jax.device_count(), float(ones.sum())


@sky.function
def where(greeting):
    return f"{greeting} from node {sky.instance_info().node}"


with sky.Compute(provider=sky.Local(), nodes=2, plugins=[sky.plugins.jax(devices=2)]) as pool:
    for node, (devices, total) in enumerate(count_devices() @ pool):
        print(f"node {node} counted {devices} devices, and {total:g} over the mesh")
    print(where("one answer") >> pool)
