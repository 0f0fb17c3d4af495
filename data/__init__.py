"""Small stored streams and reference results; README.md says where each comes from."""
