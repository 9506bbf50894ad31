"""What a training row holds, by its name in `results.json`, in the words of cards."""

from typing import NamedTuple


class Content(NamedTuple):
    """What a row holds, in words.

    Args:
        words (`str`): Completes "1,000 rows of".
        trained (`str`): Completes "trained with the objective `x`".
    """

    words: str = "texts"
    trained: str = ""


CONTENTS = {
    "sentences": Content("single sentences", "without labels"),
    "pairs": Content("an anchor and a positive", "on pairs of sentences"),
    "hard negatives": Content(
        "an anchor, a positive and hard negatives",
        "on pairs of sentences with hard negatives",
    ),
    "nli": Content("a premise and its labelled hypotheses", "on premises with labelled hypotheses"),
    "scored pairs": Content("two sentences and the score of their similarity", "on scored pairs of sentences"),
    "scored lists": Content("a query and its candidates with scores", "on the scores of candidates"),
    "spans": Content(
        "a document, from which new spans are drawn in every epoch",
        "without labels on spans of documents",
    ),
    "documents": Content(
        "a sentence and a later sentence of the same document",
        "without labels on neighbouring sentences",
    ),
}
