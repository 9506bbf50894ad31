"""Objectives, views and training rows in a card's words, each with its papers."""

from dataclasses import dataclass

#: What a training row holds, by the names of `describe_run`: in "{n} rows of ...", and of the model in its summary.
ROWS = {
    "sentences": ("single sentences", " without labels"),
    "pairs": ("an anchor and a positive", " on pairs of sentences"),
    "hard negatives": ("an anchor, a positive and hard negatives", " on pairs of sentences with hard negatives"),
    "nli": ("a premise and its labelled hypotheses", " on premises with labelled hypotheses"),
    "spans": ("a document, whose spans are drawn anew every epoch", " without labels, on spans of documents"),
    "documents": ("a sentence and a later one of its document", " without labels, on neighbouring sentences"),
}


@dataclass(frozen=True)
class Method:
    """How an objective trains, its name in the field, what it is, and its papers: the first is the summary's link."""

    trained_by: str
    name: str
    what: str
    papers: tuple[str, ...]


METHODS = {
    "simcse": Method("contrastive learning", "SimCSE", "InfoNCE with the batch as negatives", ("simcse",)),
    "softmax": Method(
        "classifying entailment", "SBERT", "a classifier of entailment, neutral and contradiction", ("sbert", "liao")
    ),
    "supcon": Method(
        "supervised contrastive learning", "Liao 2021", "a premise's entailed hypotheses against all others", ("liao",)
    ),
    "softmax+supcon": Method(
        "classifying entailment and supervised contrastive learning",
        "Liao 2021",
        "an entailment classifier and the supervised contrastive loss together",
        ("liao", "sbert"),
    ),
    "barlow_twins": Method(
        "dimension-contrastive self-supervision",
        "Barlow Twins",
        "the cross-correlation of two views, pulled towards the identity",
        ("barlow_twins", "non_contrastive"),
    ),
    "vicreg": Method(
        "dimension-contrastive self-supervision",
        "VICReg",
        "invariance, variance and covariance of two views",
        ("vicreg", "non_contrastive"),
    ),
    "contrastive_tension": Method(
        "two encoders that agree on equal sentences only",
        "Contrastive Tension",
        "the dot product of two encoders' vectors as the logit of being the same sentence",
        ("contrastive_tension",),
    ),
    "is_bert": Method(
        "maximising mutual information",
        "IS-BERT",
        "mutual information between a sentence's vector and the n-grams around its tokens",
        ("is_bert",),
    ),
    "declutr": Method(
        "contrastive learning", "DeCLUTR", "NT-Xent between spans and the means of spans around them", ("declutr",)
    ),
    "esimcse": Method(
        "contrastive learning",
        "ESimCSE",
        "InfoNCE with a queue of a momentum encoder's vectors as further negatives",
        ("esimcse", "simcse"),
    ),
    "promptbert": Method(
        "contrastive learning",
        "PromptBERT",
        "InfoNCE of vectors less those of their template",
        ("promptbert", "simcse"),
    ),
    "diffcse": Method(
        "contrastive learning",
        "DiffCSE",
        "InfoNCE and a discriminator of replaced tokens that reads the vector",
        ("diffcse", "simcse"),
    ),
}

#: What the positive of a sentence is, and the paper of the view.
VIEW_WORDS = {
    "identity": ("the sentence itself under another dropout mask", "simcse"),
    "fixed_mask": ("the sentence itself under the same dropout mask", "simcse"),
    "crop": ("a contiguous part of it", "simcse"),
    "delete_words": ("the sentence without some of its words", "simcse"),
    "delete_one_word": ("the sentence without one of its words", "simcse"),
    "synonyms": ("the sentence with a word replaced by a synonym", "simcse"),
    "mlm": ("the sentence with tokens that a masked language model put in place of others", "simcse"),
    "crop+mlm": ("a contiguous part of it, with tokens that a masked language model put in place of others", "simcse"),
    "shuffle": ("the sentence with some of its tokens permuted", "non_contrastive"),
    "eda": ("the sentence after synonym replacement, insertion, swap or deletion of words", "eda"),
    "repeat_words": ("the sentence with some of its tokens repeated", "esimcse"),
    "next_sentence": ("the sentence after it", "simcse"),
    "next_three_sentences": ("one of the three sentences after it", "simcse"),
}
