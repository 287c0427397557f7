"""All that runs on a node: host, agent, kernels, journal, and the runtime that user code sees."""
