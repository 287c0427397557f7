"""A run as its views see it, and how it is drawn as text and HTML."""
