"""A corpus and an encoder made on the spot, so that the examples run offline."""

from pathlib import Path

from .corpus import SampleCorpus, write_sample_corpus
from .encoder import SampleEncoderSettings, build_sample_encoder

__all__ = ["SampleCorpus", "SampleEncoderSettings", "build_sample_encoder", "sample_files", "write_sample_corpus"]


def sample_files(directory: str | Path) -> tuple[SampleCorpus, Path]:
    """Where `python -m simcse_hf.sample DIRECTORY` puts the corpus and the encoder."""
    return SampleCorpus.in_directory(Path(directory, "corpus")), Path(directory, "encoder")
