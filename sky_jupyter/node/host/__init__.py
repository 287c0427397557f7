"""Host process of a pool on a machine."""
