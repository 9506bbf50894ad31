"""GradCache: memory and time of one large batch in chunks, against the same sentences in batches of one chunk.

    python -m benchmarks gradcache --output benchmarks/results/gradcache.json
    python -m benchmarks gradcache --documents 12 --rounds 2 --output benchmarks/results/gradcache.json

Every step is the Trainer's own, with the same encoder, random token ids of full length, AdamW and one thread. Each
kind runs in a process of its own. Memory is the growth of the peak after a first step of two rows, which has already
allocated the gradients. It contains the embeddings of the large batch, their gradients and the token ids.

`--documents` times a step over Wikipedia documents of up to 2,048 tokens instead. The encoder has the model's sizes,
2,048 positions and random weights, which the time does not depend on. Chunks are filled by the tokens of 4 rows, as
the Trainer does, or by 4 rows in their order, with padding and without, beside
sentence-transformers' `CachedMultipleNegativesRankingLoss` with `mini_batch_num_tokens` and `mini_batch_size`.
"""

import argparse
import gzip
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, losses
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.models import gradcache

from .harness import (
    SHARED,
    Report,
    add_model_option,
    in_fresh_process,
    machine,
    markdown,
    megabytes,
    model_or_default,
    seconds_of,
    take_turns,
)
from .harness import reset_peak_memory as reset_peak

LENGTH = 32
LONGEST, ROWS = 2048, 4  # of documents
KINDS = ("batches", "chunks")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_option(parser)
    parser.add_argument("--batch", type=int, default=4096, help="rows of the large batch, a multiple of --chunk")
    parser.add_argument("--chunk", type=int, default=64, help="rows in the encoder at a time")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each kind")
    parser.add_argument("--documents", type=int, help="time chunks by tokens and rows, with so many documents")


def run(options: argparse.Namespace, report: Report) -> None:
    if options.documents:
        found = time_documents(model_or_default(options.model), options.documents, options.rounds)
        return report.save(documents=found | {"machine": machine() | {"threads": 1}})
    if options.batch % options.chunk:
        raise SystemExit(f"--batch ({options.batch}) must be a multiple of --chunk ({options.chunk})")
    model = model_or_default(options.model)
    turns: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    for _ in range(options.rounds):
        for kind in KINDS:
            turns[kind].append(in_fresh_process(measure, kind, model, options.batch, options.chunk))
            print(kind, turns[kind][-1], flush=True)
    medians: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        names = turns[kind][0]
        medians[kind] = {name: statistics.median(turn[name] for turn in turns[kind]) for name in names}
    batches, chunks = medians["batches"], medians["chunks"]
    report.save(
        machine=machine() | {"threads": 1},
        model=options.model.name if options.model else "all-MiniLM-L6-v2",
        rows=options.batch,
        chunk=options.chunk,
        length=LENGTH,
        rounds=options.rounds,
        median=medians,
        ratio={name: chunks[name] / batches[name] for name in batches},
        turns=turns,
    )


