"""Training steps and encoding on a CPU, side by side with sentence-transformers and plain transformers in one run.

    python -m benchmarks cpu --output benchmarks/results/cpu.json

All contestants start from the same weights, read the same texts and take turns; the times are medians. Before the
timing, losses without dropout and embeddings are compared: `agree` is the largest difference. `peak_share` is the
number of floating point operations that ours executes, counted by torch, relative to the rate of a large matrix
product measured in the same run. Memory is the growth of a process's peak over a training step, each in a process of
its own.
"""

import argparse
import statistics
from functools import partial
from pathlib import Path

import sentence_transformers
import torch
from datasets import Dataset
from torch.utils.flop_counter import FlopCounterMode

from simcse_hf import SimCSE, SimilarityEvalCallback
from simcse_hf.kernels.cpu import lacks_bfloat16

from .contestants import Ours, Peer, Plain, encode_ours, encode_peer
from .harness import (
    Report,
    add_data_option,
    add_model_option,
    dev_pairs,
    distinct_sentences,
    in_fresh_process,
    machine,
    markdown,
    matmul_rate,
    megabytes,
    model_or_default,
    reset_peak_memory,
    seconds_of,
    sts_sets,
    take_turns,
    training_texts,
)

BATCH, LENGTH, ROWS = 64, 32, 4096
STEPS_BETWEEN_EVALUATIONS = 250
CONTESTANTS = {"ours": Ours, "peer": Peer, "plain": Plain}
PARTS = ("train", "memory", "evaluation", "encode", "growth")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    add_model_option(parser)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--steps", type=int, default=4, help="timed training steps in a turn")
    parser.add_argument("--sentences", type=int, default=20_000, help="sentences to encode")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--texts", nargs="+", help="training texts by name; default: all")


def run(options: argparse.Namespace, report: Report) -> None:
    options.model = model_or_default(options.model)
    texts = training_texts(options.data, ROWS)
    report.save(
        machine=machine(),
        sentence_transformers=sentence_transformers.__version__,
        batch=BATCH,
        max_seq_length=LENGTH,
    )
    if unknown := sorted(set(options.texts or ()) - texts.keys()):
        raise SystemExit(f"--texts {', '.join(unknown)}: choose from {', '.join(map(repr, texts))}")
    if "train" in options.only:
        for name in options.texts or texts:
            keep(report, compare_training(name, texts[name], options))
    if "memory" in options.only:
        report.save(
            peak_memory_mib_of_a_step={
                name: in_fresh_process(memory_of_a_step, name, options.model, options.data) for name in CONTESTANTS
            }
        )
    if "evaluation" in options.only:
        report.save(evaluation_in_training=evaluation_share(texts, options))
    if "encode" in options.only:
        keep(report, compare_encoding(options))
    if "growth" in options.only:
        report.save(growth=growth(texts, options))


def keep(report: Report, rows: list[dict]) -> None:
    """Add rows to the report and print them."""
    report.save_rows(rows)
    for row in rows:
        print(f"{row['work']}: {row['ratio']} x ({row['ours']} against {row['peer']})", flush=True)


# --- training -------------------------------------------------------------------------------------------------------


