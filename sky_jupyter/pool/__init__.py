"""The manager: a pool's life, its control plane, its runs and results."""
