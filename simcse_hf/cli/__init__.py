"""The commands of the console script `simcse-hf`."""
