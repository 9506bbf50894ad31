"""A corpus and an encoder made on the spot, so that the examples run offline."""

from .corpus import SampleCorpus, write_sample_corpus
from .encoder import SampleEncoderSettings, build_sample_encoder

__all__ = ["SampleCorpus", "SampleEncoderSettings", "build_sample_encoder", "write_sample_corpus"]
