"""A generated corpus with which examples and tests run offline."""

from pathlib import Path

from .corpus import SampleCorpus, write_sample_corpus

__all__ = ["SampleCorpus", "sample_files", "write_sample_corpus"]


def sample_files(directory: str | Path) -> tuple[SampleCorpus, Path]:
    """Return the files of the corpus and the folder of the encoder that `simcse_hf.training.sample_encoder` writes."""
    return SampleCorpus.in_directory(Path(directory, "corpus")), Path(directory, "encoder")
