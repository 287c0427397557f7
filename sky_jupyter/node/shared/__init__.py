"""Objects that ranks share by name."""
