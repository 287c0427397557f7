"""What runs have printed and returned, on the node's disk."""
