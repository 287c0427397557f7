"""A run as data: what came of it, rank by rank."""
