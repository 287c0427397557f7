"""What magics and the API have in common: pools by name, and one view for calls that run together."""
