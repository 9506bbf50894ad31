"""A generated corpus, so that the examples and the tests run offline."""

from pathlib import Path

from .corpus import SampleCorpus, write_sample_corpus

__all__ = ["SampleCorpus", "sample_files", "write_sample_corpus"]


def sample_files(directory: str | Path) -> tuple[SampleCorpus, Path]:
    """Where `python -m simcse_hf.training.sample_encoder DIRECTORY` puts the corpus and the encoder."""
    return SampleCorpus.in_directory(Path(directory, "corpus")), Path(directory, "encoder")
