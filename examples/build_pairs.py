"""Build training pairs from a table of duplicates or paraphrases, or of captions, any two of which are a pair.

python examples/build_pairs.py duplicates.csv pairs.csv --columns question1 question2 --where "is_duplicate == 1"
python examples/build_pairs.py captions.csv pairs.csv --columns caption --group picture
python examples/build_pairs.py paraphrases.tsv pairs.csv --names first second score --columns first second \
    --where "score >= 0.4" --exclude sts-test-sentences.txt

The result has the columns sent0 and sent1 and is read by `simcse-hf train sup --train_file pairs.csv`.
"""

import argparse
import csv
import re
from itertools import combinations
from pathlib import Path

import pandas as pd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="csv or tsv file, possibly gzipped")
    parser.add_argument("output", help="csv file to write")
    parser.add_argument("--columns", nargs="+", required=True, help="columns of texts; a row is a group of texts")
    parser.add_argument("--group", help="column that says which rows are one group")
    parser.add_argument("--names", nargs="+", help="names of the columns of a file with tabs, no quotes and no header")
    parser.add_argument("--where", help="condition for a row, as pandas.DataFrame.query takes it")
    parser.add_argument("--exclude", nargs="+", default=[], help="files of texts that no pair may hold, one on a line")
    parser.add_argument("--max_rows", type=int, help="keep a random sample of at most this many pairs")
    parser.add_argument("--seed", type=int, default=42, help="seed of the sample")
    arguments = parser.parse_args()

    options = {"sep": "\t" if ".tsv" in arguments.table else ","}
    if arguments.names:
        options = {"sep": "\t", "names": arguments.names, "header": None, "quoting": csv.QUOTE_NONE}
    options["dtype"] = dict.fromkeys(arguments.columns, str)
    # An empty cell is missing, and the texts "NA" and "None" are not.
    rows = pd.read_csv(arguments.table, keep_default_na=False, na_values=[""], **options)
    if arguments.where:
        rows = rows.query(arguments.where)
    excluded = set()
    for path in arguments.exclude:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        excluded.update(map(wording, lines))
    pairs = []
    for _, group in rows.groupby(arguments.group or rows.index, sort=False):
        texts = []
        for text in dict.fromkeys(group[arguments.columns].to_numpy().ravel()):  # each text of the group once
            if isinstance(text, str) and text.strip() and wording(text) not in excluded:
                texts.append(text)
        pairs += combinations(texts, 2)
    if not pairs:
        raise SystemExit(f"{arguments.table}: no pair could be built from {len(rows)} rows.")
    table = pd.DataFrame(pairs, columns=["sent0", "sent1"])
    if arguments.max_rows and len(table) > arguments.max_rows:
        table = table.sample(arguments.max_rows, random_state=arguments.seed).sort_index()
    table.to_csv(arguments.output, index=False)
    print(f"{arguments.output}: {len(table)} pairs from {len(rows)} rows")


def wording(text: str) -> str:
    """Return a text without case, spacing and punctuation, which make no difference for `--exclude`."""
    return "".join(re.findall(r"\w+", text.casefold()))


if __name__ == "__main__":
    main()
