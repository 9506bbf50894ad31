"""Training steps and encoding on one NVIDIA GPU, in bf16, side by side with sentence-transformers in one run.

    python benchmarks/gpu.py --output benchmarks/results/gpu.json
    python benchmarks/gpu.py --device cpu --tiny --output outputs/gpu.json    # tries the script, measures nothing

It needs no network and no data: encoders have the shapes of bert-base-uncased and roberta-large and random weights,
texts are random words, as long as Wikipedia sentences and NLI triplets are (benchmarks/lengths.json). Contestants are
`ours` (without padding, the default), `padded`, `compiled` (padded to 32 tokens, torch.compile with CUDA graphs) and
`peer`, sentence-transformers' Trainer. All start from the same weights, see the same texts and take turns; a turn is
timed as a whole, between two synchronisations, so that host and device may overlap as in a real run; figures are
medians of turns. `agree` is the largest difference of the losses with dropout off, in float32. `peak_share` is the
floating point operations of `ours` on the first batch, whoever is timed, against the rate of a large bf16 matrix
product measured in the same run. `projected_minutes` are those of the paper's training sets: 1,000,000 sentences once,
275,601 triplets three times. `peak_memory_mib` is what a contestant adds at most to what was allocated before it.
`--minutes` leaves time for what has begun: split the works over several runs where ten minutes are too few for all.
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
from common import write_results
from contestants import Contestant, Ours, Peer, encode_peer
from synthetic import LENGTHS, encoder_config, texts, training_rows, write_encoder
from torch.utils.flop_counter import FlopCounterMode
from transformers import TrainerCallback

from simcse_hf import SimCSE

LENGTH = 32
TOKEN_BUDGETS = (1024, 8192, 65_536)
PEER_BATCHES = (32, 128, 512, 2048)


@dataclass
class Work:
    """Training of an encoder: batch size and, for the projection, rows and epochs of the paper's run (Table A.1)."""

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy encoders, batches and corpora")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=WORKS)
    parser.add_argument("--leave_out", nargs="+", choices=("padded", "compiled", "peer"), default=[])
    parser.add_argument("--turns", type=int, default=5, help="of each contestant")
    parser.add_argument("--steps", type=int, default=10, help="training steps of a turn")
    parser.add_argument("--sentences", type=int, default=100_000, help="to encode")
    parser.add_argument("--minutes", type=float, default=7.5, help="after these nothing new is begun")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        raise SystemExit("there is no NVIDIA GPU here: --device cpu --tiny tries the script without one")
    deadline = time.monotonic() + 60 * arguments.minutes
    peak = gemm_rate(arguments.device, 256 if arguments.tiny else 8192)
    report = {
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "tiny": arguments.tiny,
        "torch": torch.__version__,
        "sentence_transformers": sentence_transformers.__version__,
        "max_seq_length": LENGTH,
        "bf16_gemm_gflops": round(peak / 1e9, 1),
        "rows": [],
        "left_out": [],
    }
    with tempfile.TemporaryDirectory() as directory:
        for name in arguments.works:
            if time.monotonic() > deadline:
                report["left_out"].append(name)
                continue
            encoder = ENCODING[name] if name in ENCODING else TRAINING[name].encoder
            model = Path(directory, encoder)
            if not model.exists():
                write_encoder(model, encoder, arguments.tiny)
            if name in ENCODING:
                row = compare_encoding(name, model, arguments)
            else:
                row = compare_training(name, model, peak, deadline, arguments)
            report["rows"].append(row)
            write_results(arguments.output, report)
            print(json.dumps(row), flush=True)
            clean_up()
    write_results(arguments.output, report)
    print(table(report))


# --- training ------------------------------------------------------------------------------------------------------


class Compiled(Ours):
    """Ours with padding to a fixed length, which CUDA graphs need, compiled."""

    def __init__(self, model, rows, bf16: bool, batch: int, length: int):
        super().__init__(model, rows, bf16, batch, length, unpadded=False, pad_to_max_length=True)
        # Not by torch_compile=True: accelerate's state is one for all trainers of a process.
        options = {"mode": "reduce-overhead"} if torch.cuda.is_available() else {"backend": "aot_eager"}
        self.model.compile(dynamic=False, **options)
        self.trainer._check_dropout = lambda: None  # its batch is of another shape: a graph of its own


CONTESTANTS = {
    "ours": Ours,
    "padded": lambda *arguments: Ours(*arguments, unpadded=False),
    "peer": Peer,
    "compiled": Compiled,
}


