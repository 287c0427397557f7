"""Comms of a node's ranks, kept in its agent; loaded by `agent.comm_hooks`."""
