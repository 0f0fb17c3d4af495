"""Solvers: one rule, one file."""
