"""Views: a text or its token ids, changed at random so that it should mean the same; their names and rates."""

from .mlm import MaskedLMView as MaskedLMView
from .synonyms import EDA, SynonymReplacement
from .words import (
    Crop,
    CropAndReplacedTokens,
    DeleteOneWord,
    DeleteWords,
    FixedMask,
    Identity,
    NextSentence,
    NextThreeSentences,
    RepeatTokens,
    ReplacedTokens,
    Shuffle,
    TextView,
    TokenView,
    check_rate,
)

CROP_BEFORE_MLM = 0.1  # "Crop 10% + MLM 15%" in Table 2 of the first version of arXiv:2104.08821


#: The class of each view.
VIEW_CLASSES: dict[str, type[TextView | TokenView]] = {
    "identity": Identity,
    "fixed_mask": FixedMask,
    "crop": Crop,
    "delete_words": DeleteWords,
    "delete_one_word": DeleteOneWord,
    "synonyms": SynonymReplacement,
    "mlm": ReplacedTokens,
    "crop+mlm": CropAndReplacedTokens,
    "shuffle": Shuffle,
    "eda": EDA,
    "repeat_words": RepeatTokens,
    "next_sentence": NextSentence,
    "next_three_sentences": NextThreeSentences,
}
_RATES = {
    "crop": 0.1,
    "delete_words": 0.1,
    "mlm": 0.15,
    "crop+mlm": 0.15,
    "shuffle": 0.3,
    "eda": 0.1,
    "repeat_words": 0.32,
}
VIEWS = tuple(VIEW_CLASSES)
#: Views for which [`MaskedLMView`] replaces tokens on the device.
MASKED_LM_VIEWS = ("mlm", "crop+mlm")
#: Views whose pairs are neighbouring sentences of documents (see `next_sentence_pairs`).
DOCUMENT_VIEWS = ("next_sentence", "next_three_sentences")
#: Views that `ViewDataset` makes from single sentences.
DATASET_VIEWS = tuple(name for name in VIEWS if VIEW_CLASSES[name].is_drawn)


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
    known = view_rate(name, rate)
    if name == "crop+mlm":
        known = CROP_BEFORE_MLM
    return VIEW_CLASSES[name](known)


def view_rate(name: str, rate: float | None = None) -> float | None:
    """Return the rate of a view, by default its own; `None` if it takes none.

    The rate of a view of [`MASKED_LM_VIEWS`] is that of its [`MaskedLMView`].

    Args:
        name (`str`): One of `VIEWS`.
        rate (`float`, *optional*): The rate. Defaults to that of the view.

    Returns:
        `float`, *optional*: The rate.

    Raises:
        ValueError: If the name is unknown, the rate is outside [0, 1), or the view takes none.
    """
    if name not in VIEW_CLASSES:
        raise ValueError(f"view must be one of {', '.join(VIEWS)}, got {name!r}.")
    if rate is None:
        return _RATES.get(name)
    if name not in _RATES:
        raise ValueError(f"view {name} takes no view_rate (got {rate}); those that do are {', '.join(_RATES)}.")
    return check_rate(rate)
