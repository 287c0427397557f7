"""The contract of plugins, and what they all need."""
