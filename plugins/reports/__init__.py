"""Built-in reports: a study's published numbers beside those of its run."""
