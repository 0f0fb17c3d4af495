"""One module per command of `engine`; `engine.cli` puts them together."""
