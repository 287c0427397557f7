"""Registry of this user's pools and runs, an SQLite database."""
