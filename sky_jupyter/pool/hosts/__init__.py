"""Host processes, local and remote, their links and liveness checks."""
