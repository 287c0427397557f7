"""Contract between the manager, the agents and the kernels."""
