"""The package's version, read by pyproject.toml without importing anything heavy."""

__version__ = "0.1.0"
