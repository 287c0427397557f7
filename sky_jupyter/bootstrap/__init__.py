"""Bootstrap: from an image to an environment on a machine, phase by phase."""
