"""What the user's code on a rank sees of the pool."""
