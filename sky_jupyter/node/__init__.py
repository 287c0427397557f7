"""Everything that runs on a node: host, agent, kernels, journal and runtime."""
