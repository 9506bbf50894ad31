"""What all parts of the evidence share: the encoders, the texts and the STS sets, each read once."""

import argparse
import gzip
from collections.abc import Collection
from functools import cached_property
from pathlib import Path

import torch
from datasets import Dataset
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from simcse_hf import AutoModelForCL, load_text_dataset
from simcse_hf.encoding.batching import encode_token_ids, tokenize_texts
from simcse_hf.evaluation.sts import ScoredPairs, read_sts_task
from simcse_hf.models.modeling import ContrastiveModel
from simcse_hf.postprocessing import VectorTransform

from ..harness import SHARED, STS_TASKS, distinct_sentences, model_or_default
from ..objectives import MOST_WORDS
from ..postprocessing import figures

MINILM = "all-MiniLM-L6-v2"
WHITENING_SENTENCES = 5_000


class Workbench:
    """The encoders, the training texts and the STS sets of a run.

    Args:
        options (`argparse.Namespace`): `data`, the folder with `wiki`, `nli` and `senteval`; `work_dir`, the folder of
            checkpoints; and `bf16`.

    Raises:
        SystemExit: If there is no folder of data.
    """

    def __init__(self, options: argparse.Namespace):
        if options.data is None:
            raise SystemExit(
                f"the evidence needs real text: put it into {SHARED / 'data'}, or name its folder in --data"
            )
        self.data: Path = options.data
        self.work_dir: Path = options.work_dir
        self.bf16: bool = options.bf16
        self._texts: dict[str, Dataset] = {}

    def encoder(self, name: str) -> Path:
        """Return the folder of an encoder: a path, a folder of `work_dir`, all-MiniLM-L6-v2, or one of `models`."""
        if name == MINILM:
            return model_or_default(None)
        places = (Path(name), self.work_dir / name, self.data.parent / "models" / name)
        return next((place for place in places if (place / "config.json").is_file()), places[-1])

    def tokenizer(self, name: str) -> PreTrainedTokenizerBase:
        """Load the tokenizer of an encoder."""
        return AutoTokenizer.from_pretrained(self.encoder(name))

    def rows(self, text: str, most: int) -> Dataset:
        """Return `most` rows of a training text, spread evenly."""
        if text not in self._texts:
            self._texts[text] = self.texts(text)
        return spread_rows(self._texts[text], most)

    def texts(self, name: str) -> Dataset:
        """Read a training text: `wiki`, `short wiki`, `nli pairs`, `nli triplets`, a domain, or a table's path."""
        if name == "banking77":
            return load_text_dataset(str(self.data / "banking77/train.csv"), columns=["text"])
        if name == "twitter_url":
            rows = twitter_rows(self.data / "twitter_url/train.tsv.gz")
            return Dataset.from_dict({"sent0": list(dict.fromkeys(text for row in rows for text in row[1:]))})
        if name.endswith("wiki"):
            sentences = self.wikipedia()
            if name == "short wiki":
                sentences = [sentence for sentence in sentences if sentence.count(" ") < MOST_WORDS]
            return Dataset.from_dict({"sent0": sentences})
        if name.startswith("nli"):
            triplets = load_text_dataset(str(self.data / "nli/nli_triplets.csv.gz"))
            return triplets.select_columns(["sent0", "sent1"]) if name == "nli pairs" else triplets
        return load_text_dataset(name)

    def wikipedia(self) -> list[str]:
        """Read every tenth sentence of the Wikipedia corpus, which the plain training loop used too."""
        with gzip.open(self.data / "wiki/wiki_sentences.txt.gz", "rt", encoding="utf-8") as lines:
            return [line.rstrip("\n") for number, line in enumerate(lines) if number % 10 == 0]

    @cached_property
    def test_sets(self) -> dict[str, dict[str, ScoredPairs]]:
        """The test pairs of STS12 to STS15, STS-B and SICK-R, and the dev pairs of STS-B."""
        folder = self.data / "senteval/downstream"
        splits = {"STSBenchmark": ("test", "dev")}
        return {task: read_sts_task(task, folder, splits.get(task, ("test",))) for task in STS_TASKS}

    @cached_property
    def dev(self) -> ScoredPairs:
        """The dev pairs of STS-B."""
        return self.test_sets["STSBenchmark"]["dev"]

    def encode(self, model: nn.Module, texts: list[str], tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
        """Embed texts with a model of ours, in bf16 autocast if the runs use it."""
        ids = tokenize_texts(tokenizer, texts, 128)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            return encode_token_ids(model, ids, tokenizer.pad_token_id).float()

    def test(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        *,
        transform: VectorTransform | None = None,
        tasks: Collection[str] = STS_TASKS,
    ) -> dict[str, float]:
        """Measure a model on the test sets.

        Args:
            model (`nn.Module`): A model of ours.
            tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
            transform (`VectorTransform`, *optional*): A whitening to apply to the embeddings.
            tasks (`Collection[str]`, *optional*): The STS tasks; by default all.

        Returns:
            `dict[str, float]`: Spearman x 100 of each task (all of its test pairs together), their average, that of
            STS-B dev, and the uniformity of all sentences.
        """
        sets = {task: self.test_sets[task] for task in tasks}
        texts = distinct_sentences(sets)
        rows = {text: row for row, text in enumerate(texts)}
        results = figures(sets, rows, self.encode(model, texts, tokenizer), transform)
        return {name: round(value, 3) for name, value in results.items() if not name.endswith(" test")}


def spread_rows(texts: Dataset, most: int) -> Dataset:
    """Select `most` rows, or all if there are fewer, at equal distances."""
    return texts.select(range(0, len(texts), max(1, len(texts) // most))[:most])


def twitter_rows(path: Path) -> list[tuple[str, str, str]]:
    """Read the label and the two sentences of each row of the Twitter URL corpus, which has no header."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    return [(label, first, second) for label, first, second in rows]


def load_for_inference(path: Path, pooler: str) -> ContrastiveModel:
    """Load an encoder with a pooler that has no head, or with the head it was trained with."""
    return AutoModelForCL.from_pretrained(path, pooler_type=pooler)
