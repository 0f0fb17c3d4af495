"""Speed, measured against what a user would write or install instead. Run with `make bench`."""
