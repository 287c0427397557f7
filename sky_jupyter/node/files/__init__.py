"""File transfer to and between nodes, and the blob cache."""
