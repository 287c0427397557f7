"""Facts about the front end, and prompts, that all views need."""
