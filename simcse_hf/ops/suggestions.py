"""What a mistyped word may have been meant as."""

import difflib
from collections.abc import Collection, Iterable


def did_you_mean(words: Iterable[str], known: Collection[str]) -> str:
    """Return a sentence that names the known word nearest to each mistyped one.

    Args:
        words (`Iterable[str]`): Words that were not understood. Those that are near to none are left out.
        known (`Collection[str]`): The words that there are.

    Returns:
        `str`: `" (did you mean --max_steps?)"`, or an empty string.
    """
    near = []
    for word in words:
        near += difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {', '.join(near)}?)" if near else ""
