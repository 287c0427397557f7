"""The manager's client of the control plane."""
