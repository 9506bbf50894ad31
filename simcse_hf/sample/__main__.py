"""`python -m simcse_hf.sample DIRECTORY`: writes the sample corpus and warms the sample encoder up on it."""

import argparse
from pathlib import Path

from . import build_sample_encoder, sample_files, write_sample_corpus


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the sample corpus and warm the sample encoder up on it.")
    parser.add_argument("directory", type=Path, help="an encoder already there is kept if it was made like this")
    directory = parser.parse_args().directory
    _, encoder = sample_files(directory)
    build_sample_encoder(encoder, write_sample_corpus(directory / "corpus"))


if __name__ == "__main__":
    main()
