"""Training and encoding of this checkout against another one, in processes of their own that take turns.

The other checkout is a folder, such as that of `git worktree add ../before 70e883a`. Each process uses one thread and
reports the processor time of its work, which other work on the machine disturbs less than the time on the clock.

    python -m benchmarks commits --other ../before
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from .harness import SHARED, Report, machine, markdown

TURN = """
import json, sys, tempfile, time
from pathlib import Path
from transformers import AutoTokenizer, TrainerCallback, set_seed
from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments, encode, load_text_dataset

model, texts, kind, amount = sys.argv[1:5]

class Clock(TrainerCallback):
    marks = []
    def on_step_end(self, *_, **__):
        self.marks.append(time.process_time())

if kind.startswith("encode"):
    sentences = [row["sent0"] for row in load_text_dataset(texts, max_rows=int(amount))]
    file = Path(tempfile.mkdtemp(), "sentences.txt")
    file.write_text("\\n".join(sentences), encoding="utf-8")
    encoder = SimCSE(model, device="cpu", pooler_type="avg")
    encoder.encode(sentences[:200])
    start = time.process_time()
    if kind == "encode file":
        encode(encoder, file, file.with_name("vectors"), show_progress_bar=False)
    else:
        encoder.encode(sentences)
    print(json.dumps(time.process_time() - start))
else:
    rows = load_text_dataset(texts, max_rows=20_000)
    args = SimCSETrainingArguments(
        tempfile.mkdtemp(), max_steps=int(amount) + 2, per_device_train_batch_size=64 if kind == "unsup" else 32,
        use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no",
    )
    trainer = SimCSETrainer(AutoModelForCL.from_pretrained(model), args, train_dataset=rows, callbacks=[Clock()])
    trainer.train()
    print(json.dumps(Clock.marks[-1] - Clock.marks[1]))
"""


def turn(checkout: Path, model: str, texts: str, kind: str, amount: int) -> float:
    """Return the processor seconds of one process with the package of a checkout."""
    environment = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", TURN, model, texts, kind, str(amount)]
    done = subprocess.run(
        command, cwd=checkout, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--other", type=Path, required=True, help="another checkout")
    parser.add_argument("--model", type=Path, default=SHARED / "models" / "minilm-remasked-6x384")
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="folder with wiki/ and nli/")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--texts", type=int, default=1000, help="sentences to encode")
    parser.add_argument("--file_texts", type=int, default=40_000, help="sentences of the file to encode")
    parser.add_argument("--works", nargs="+", help="what to measure; the default is everything")
    parser.add_argument("--turns", type=int, default=5)


def run(options: argparse.Namespace, report: Report) -> None:
    here, other = Path.cwd(), options.other.resolve()
    sentences = str((options.data / "wiki" / "wiki_sentences.txt.gz").resolve())
    triplets = str((options.data / "nli" / "nli_triplets.csv.gz").resolve())
    contests = {
        "training, sentences": (sentences, "unsup", options.steps),
        "training, NLI triplets": (triplets, "sup", options.steps),
        "encoding": (sentences, "encode", options.texts),
        "encoding a file": (sentences, "encode file", options.file_texts),
    }
    contests = {work: contests[work] for work in options.works or contests}
    rows = []
    for work, (texts, kind, amount) in contests.items():
        ratios = []
        for number in range(options.turns):
            seconds = {}
            for place in (here, other) if number % 2 else (other, here):
                seconds[place] = turn(place, str(options.model.resolve()), texts, kind, amount)
            ratios.append(seconds[other] / seconds[here])
        rows.append({"work": work, "ratio": statistics.median(ratios), "turns": ratios})
        print(rows[-1], flush=True)
        report.save(machine=machine(), rows=rows)


def table(results: dict) -> str:
    rows = [[row["work"], f"{row['ratio']:.3f}"] for row in results["rows"]]
    return markdown(["work", "speed of this checkout / of the other"], rows)
