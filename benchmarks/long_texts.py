"""Retrieval of long documents by a sentence of their last third, with the documents cut and as averaged windows.

    python -m benchmarks long_texts --output benchmarks/results/long_texts.json

Wikipedia articles of at least 1,000 words are drawn with three seeds. From the last third of each, one sentence is
taken out and becomes a query, whose article is to be found among all articles of the draw.
"""

import argparse
import gzip
import random
from typing import Any

import numpy as np

from simcse_hf import SimCSE
from simcse_hf.names import LONG_TEXTS

from .harness import Report, add_data_option, add_model_option, machine, markdown, model_or_default

SEEDS, LEAST_WORDS, QUERY_WORDS = (1, 2, 3), 1000, 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    add_model_option(parser)
    parser.add_argument("--articles", type=int, default=300, help="articles of each draw; default: 300")


def run(options: argparse.Namespace, report: Report) -> None:
    if options.data is None:
        raise SystemExit("this benchmark needs wiki/wiki_documents.txt.gz: name its folder with --data")
    with gzip.open(options.data / "wiki/wiki_documents.txt.gz", "rt", encoding="utf-8") as stream:
        articles = [article.split("\n") for article in stream.read().split("\n\n")]
    articles = [sentences for sentences in articles if len(" ".join(sentences).split()) >= LEAST_WORDS]
    model = SimCSE(model_or_default(options.model), device="cpu")
    report.save(machine=machine(), max_length=model.max_length, articles=options.articles, long_articles=len(articles))
    for seed in SEEDS:
        report.save(**{f"seed {seed}": evaluate(model, articles, options.articles, seed)})


def evaluate(model: SimCSE, articles: list[list[str]], number: int, seed: int) -> dict[str, Any]:
    """Draw articles and queries, and return the mean reciprocal rank of the article for each treatment."""
    generator = random.Random(seed)
    documents, queries = [], []
    for sentences in generator.sample(articles, number):
        ends = range(2 * len(sentences) // 3, len(sentences))
        place = generator.choice([i for i in ends if len(sentences[i].split()) >= QUERY_WORDS] or ends)
        queries.append(sentences[place])
        documents.append(" ".join(sentences[:place] + sentences[place + 1 :]))
    found: dict[str, Any] = {"mean_words": float(np.mean([len(text.split()) for text in documents]))}
    asked = model.encode(queries, convert_to_numpy=True)
    for long_texts in LONG_TEXTS:
        scores = asked @ model.encode(documents, convert_to_numpy=True, long_texts=long_texts).T
        ranks = 1 + (scores > scores.diagonal()[:, None]).sum(1)
        found[long_texts] = {"mrr": 100 * float((1 / ranks).mean()), "first": 100 * float((ranks == 1).mean())}
    return found


def table(results: dict) -> str:
    rows = [
        [seed, treatment, f"{result[treatment]['mrr']:.1f}", f"{result[treatment]['first']:.1f}"]
        for seed, result in results.items()
        if seed.startswith("seed")
        for treatment in LONG_TEXTS
    ]
    return markdown(["draw", "long_texts", "MRR x 100", "found first, %"], rows)
