"""Views: a text or its token ids, changed at random so that it should mean the same; their names and rates."""

from ...runtime.errors import SettingError, check_values
from .mlm import MaskedLMView as MaskedLMView
from .synonyms import EDA as EDA
from .words import VIEW_CLASSES as VIEW_CLASSES
from .words import TextView, TokenView


def make_view(name: str, rate: float | None = None) -> TextView | TokenView:
    """Make a view by its name.

    Args:
        name (`str`): A name of `VIEW_CLASSES`. A view that is not drawn from a text or its token ids leaves the text
            as it is.
        rate (`float`, *optional*): The rate. Defaults to `usual_rate` of the view.

    Returns:
        `TextView | TokenView`: The view.

    Raises:
        ValueError: If the name is unknown, the rate is outside [0, 1) or the view takes none, or synonyms and eda find
            no WordNet.

    Examples:
        >>> import random
        >>> from simcse_hf.data.views import make_view
        >>> view = make_view("delete_words", rate=0.4)
        >>> view("The old mariner found the horse at the port.", random.Random(0))
        'The mariner found the horse at'
    """
    rate = view_rate(name, rate)
    view = VIEW_CLASSES[name](rate)
    assert isinstance(view, (TextView, TokenView))
    return view


def view_rate(name: str, rate: float | None = None) -> float | None:
    """Return the rate of a view, by default its own; `None` if it takes none.

    Args:
        name (`str`): A name of `VIEW_CLASSES`.
        rate (`float`, *optional*): The rate. Defaults to `usual_rate` of the view.

    Returns:
        `float`, *optional*: The rate.

    Raises:
        SettingError: If the name is unknown, the rate is outside [0, 1), or the view takes none.
    """
    check_values(tuple(VIEW_CLASSES), view=name)
    usual = VIEW_CLASSES[name].usual_rate
    if rate is None:
        return usual
    if usual is None:
        with_rate = [known for known, view in VIEW_CLASSES.items() if view.usual_rate is not None]
        raise SettingError(f"view {name} takes no view_rate (got {rate}); those that do are {', '.join(with_rate)}.")
    check_values("a number of 0 or more and below 1", view_rate=rate)
    return rate
