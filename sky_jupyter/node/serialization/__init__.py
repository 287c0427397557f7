"""Values on their way between processes."""
