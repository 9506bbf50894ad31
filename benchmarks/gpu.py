"""Training steps and encoding on one NVIDIA GPU in bf16, side by side with sentence-transformers in one run.

    python -m benchmarks gpu --output benchmarks/results/gpu.json
    python -m benchmarks gpu --device cpu --tiny --output outputs/gpu.json    # tries the code, measures nothing

No network and no data are needed: the encoders have the shapes of bert-base-uncased and roberta-large with random
weights, and the texts are random words, as long as Wikipedia sentences and NLI triplets (lengths.json). Contestants:
`ours` (without padding, the default), `padded`, `compiled` (padded to 32 tokens, torch.compile with CUDA graphs) and
`peer`, sentence-transformers' Trainer. All start from the same weights, see the same texts and take turns. A turn is
timed as a whole, between two synchronisations, so that host and device overlap as in a real run; figures are medians
of turns. `agree` is the largest difference of the losses without dropout in float32. `peak_share` divides the floating
point operations of `ours` on the first batch by the rate of a large bf16 matrix product measured in the same run.
`projected_minutes` are those of the paper's training sets: 1,000,000 sentences once, 275,601 triplets three times.
`peak_memory_mib` is the most that a contestant adds to the memory allocated before it. After `--minutes`, no new work
begins; split the works over several runs if the time is too short for all.
"""

import argparse
import gc
import json
import os
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the libraries below are imported

import sentence_transformers
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import TrainerCallback

from simcse_hf import SimCSE
from simcse_hf.training import checks

from .contestants import Contestant, Ours, Peer, encode_peer
from .harness import Report, machine, markdown, matmul_rate
from .synthetic import LENGTHS, encoder_config, texts, training_rows, write_encoder

LENGTH = 32
TOKEN_BUDGETS = (1024, 8192, 65_536)
PEER_BATCHES = (32, 128, 512, 2048)


@dataclass
class Work:
    """Training of an encoder: the batch size, and the rows and epochs of the paper's run (Table A.1)."""

    encoder: str
    corpus: str
    batch: int
    rows: int
    epochs: int