def measure(kind: str, model: Path, batch: int, chunk: int) -> dict[str, float]:
    """Measure the steps that process the sentences of the large batch."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    words = AutoConfig.from_pretrained(model).vocab_size
    ids = torch.randint(1000, words, (batch, LENGTH)).tolist()
    rows = [{"input_ids": [row]} for row in ids]
    with tempfile.TemporaryDirectory() as folder:
        size_of_step, chunk_size = (batch, chunk) if kind == "chunks" else (chunk, None)
        trainer = make_trainer(folder, AutoModelForCL.from_pretrained(model), rows, size_of_step, chunk_size, LENGTH)

        def step(first: int, size: int) -> None:
            trainer.training_step(trainer.model, trainer.data_collator(rows[first : first + size]))
            trainer.optimizer.step()
            trainer.optimizer.zero_grad(set_to_none=False)

        step(0, 2)
        before, start, cpu_start = reset_peak(), time.perf_counter(), time.process_time()
        for first in range(0, batch, size_of_step):
            step(first, size_of_step)
        return {
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu_start,
            "megabytes_above": megabytes("VmHWM") - before,
            "megabytes": megabytes("VmHWM"),
        }


def make_trainer(
    folder: str, encoder: PreTrainedModel, rows: list[dict[str, Any]], batch: int, chunk: int | None, length: int
) -> SimCSETrainer:
    """Make a Trainer whose `training_step` can be called by itself."""
    arguments = SimCSETrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=batch,
        gradcache_chunk_size=chunk,
        max_seq_length=length,
        use_cpu=True,
        report_to="none",
    )
    tokenizer = AutoTokenizer.from_pretrained(encoder.name_or_path)
    trainer = SimCSETrainer(encoder, arguments, Dataset.from_list(rows), processing_class=tokenizer)
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def time_documents(model: Path, number: int, rounds: int) -> dict[str, Any]:
    """Time a step with chunks by tokens and by rows, here and in sentence-transformers."""
    torch.set_num_threads(1)
    with gzip.open(SHARED / "data/wiki/wiki_documents.txt.gz", "rt", encoding="utf-8") as stream:
        documents = stream.read().split("\n\n")
    texts = [" ".join(document.split()) for document in documents]
    sentences = random.Random(0).sample(texts, number)
    steps: dict[str, Callable[[], None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = AutoTokenizer.from_pretrained(model, model_max_length=LONGEST)
        config = AutoConfig.from_pretrained(model, max_position_embeddings=LONGEST)
        for saved in (tokenizer, AutoModel.from_config(config)):
            saved.save_pretrained(folder)
        rows = [{"input_ids": [ids]} for ids in tokenizer(sentences, truncation=True)["input_ids"]]
        for unpadded in (True, False):
            for by, split in (("tokens", gradcache._split), ("rows", split_by_rows)):
                encoder = AutoModelForCL.from_pretrained(folder, unpadded=unpadded)
                trainer = make_trainer(f"{folder}/run", encoder, rows, number, ROWS, LONGEST)
                kind = f"ours, {'no padding' if unpadded else 'padding'}, by {by}"
                steps[kind] = partial(our_step, trainer, rows, split)
        sizes = {"tokens": {"mini_batch_num_tokens": ROWS * LONGEST}, "rows": {"mini_batch_size": ROWS}}
        for by, size in sizes.items():
            theirs = SentenceTransformer(folder, device="cpu")
            theirs.max_seq_length = LONGEST
            loss = losses.CachedMultipleNegativesRankingLoss(theirs, **size)
            steps[f"sentence-transformers, by {by}"] = partial(their_step, theirs.train(), loss, sentences)
        next(iter(steps.values()))()  # the first step of a process is slower than the others
        seconds = take_turns({kind: partial(seconds_of, step) for kind, step in steps.items()}, rounds)
    return {
        "tokens": sorted(len(row["input_ids"][0]) for row in rows),
        "rounds": rounds,
        "rows_of_longest_text": ROWS,
        "seconds": seconds,
    }


def split_by_rows(inputs: dict[str, Any], chunk_size: int, *_: bool) -> tuple[list[int], list[dict[str, Any]]]:
    """Split a batch into chunks of equally many rows in their order, each cut to its longest text."""
    rows = torch.arange(len(inputs["input_ids"]))
    lengths = inputs["attention_mask"].sum(-1).amax(-1)
    chunks = []
    for chunk in rows.split(chunk_size):
        longest = lengths[chunk].max()
        parts = {}
        for name, x in inputs.items():
            if name not in gradcache.ROW_INPUTS:
                parts[name] = x[chunk, :, :longest] if x.ndim == 3 else x[chunk]
        chunks.append(parts)
    return rows.tolist(), chunks


def our_step(trainer: SimCSETrainer, rows: list[dict[str, Any]], split: Callable[..., Any]) -> None:
    with mock.patch.object(gradcache, "_split", split):
        trainer.training_step(trainer.model, trainer.data_collator(rows))
    trainer.model.zero_grad()


def their_step(encoder: SentenceTransformer, loss: torch.nn.Module, texts: list[str]) -> None:
    twice = [encoder.tokenize(texts) for _ in range(2)]
    loss(twice, torch.zeros(0)).backward()
    encoder.zero_grad()


def table(results: dict) -> str:
    if "documents" in results:
        seconds = results["documents"]["seconds"]
        rows = [[kind, f"{value:.1f}"] for kind, value in seconds.items()]
        print(markdown(["documents", "seconds"], rows))
    if "ratio" not in results:
        return ""
    names = results["ratio"]
    rows = []
    for name, ratio in names.items():
        medians = [results["median"][kind][name] for kind in KINDS]
        rows.append([name, *(f"{median:.1f}" for median in medians), f"{ratio:.2f} x"])
    return markdown(["", *KINDS, "ratio"], rows)
