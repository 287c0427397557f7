"""Keep the comms of a node's ranks in its agent; loaded by `agent.comm_hooks`."""
