"""Generators: one kind of stream, one file."""
