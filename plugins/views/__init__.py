"""Views: maps of keys and queries."""
