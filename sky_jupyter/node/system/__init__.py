"""The machine and its processes: GPUs, metrics, locks, and who stands still."""