class Turns(TrainerCallback):
    """A training run in a thread of its own that goes on some steps at a time.

    So trainers take turns within one run each: a new `train()` for every turn would prepare and compile anew.
    """

    def __init__(self, contestant: Contestant):
        self.trainer = contestant.trainer
        self.wanted, self.stopping, self.error = 0, False, None
        self.go_on, self.paused = threading.Semaphore(0), threading.Semaphore(0)
        self.trainer.add_callback(self)
        self.thread = threading.Thread(target=self._train, daemon=True)
        self.thread.start()
        self._wait()

    def take(self, steps: int) -> float:
        """Seconds of a step, the mean over so many."""
        self.wanted = steps
        synchronize()
        begun = time.perf_counter()
        self.go_on.release()
        self._wait()
        return (time.perf_counter() - begun) / steps

    def stop(self) -> None:
        self.stopping = True
        self.go_on.release()
        self.thread.join()

    def on_step_begin(self, args, state, control, **kwargs):
        if self.wanted == 0:
            synchronize()
            self.paused.release()
            self.go_on.acquire()
            control.should_training_stop = self.stopping
        self.wanted -= 1

    def _train(self) -> None:
        try:
            self.trainer.train()
        except BaseException as error:  # it is raised where it is waited for
            self.error = error
        self.paused.release()

    def _wait(self) -> None:
        self.paused.acquire()
        if self.error is not None:
            raise self.error


def compare_training(name: str, model: Path, peak: float, deadline: float, arguments: argparse.Namespace) -> dict:
    """Sentences a second of each contestant, in turns."""
    work = TRAINING[name]
    batch = 8 if arguments.tiny else work.batch
    rows = training_rows(work.corpus, 32 * batch, encoder_config(work.encoder, arguments.tiny).vocab_size - 5)
    turns, losses, memory, warm_up, left_out, failed = {}, {}, {}, {}, [], {}
    flops = None
    for kind, make in CONTESTANTS.items():
        if kind in arguments.leave_out or time.monotonic() > deadline:
            left_out.append(kind)
            continue
        before = allocated()
        contestant = make(model, rows, True, batch, LENGTH)
        if kind != "compiled":
            contestant.trainer.model.to(arguments.device)
            losses[kind] = contestant.loss_without_dropout()
        if kind == "ours":
            flops = flops_of_a_step(contestant, arguments.device)
        begun = time.perf_counter()
        if arguments.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        turn = Turns(contestant)
        try:
            turn.take(5)  # allocates, compiles and records graphs
        except Exception as error:
            if kind != "compiled":
                raise
            failed[kind] = repr(error)[:500]  # a compiler's trouble must not cost the others their figures
            continue
        turns[kind] = turn
        warm_up[kind] = round(time.perf_counter() - begun, 1)
        if arguments.device == "cuda":
            memory[kind] = (torch.cuda.max_memory_allocated() - before) // 2**20
    seconds: dict[str, list[float]] = {kind: [] for kind in turns}
    for _ in range(arguments.turns):
        for kind, turn in turns.items():
            seconds[kind].append(turn.take(arguments.steps))
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
    """Of forward and backward on the first rows; the model's weights stay."""
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


def compare_encoding(name: str, model: Path, arguments: argparse.Namespace) -> dict:
    """Sentences a second, text to vectors on the CPU, each at its fastest batch size."""
    count = 200 if arguments.tiny else arguments.sentences
    words = encoder_config(ENCODING[name], arguments.tiny).vocab_size - 5
    sentences = texts(LENGTHS["wikipedia"]["sentence"], count, words, seed=7)
    ours = SimCSE(model, pooler_type="avg", device=arguments.device, dtype=torch.bfloat16)
    peer = encode_peer(model, torch.bfloat16)

    def encode(unpadded: bool, some: list[str], budget: int) -> torch.Tensor:
        ours.model.unpadded = unpadded
        return ours.encode(some, token_budget=budget)

    contestants = {"ours": partial(encode, True), "padded": partial(encode, False), "peer": peer}
    contestants = {kind: call for kind, call in contestants.items() if kind not in arguments.leave_out}
    sample = sentences[: count // 5]
    rates: dict[str, dict[int, float]] = {}
    for kind, encode_texts in contestants.items():
        encode_texts(sample[:1000], 1024)
        sizes = PEER_BATCHES if kind == "peer" else TOKEN_BUDGETS
        rates[kind] = {size: round(len(sample) / seconds_of(encode_texts, sample, size)[0], 1) for size in sizes}
    best = {kind: max(found, key=found.get) for kind, found in rates.items()}
    seconds: dict[str, list[float]] = {kind: [] for kind in contestants}
    vectors = {}
    for _ in range(max(1, arguments.turns // 2)):
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
    begun = time.perf_counter()
    vectors = encode(sentences, size)  # on the CPU, so the device is done
    return time.perf_counter() - begun, vectors


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


def gemm_rate(device: str, size: int, repeats: int = 20) -> float:
    """Floating point operations a second of a square bf16 matrix product, the median."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(repeats):
        synchronize()
        begun = time.perf_counter()
        a @ b
        synchronize()
        times.append(time.perf_counter() - begun)
    return 2 * size**3 / statistics.median(times)


def table(report: dict) -> str:
    kinds = ("ours", "padded", "compiled", "peer")
    lines = [f"| work | {' | '.join(kinds)} | ratio of ours | share of GEMM peak | agree |", "|---" * 8 + "|"]
    for row in report["rows"]:
        rates = " | ".join(str(row.get(kind, "")) for kind in kinds)
        share = f"{row['peak_share']['ours']:.0%}" if "peak_share" in row else ""
        ratio = f"{row['ratio']['ours']} x" if row["ratio"] else ""
        lines.append(f"| {row['work']} | {rates} | {ratio} | {share} | {row['agree']:.1e} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
