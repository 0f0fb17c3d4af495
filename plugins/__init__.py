"""Built-in plugins; each file is found through its entry point, like anybody's."""
