"""Interface of the pool for user code on a rank."""
