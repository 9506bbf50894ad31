"""The names views go by, their rates, and how they are made."""

from dataclasses import dataclass

from .base import TextView, TokenView, Unchanged, check_rate
from .synonyms import EDA, SynonymReplacement
from .tokens import RepeatTokens, Shuffle
from .words import Crop, DeleteOneWord, DeleteWords

CROP_BEFORE_MLM = 0.1  # "Crop 10% + MLM 15%" in Table 2 of the first version of arXiv:2104.08821


@dataclass(frozen=True)
class _View:
    """`rate` is the default, None where there is none to choose; `masked_lm` the default rate of the device's part."""

    kind: type[TextView] | type[TokenView] = Unchanged
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
#: Views whose pairs come out of documents (see `next_sentence_pairs`).
DOCUMENT_VIEWS = tuple(name for name, view in _VIEWS.items() if view.documents)
#: Views that a `ViewDataset` makes of single sentences.
DATASET_VIEWS = tuple(n for n, v in _VIEWS.items() if v.kind is not Unchanged or v.masked_lm is not None)


def make_view(name: str, rate: float | None = None) -> TextView | TokenView:
    """The view of a name; one that changes nothing where texts are not what the view changes.

    Args:
        name: one of `VIEWS`.
        rate: None is the default: crop and delete_words 0.1 (the best of SimCSE's 0.1, 0.2 and 0.3), shuffle 0.3, eda
            0.1, repeat_words 0.32, mlm 0.15. crop+mlm crops 0.1; its rate is the masked-LM's, 0.15.

    Raises:
        ValueError: an unknown name; a rate outside [0, 1), or for a view without one; synonyms or eda without
            WordNet.
    """
    view = _known(name, rate)
    if name == "crop+mlm":
        return Crop(CROP_BEFORE_MLM)
    if view.rate is None:
        return view.kind()
    return view.kind(view.rate if rate is None else rate)


def masked_lm_rate(name: str, rate: float | None = None) -> float | None:
    """The rate for [`MaskedLMView`]; None for views that need no masked-LM.

    Raises:
        ValueError: as for [`make_view`].
    """
    view = _known(name, rate)
    return view.masked_lm if view.masked_lm is None or rate is None else rate


def _known(name: str, rate: float | None) -> _View:
    if name not in _VIEWS:
        raise ValueError(f"view must be one of {', '.join(VIEWS)}, got {name!r}")
    view = _VIEWS[name]
    if rate is not None:
        if view.rate is None and view.masked_lm is None:
            rated = ", ".join(n for n, v in _VIEWS.items() if v.rate is not None or v.masked_lm is not None)
            raise ValueError(f"view {name} takes no view_rate (got {rate}); those that do are {rated}")
        check_rate(rate)
    return view
