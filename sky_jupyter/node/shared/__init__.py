"""What ranks share by name."""
