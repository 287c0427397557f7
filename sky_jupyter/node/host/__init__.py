"""The first process of a pool on a machine, and the forkserver."""
