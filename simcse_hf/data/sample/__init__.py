"""A generated corpus and a tiny encoder that has learned from it, with which examples and tests run offline.

`tools/make_sample.py` makes the files.
"""

from pathlib import Path
from typing import NamedTuple

__all__ = ["SampleCorpus", "sample_files"]


class SampleCorpus(NamedTuple):
    """The files of the sample corpus. No meaning of one split occurs in another.

    Args:
        train_sentences (`Path`): 20,000 sentences, one on each line, for unsupervised training and masked-LM.
        train_triplets (`Path`): A csv file of 10,000 triplets with the header `sent0,sent1,hard_neg`.
        dev (`Path`): A tsv file of 1,000 pairs with the header `sentence1 sentence2 score` and scores from 0 to 5.
        test (`Path`): The same, with other meanings.
    """

    train_sentences: Path
    train_triplets: Path
    dev: Path
    test: Path


def sample_files() -> tuple[SampleCorpus, Path]:
    """Return the files of the sample corpus and the folder of the sample encoder, a BERT with 2 layers of width 64.

    Examples:
        >>> from simcse_hf import load_text_dataset
        >>> from simcse_hf.data.sample import sample_files
        >>> corpus, encoder = sample_files()
        >>> load_text_dataset(corpus.train_sentences).num_rows
        20000
    """
    folder = Path(__file__).parent
    names = ("train_sentences.txt.gz", "train_triplets.csv.gz", "dev.tsv.gz", "test.tsv.gz")
    return SampleCorpus(*(folder / name for name in names)), folder / "encoder"
