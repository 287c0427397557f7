"""Host processes here and on other machines, and what is known of their machines."""
