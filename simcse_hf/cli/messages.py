"""Show the messages of a long command, but not those that each of its many training runs would repeat."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import ERROR, INFO, WARNING, getLogger


@contextmanager
def messages_of(package: str, quiet: bool, levels: Mapping[str, int] = {}) -> Iterator[None]:
    """Show the messages of one part of the package, and of the rest only errors; hide progress bars.

    Args:
        package (`str`): The part, such as `"simcse_hf.training.adaptation"`.
        quiet (`bool`): Show only its warnings.
        levels (`Mapping[str, int]`, *optional*): Levels of further parts by their name.
    """
    import datasets
    from transformers.utils import logging

    from ..training.run import set_up_logging

    set_up_logging()
    shown = {"simcse_hf": ERROR, package: WARNING if quiet else INFO, **levels}
    before = {name: getLogger(name).level for name in shown}
    verbosity = logging.get_verbosity()
    for name, level in shown.items():
        getLogger(name).setLevel(level)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        for name, level in before.items():
            getLogger(name).setLevel(level)
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
        datasets.enable_progress_bars()