def compare_training(name: str, rows: Dataset, options: argparse.Namespace) -> list[dict]:
    """Compare the sentences per second of each contestant, in float32 and, where it is fast, with bf16 autocast."""
    losses, contestants = {}, {}
    for kind, make in CONTESTANTS.items():
        losses[kind] = make(options.model, rows, bf16=False).loss_without_dropout()
        contestants[kind] = make(options.model, rows, bf16=False)
    modes = [("float32", "ours", torch.float32)]
    if not lacks_bfloat16():
        modes.append(("bf16 autocast", "ours, bf16", torch.bfloat16))
        contestants["ours, bf16"] = Ours(options.model, rows, bf16=True)
        contestants["peer, bf16"] = Peer(options.model, rows, bf16=True)
    turns = {}
    for kind, contestant in contestants.items():
        turns[kind] = partial(contestant.time_steps, options.steps)
    for *_, dtype in modes:
        turns[dtype] = partial(matmul_rate, dtype)
    medians = take_turns(turns, options.rounds)
    with FlopCounterMode(display=False) as counter:
        contestants["ours"].time_steps(1)
    flops = counter.get_total_flops() / 3  # that turn has three steps: one before and one after the timed step
    sentences = BATCH * max(2, len(rows.column_names))
    return [
        {
            "work": f"training step, {name}, {label}",
            "ours": round(sentences / medians[kind], 1),
            "peer": round(sentences / medians["peer"], 1),
            "plain": round(sentences / medians["plain"], 1),
            "unit": "sentences/s",
            "ratio": round(medians["peer"] / medians[kind], 2),
            "ratio_to_peer_bf16": round(medians["peer, bf16"] / medians[kind], 2) if len(modes) > 1 else None,
            "ratio_to_plain": round(medians["plain"] / medians[kind], 2),
            "peak_share": round(flops / medians[kind] / medians[dtype], 3),
            "gemm_gflops": round(medians[dtype] / 1e9, 1),
            "agree": max(abs(loss - losses["ours"]) for loss in losses.values()),
        }
        for label, kind, dtype in modes
    ]


