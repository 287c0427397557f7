"""Machine and processes of a node: GPUs, metrics, locks, stopped processes."""
