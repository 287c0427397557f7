"""Keep the comms of a node's ranks, in its agent; `node.agent.comm_hooks` loads it."""
