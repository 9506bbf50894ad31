"""SimCSE as a Hugging Face Trainer extension."""

from .version import __version__

__all__ = ["__version__"]