def evaluation_share(texts: dict[str, Dataset], options: argparse.Namespace) -> dict:
    """Compare an evaluation on the dev set with the steps between two of them at the paper's settings (appendix A)."""
    runs = (
        ("unsupervised", next(iter(texts)), 64),
        ("supervised", "NLI triplets", 512),
    )
    shares = {}
    for kind, name, batch in runs:
        ours = Ours(options.model, texts[name], False, batch)
        callback = SimilarityEvalCallback(dev_pairs(options.data))
        evaluate = partial(callback.evaluate, ours.model, ours.tokenizer)
        evaluate()  # tokenizes the set, which happens once in a run
        steps = partial(ours.time_steps, max(1, options.steps * BATCH // batch))
        medians = take_turns({"evaluation": partial(seconds_of, evaluate), "step": steps}, options.rounds)
        between = STEPS_BETWEEN_EVALUATIONS * medians["step"]
        shares[kind] = {
            "text": name,
            "batch": batch,
            "seconds": round(medians["evaluation"], 2),
            "seconds_between": round(between, 1),
            "steps_between": STEPS_BETWEEN_EVALUATIONS,
            "share": round(medians["evaluation"] / between, 4),
        }
        print(kind, shares[kind], flush=True)
    return shares


def memory_of_a_step(contestant: str, model: Path, data: Path | None) -> int:
    rows = next(iter(training_texts(data, ROWS).values()))
    trainer = CONTESTANTS[contestant](model, rows, bf16=False)
    before = reset_peak_memory()
    trainer.time_steps(2)
    return round(megabytes("VmHWM") - before)


# --- encoding -------------------------------------------------------------------------------------------------------


def compare_encoding(options: argparse.Namespace) -> list[dict]:
    """Compare `SimCSE.encode` in float32 and bf16 with the peer at its best batch size."""
    texts = distinct_sentences(sts_sets(options.data))[: options.sentences]
    ours = SimCSE(options.model, pooler_type="avg", device="cpu")
    peer = encode_peer(options.model)
    sample = texts[:1500]
    by_size = {}
    for size in (16, 32, 64, 128):
        by_size[size] = len(sample) / seconds_of(partial(peer, sample, size))
    best = max(by_size, key=by_size.__getitem__)
    embeddings: dict[str, torch.Tensor] = {}

    def encode(kind: str) -> float:
        def call() -> None:
            if kind == "peer":
                embeddings[kind] = peer(texts, best)
            else:
                embeddings[kind] = encode_ours(ours, texts, getattr(torch, kind))

        return seconds_of(call)

    with FlopCounterMode(display=False) as counter:
        encode("float32")
    kinds = ["float32"] if lacks_bfloat16() else ["float32", "bfloat16"]
    turns = {kind: partial(encode, kind) for kind in ("peer", *kinds)}
    for kind in kinds:
        dtype = getattr(torch, kind)
        turns[dtype] = partial(matmul_rate, dtype)
    medians = take_turns(turns, max(1, options.rounds // 2))
    rows = []
    for kind in kinds:
        found, expected = embeddings[kind], embeddings["peer"]
        difference = (found - expected).abs().max().item()
        cosines = (found.double() * expected.double()).sum(1)
        one_minus_cosine = (1 - cosines).max().item()
        peak = medians[getattr(torch, kind)]
        rows.append(
            {
                "work": f"encode {len(texts)} {'STS' if options.data else 'generated'} sentences, {kind}",
                "ours": round(len(texts) / medians[kind], 1),
                "peer": round(len(texts) / medians["peer"], 1),
                "unit": "sentences/s",
                "ratio": round(medians["peer"] / medians[kind], 2),
                "peak_share": round(counter.get_total_flops() / medians[kind] / peak, 3),
                "gemm_gflops": round(peak / 1e9, 1),
                "agree": difference if kind == "float32" else one_minus_cosine,
                "agree_is": "largest difference of a coordinate" if kind == "float32" else "largest 1 - cosine",
                "peer_batch_size": best,
                "peer_by_batch_size": {size: round(rate, 1) for size, rate in by_size.items()},
            }
        )
    return rows


def growth(texts: dict[str, Dataset], options: argparse.Namespace) -> dict[str, list[dict]]:
    """Measure how the cost grows with batch size, sentence length and corpus size."""
    rows = next(iter(texts.values()))

    def train(batch: int, length: int) -> dict[str, float]:
        rates = {}
        for kind, make in {"ours": Ours, "peer": Peer}.items():
            contestant = make(options.model, rows, False, batch, length)
            times = contestant.time_steps(2) + contestant.time_steps(2)
            rates[kind] = round(2 * batch / statistics.median(times), 1)
        return rates

    model = SimCSE(options.model, pooler_type="avg", device="cpu")
    peer = encode_peer(options.model)
    sentences = distinct_sentences(sts_sets(options.data))

    def encode(size: int) -> dict[str, float]:
        part = sentences[:size]
        ours = seconds_of(lambda: encode_ours(model, part, torch.float32))
        theirs = seconds_of(lambda: peer(part, 32))
        return {"ours": round(len(part) / ours, 1), "peer": round(len(part) / theirs, 1)}

    sizes = (options.sentences // 16, options.sentences // 4)
    return {
        "batch_size": [{"batch_size": batch} | train(batch, LENGTH) for batch in (16, 64, 256)],
        "max_seq_length": [{"max_seq_length": length} | train(BATCH, length) for length in (16, 32, 64, 128)],
        "corpus_size": [{"corpus_size": size} | encode(size) for size in sizes],
    }


def table(results: dict) -> str:
    rows = [
        [
            row["work"],
            row["ours"],
            row["peer"],
            f"{row['ratio']:.2f} x",
            f"{row['peak_share']:.0%}",
            f"{row['agree']:.1e}",
        ]
        for row in results["rows"]
    ]
    tables = [markdown(["work", "ours", "sentence-transformers", "ratio", "share of GEMM peak", "agree"], rows)]
    if "peak_memory_mib_of_a_step" in results:
        names = {"peer": "sentence-transformers", "plain": "plain transformers"}
        measured = results["peak_memory_mib_of_a_step"]
        peaks = [[names.get(kind, kind), peak] for kind, peak in measured.items()]
        tables.append(markdown(["memory of a training step", "MiB"], peaks))
    if "evaluation_in_training" in results:
        rows = [
            [f"{kind}, batch {share['batch']}", share["seconds"], share["seconds_between"], f"{share['share']:.1%}"]
            for kind, share in results["evaluation_in_training"].items()
        ]
        tables.append(markdown(["training", "evaluation, s", "250 steps, s", "share"], rows))
    for name, points in results.get("growth", {}).items():
        rows = [
            [point[name], point["ours"], point["peer"], f"{point['ours'] / point['peer']:.2f} x"] for point in points
        ]
        tables.append(markdown([name, "ours", "sentence-transformers", "ratio"], rows))
    return "\n\n".join(tables)
