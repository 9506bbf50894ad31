"""Hard negatives on NLI pairs: none, the given contradictions, and negatives mined once.

All runs start from `minilm-remasked-6x384` and use the same pairs of the NLI triplets, with the paper's
settings of supervised SimCSE (a head that is kept, temperature 0.05, learning rate 5e-5) in batches of 64.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simcse_hf import SimCSE
from simcse_hf.retrieval.mining import MiningOptions, mine_hard_negatives

from ..harness import Report
from .training import Spec, run_missing, sts_table, train_and_test
from .workbench import Workbench

START = "minilm-remasked-6x384"
STEPS, BATCH = 60, 64
PAIRS = STEPS * BATCH
HEAD = {"pooler_type": "cls", "temperature": 0.05}
MINING = MiningOptions(num_negatives=1, range_max=50, relative_margin=0.05)


def spec(text: str, mining: dict[str, Any] | None = None, settings: dict[str, Any] = HEAD, **arguments: Any) -> Spec:
    """Return a run on NLI pairs; `arguments` are added to those of the run."""
    common = {"learning_rate": 5e-5, "per_device_train_batch_size": BATCH, "max_steps": STEPS}
    return {
        "start": START,
        "text": text,
        "mining": mining,
        "settings": settings,
        "arguments": common | arguments,
        "tasks": ["STSBenchmark"],
    }


RUNS = {
    "in-batch negatives": spec("nli pairs"),
    "given contradictions": spec("nli triplets"),
    "mined by the start": spec("mined.csv", mining=asdict(MINING)),
    "mined by the start, likely false negatives left out": spec(
        "mined.csv", mining=asdict(MINING), settings=HEAD | {"objective_options": {"false_negative_margin": 0.1}}
    ),
}


def run(options: argparse.Namespace, bench: Workbench, report: Report) -> None:
    mined = bench.work_dir / "mined.csv"

    def train_once(spec: Spec, seed: int) -> dict[str, Any]:
        text = str(mined) if spec["text"] == mined.name else spec["text"]
        return train_and_test(bench, spec | {"text": text}, seed)

    if not mined.exists():
        report.save(mining=mine(bench, mined))
    run_missing(report, RUNS, options.seeds, train_once)


def mine(bench: Workbench, path: Path) -> dict[str, Any]:
    """Write the pairs with one hard negative each, mined by the [CLS] embedding of the start; return the counts."""
    model = SimCSE(bench.encoder(START), pooler_type="cls_before_pooler", device="cpu")
    rows, found = mine_hard_negatives(bench.rows("nli pairs", PAIRS), model, options=MINING)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows.to_csv(str(path), index=False)
    return asdict(found)


def table(results: dict) -> str:
    return sts_table(results["runs"])
