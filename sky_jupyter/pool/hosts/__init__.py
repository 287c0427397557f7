"""Host processes, local and remote, with their links and the checks of machines."""
