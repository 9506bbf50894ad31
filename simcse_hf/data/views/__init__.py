"""Views: a text or its token ids, changed at random so that it should mean the same; their names and rates."""

from dataclasses import dataclass

from .mlm import MaskedLMView as MaskedLMView
from .synonyms import EDA, SynonymReplacement
from .words import Crop, DeleteOneWord, DeleteWords, RepeatTokens, Shuffle, TextView, TokenView, Unchanged, check_rate

CROP_BEFORE_MLM = 0.1  # "Crop 10% + MLM 15%" in Table 2 of the first version of arXiv:2104.08821


@dataclass(frozen=True)
class _View:
    """A view's class, its default rate (`None` if it takes none) and the default rate of a masked-LM on the device."""

    view_class: type[TextView] | type[TokenView] = Unchanged
    rate: float | None = None
    masked_lm: float | None = None
    documents: bool = False


_VIEWS = {
    "identity": _View(),
    "fixed_mask": _View(),
    "crop": _View(Crop, rate=0.1),
    "delete_words": _View(DeleteWords, rate=0.1),
    "delete_one_word": _View(DeleteOneWord),
    "synonyms": _View(SynonymReplacement),
    "mlm": _View(masked_lm=0.15),
    "crop+mlm": _View(Crop, masked_lm=0.15),
    "shuffle": _View(Shuffle, rate=0.3),
    "eda": _View(EDA, rate=0.1),
    "repeat_words": _View(RepeatTokens, rate=0.32),
    "next_sentence": _View(documents=True),
    "next_three_sentences": _View(documents=True),
}
VIEWS = tuple(_VIEWS)
#: Views for which [`MaskedLMView`] replaces tokens on the device.
MASKED_LM_VIEWS = tuple(name for name, view in _VIEWS.items() if view.masked_lm is not None)
#: Views whose pairs are neighbouring sentences of documents (see `next_sentence_pairs`).
DOCUMENT_VIEWS = tuple(name for name, view in _VIEWS.items() if view.documents)
#: Views that `ViewDataset` makes from single sentences.
DATASET_VIEWS = tuple(n for n, v in _VIEWS.items() if v.view_class is not Unchanged or v.masked_lm is not None)


def make_view(name: str, rate: float | None = None) -> TextView | TokenView:
    """Make a view by its name.

    Args:
        name (`str`): One of `VIEWS`. A view that is not made from a text or its token ids leaves the text as it is.
        rate (`float`, *optional*): The rate. Defaults to 0.1 for crop and delete_words (the best of SimCSE's 0.1, 0.2
            and 0.3), 0.3 for shuffle, 0.1 for eda, 0.32 for repeat_words and 0.15 for mlm. crop+mlm always crops 0.1;
            its rate is that of the masked-LM, 0.15.

    Returns:
        `TextView | TokenView`: The view.

    Raises:
        ValueError: If the name is unknown, the rate is outside [0, 1) or the view takes none, or synonyms and eda find
            no WordNet.
    """
    view = _known(name, rate)
    if name == "crop+mlm":
        return Crop(CROP_BEFORE_MLM)
    if view.rate is None:
        return view.view_class()
    return view.view_class(view.rate if rate is None else rate)  # type: ignore[call-arg]  # a class with a rate


def masked_lm_rate(name: str, rate: float | None = None) -> float | None:
    """Return the rate of the [`MaskedLMView`] that a view needs.

    Args:
        name (`str`): One of `VIEWS`.
        rate (`float`, *optional*): The rate. Defaults to that of the view.

    Returns:
        `float`, *optional*: The rate, or `None` for a view that needs no masked-LM.

    Raises:
        ValueError: As for [`make_view`].
    """
    view = _known(name, rate)
    return view.masked_lm if view.masked_lm is None or rate is None else rate


def _known(name: str, rate: float | None) -> _View:
    if name not in _VIEWS:
        raise ValueError(f"view must be one of {', '.join(VIEWS)}, got {name!r}.")
    view = _VIEWS[name]
    if rate is not None:
        if view.rate is None and view.masked_lm is None:
            rated = ", ".join(n for n, v in _VIEWS.items() if v.rate is not None or v.masked_lm is not None)
            raise ValueError(f"view {name} takes no view_rate (got {rate}); those that do are {rated}.")
        check_rate(rate)
    return view
