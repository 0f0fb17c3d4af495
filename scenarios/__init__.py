"""Scenarios that ship with the engine, runnable by name."""