TRAINING = {
    "BERT-base, sentences": Work("bert-base", "wikipedia", 64, 1_000_000, 1),
    "BERT-base, triplets": Work("bert-base", "nli", 512, 275_601, 3),
    "RoBERTa-large, sentences": Work("roberta-large", "wikipedia", 512, 1_000_000, 1),
    "RoBERTa-large, triplets": Work("roberta-large", "nli", 512, 275_601, 3),
}
ENCODING = {"BERT-base, encoding": "bert-base", "RoBERTa-large, encoding": "roberta-large"}
WORKS = [
    "BERT-base, sentences",
    "BERT-base, triplets",
    "BERT-base, encoding",
    "RoBERTa-large, sentences",
    "RoBERTa-large, encoding",
    "RoBERTa-large, triplets",
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny encoders, batches and corpora")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=WORKS)
    parser.add_argument("--leave_out", nargs="+", choices=("padded", "compiled", "peer"), default=[])
    parser.add_argument("--turns", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--steps", type=int, default=10, help="training steps in a turn")
    parser.add_argument("--sentences", type=int, default=100_000, help="sentences to encode")
    parser.add_argument("--minutes", type=float, default=7.5, help="minutes after which no new work begins")


def run(options: argparse.Namespace, report: Report) -> None:
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        raise SystemExit("no NVIDIA GPU was found; `--device cpu --tiny` tries the benchmark without one")
    deadline = time.monotonic() + 60 * options.minutes
    peak = matmul_rate(torch.bfloat16, 256 if options.tiny else 8192, repeats=20, device=options.device)
    report.save(
        machine=machine(),
        tiny=options.tiny,
        sentence_transformers=sentence_transformers.__version__,
        max_seq_length=LENGTH,
        bf16_gemm_gflops=round(peak / 1e9, 1),
        rows=[],
        left_out=[],
    )
    with tempfile.TemporaryDirectory() as directory:
        for name in options.works:
            if time.monotonic() > deadline:
                report.results["left_out"].append(name)
                continue
            encoder = ENCODING[name] if name in ENCODING else TRAINING[name].encoder
            model = Path(directory, encoder)
            if not model.exists():
                write_encoder(model, encoder, options.tiny)
            if name in ENCODING:
                row = compare_encoding(name, model, options)
            else:
                row = compare_training(name, model, peak, deadline, options)
            report.save(rows=[*report.results["rows"], row])
            print(json.dumps(row), flush=True)
            clean_up()


# --- training ------------------------------------------------------------------------------------------------------


class Compiled(Ours):
    """Ours, compiled, with padding to a fixed length, which CUDA graphs need."""

    def __init__(self, model, rows, bf16: bool, batch: int, length: int):
        super().__init__(model, rows, bf16, batch, length, unpadded=False, pad_to_max_length=True)
        # torch_compile=True would change accelerate's state, which all trainers of a process share.
        options = {"mode": "reduce-overhead"} if torch.cuda.is_available() else {"backend": "aot_eager"}
        self.model.compile(dynamic=False, **options)
        checks.check_dropout = lambda trainer: None  # its batch is of another shape: a graph of its own


CONTESTANTS = {
    "ours": Ours,
    "padded": lambda *arguments: Ours(*arguments, unpadded=False),
    "peer": Peer,
    "compiled": Compiled,
}


class Turns(TrainerCallback):
    """A training run in its own thread that continues for some steps at a time.

    In this way trainers take turns within one `train()` each; a new call for each turn would compile again.
    """

    def __init__(self, contestant: Contestant):
        self.trainer = contestant.trainer
        self.remaining, self.stopping, self.error = 0, False, None
        self.go_on, self.paused = threading.Semaphore(0), threading.Semaphore(0)
        self.trainer.add_callback(self)
        self.thread = threading.Thread(target=self._train, daemon=True)
        self.thread.start()
        self._wait()

    def take(self, steps: int) -> float:
        """Return the mean seconds of a step."""
        self.remaining = steps
        synchronize()
        start = time.perf_counter()
        self.go_on.release()
        self._wait()
        return (time.perf_counter() - start) / steps

    def stop(self) -> None:
        self.stopping = True
        self.go_on.release()
        self.thread.join()

    def on_step_begin(self, args, state, control, **kwargs):
        if self.remaining == 0:
            synchronize()
            self.paused.release()
            self.go_on.acquire()
            control.should_training_stop = self.stopping
        self.remaining -= 1

    def _train(self) -> None:
        try:
            self.trainer.train()
        except BaseException as error:  # raised again in the main thread
            self.error = error
        self.paused.release()

    def _wait(self) -> None:
        self.paused.acquire()
        if self.error is not None:
            raise self.error


def compare_training(name: str, model: Path, peak: float, deadline: float, options: argparse.Namespace) -> dict:
    """Compare the sentences per second of the contestants."""
    work = TRAINING[name]
    batch = 8 if options.tiny else work.batch
    rows = training_rows(work.corpus, 32 * batch, encoder_config(work.encoder, options.tiny).vocab_size - 5)
    turns, losses, memory, warm_up, left_out, failed = {}, {}, {}, {}, [], {}
    flops = None
    for kind, make in CONTESTANTS.items():
        if kind in options.leave_out or time.monotonic() > deadline:
            left_out.append(kind)
            continue
        before = allocated()
        contestant = make(model, rows, True, batch, LENGTH)
        if kind != "compiled":
            contestant.trainer.model.to(options.device)
            losses[kind] = contestant.loss_without_dropout()
        if kind == "ours":
            flops = flops_of_a_step(contestant, options.device)
        start = time.perf_counter()
        if options.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        turn = Turns(contestant)
        try:
            turn.take(5)  # allocates, compiles and records graphs
        except Exception as error:
            if kind != "compiled":
                raise
            failed[kind] = repr(error)[:500]  # a failure of the compiler must not lose the figures of the others
            continue
        turns[kind] = turn
        warm_up[kind] = round(time.perf_counter() - start, 1)
        if options.device == "cuda":
            memory[kind] = (torch.cuda.max_memory_allocated() - before) // 2**20
    seconds: dict[str, list[float]] = {kind: [] for kind in turns}
    for _ in range(options.turns):
        for kind, turn in turns.items():
            seconds[kind].append(turn.take(options.steps))
    for turn in turns.values():
        turn.stop()
    medians = {kind: statistics.median(times) for kind, times in seconds.items()}
    sentences = batch * max(2, len(rows.column_names))
    steps = -(-work.rows // work.batch) * work.epochs
    return {
        "work": f"training step, {name}, bf16, batch {batch}",
        **{kind: round(sentences / median, 1) for kind, median in medians.items()},
        "unit": "sentences/s",
        "ratio": {kind: round(medians["peer"] / m, 2) for kind, m in medians.items() if "peer" in medians},
        "seconds_a_step": {kind: [min(times), medians[kind], max(times)] for kind, times in seconds.items()},
        "projected_minutes": {kind: round(steps * median / 60, 1) for kind, median in medians.items()},
        "peak_share": {kind: round(flops / median / peak, 3) for kind, median in medians.items()},
        "peak_memory_mib": memory,
        "warm_up_seconds": warm_up,
        "agree": max(abs(loss - losses["ours"]) for loss in losses.values()),
        "losses": losses,
        "left_out": left_out,
        "failed": failed,
    }


def flops_of_a_step(contestant: Ours, device: str) -> int:
    """Count the operations of forward and backward on the first rows, without changing the weights."""
    trainer = contestant.trainer
    rows = [trainer.train_dataset[i] for i in range(trainer.args.train_batch_size)]
    inputs = {name: x.to(device) for name, x in trainer.data_collator(rows).items()}
    with FlopCounterMode(display=False) as counter:
        with torch.autocast(device, torch.bfloat16):
            loss = contestant.model.train()(**inputs).loss
        loss.backward()
    contestant.model.zero_grad()
    return counter.get_total_flops()


# --- encoding ------------------------------------------------------------------------------------------------------


def compare_encoding(name: str, model: Path, options: argparse.Namespace) -> dict:
    """Compare the sentences per second from text to embeddings on the CPU, each at its fastest batch size."""
    count = 200 if options.tiny else options.sentences
    words = encoder_config(ENCODING[name], options.tiny).vocab_size - 5
    sentences = texts(LENGTHS["wikipedia"]["sentence"], count, words, seed=7)
    ours = SimCSE(model, pooler_type="avg", device=options.device, dtype=torch.bfloat16)
    peer = encode_peer(model, torch.bfloat16)

    def encode(unpadded: bool, some: list[str], budget: int) -> torch.Tensor:
        ours.model.unpadded = unpadded
        return ours.encode(some, token_budget=budget)

    contestants = {"ours": partial(encode, True), "padded": partial(encode, False), "peer": peer}
    contestants = {kind: call for kind, call in contestants.items() if kind not in options.leave_out}
    sample = sentences[: count // 5]
    rates: dict[str, dict[int, float]] = {}
    for kind, encode_texts in contestants.items():
        encode_texts(sample[:1000], 1024)
        sizes = PEER_BATCHES if kind == "peer" else TOKEN_BUDGETS
        rates[kind] = {size: round(len(sample) / seconds_of(encode_texts, sample, size)[0], 1) for size in sizes}
    best = {kind: max(by_size, key=by_size.get) for kind, by_size in rates.items()}
    seconds: dict[str, list[float]] = {kind: [] for kind in contestants}
    vectors = {}
    for _ in range(max(1, options.turns // 2)):
        for kind, encode_texts in contestants.items():
            taken, vectors[kind] = seconds_of(encode_texts, sentences, best[kind])
            seconds[kind].append(taken)
    medians = {kind: statistics.median(times) for kind, times in seconds.items()}
    cosines = [(vectors["ours"].double() * other.double()).sum(1) for other in vectors.values()]
    return {
        "work": f"encode {count} sentences, {name}, bf16",
        **{kind: round(count / median, 1) for kind, median in medians.items()},
        "unit": "sentences/s",
        "ratio": {kind: round(medians["peer"] / m, 2) for kind, m in medians.items() if "peer" in medians},
        "agree": max((1 - cosine).max().item() for cosine in cosines),
        "agree_is": "largest 1 - cosine",
        "by_batch": rates,
    }


def seconds_of(encode, sentences: list[str], size: int) -> tuple[float, torch.Tensor]:
    start = time.perf_counter()
    vectors = encode(sentences, size)  # the result is on the CPU, so the device has finished
    return time.perf_counter() - start, vectors


# --- device, table -------------------------------------------------------------------------------------------------


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def allocated() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def clean_up() -> None:
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def table(results: dict) -> str:
    kinds = ("ours", "padded", "compiled", "peer")
    rows = []
    for row in results["rows"]:
        share = f"{row['peak_share']['ours']:.0%}" if "peak_share" in row else ""
        ratio = f"{row['ratio']['ours']} x" if row["ratio"] else ""
        rows.append([row["work"], *(row.get(kind, "") for kind in kinds), ratio, share, f"{row['agree']:.1e}"])
    return markdown(["work", *kinds, "ratio of ours", "share of GEMM peak", "agree"], rows)
