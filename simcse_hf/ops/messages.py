"""What a program shows of the log of this package. Nothing here imports torch at once."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager


def show_messages(quiet: bool = False) -> None:
    """Show this package's messages on the first process, and its warnings on all.

    Args:
        quiet (`bool`, *optional*, defaults to `False`): Show warnings only.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(module)s: %(message)s"))
    package = logging.getLogger("simcse_hf")
    package.handlers = [handler]
    package.propagate = False
    is_first = int(os.environ.get("RANK", "0")) == 0
    package.setLevel(logging.INFO if is_first and not quiet else logging.WARNING)


@contextmanager
def errors_only() -> Iterator[None]:
    """Log only errors and show no bars of loading, for a program that says itself what its runs are for."""
    import datasets
    import transformers.utils.logging as transformers_log

    levels = {name: logging.getLogger(name).level for name in ("simcse_hf", "transformers")}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    transformers_log.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        transformers_log.enable_progress_bar()
        datasets.enable_progress_bars()
