"""A folder in which the commands of documents run, and what tests compare documents and examples with."""

import gzip
import os
import re
import runpy
import shlex
import shutil
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch
from conftest import ROOT, save_encoder, tiny_config
from evaluation_helpers import write, write_beir, write_rows, write_sts, write_stsb
from trainer_helpers import sentences
from transformers import BertModel, Qwen3ForCausalLM

import simcse_hf
from simcse_hf.apps.pretraining import PretrainingArguments
from simcse_hf.cli.main import main
from simcse_hf.training.recipe import ARGUMENTS

PACKAGE = ROOT / "simcse_hf"
SKILLS = sorted(ROOT.glob("skills/*/SKILL.md"))
EVERY_SKILL = pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)


def text_of(document):
    """The text of a file, whose path may begin at the root of the repository."""
    return (ROOT / document).read_text(encoding="utf-8")


def make_workspace(folder, with_model=True):
    """Write every file and model that the documentation names; the current directory must be `folder`.

    Without `with_model`, nothing is trained or evaluated.
    """
    first, second, third = (sentences(64, seed, words=5) for seed in range(3))
    write(folder / "sentences.txt", first)
    write(folder / "corpus.txt", second)
    (folder / "documents.txt").write_text("\n\n".join("\n".join(first[i : i + 8]) for i in range(0, 64, 8)) + "\n")
    labels = ["entailment", "contradiction"]
    nli = [(first[i // 2], (second + third)[i], labels[i % 2]) for i in range(64)]
    scored = [(first[i], second[i], i % 6) for i in range(24)]
    similar = [(text, [text, second[i]][i % 2], 1 - i % 2) for i, text in enumerate(first)]
    paraphrases = [(second[i], third[i], i / 64) for i in range(64)]
    tickets, labelled = (list(zip(texts, ["card", "loan"] * 32, strict=True)) for texts in (second, third))
    tables = {
        "questions.csv": ("question,answer", zip(first, second, strict=True)),
        "pairs.csv": ("anchor,positive", zip(first, second, strict=True)),
        "triplets.csv": ("sent0,sent1,hard_neg", zip(first, second, third, strict=True)),
        "nli.csv": ("premise,hypothesis,label", nli),
        "duplicates.csv": ("question1,question2,is_duplicate", [(*pair[:2], i % 2) for i, pair in enumerate(scored)]),
        "captions.csv": ("picture,caption", [(i % 12, text) for i, text in enumerate(first)]),
        "sts-dev.csv": ("sentence1,sentence2,score", scored),
        "scored-pairs.csv": ("sentence1,sentence2,score", scored),
        "labelled-pairs.csv": ("sentence1,sentence2,label", similar),
        "tickets.csv": ("text,label", tickets),
        "dev.csv": ("text,label", labelled),
        "held-out.csv": ("text,label", labelled),
    }
    for name, (header, rows) in tables.items():
        write_rows(folder / name, header.split(","), rows)
    write_rows(folder / "paraphrases.tsv", paraphrases[0], paraphrases[1:])
    (folder / "nli_pairs.csv.gz").write_bytes(gzip.compress((folder / "nli.csv").read_bytes()))
    write(folder / "test-sentences.txt", third[:1])
    queries, documents = ({f"{kind}{i}": texts[i] for i in range(64)} for kind, texts in (("q", first), ("d", second)))
    write_beir(folder / "faq", documents, queries, {f"q{i}": {f"d{i}": 1} for i in range(64)})
    write_stsb(folder / SENTEVAL)
    for task in ("STS12", "STS13"):  # the other tasks are reported as missing
        write_sts(folder / SENTEVAL, task)
    training = text_of("docs/training.md")
    (folder / "several.yaml").write_text(training.split("```yaml\n")[1].partition("```")[0])
    (folder / "data").mkdir()  # where the recipes look
    for name, source in RECIPE_FILES.items():
        os.symlink(f"../{source}", folder / "data" / name)
    (folder / "examples").symlink_to(ROOT / "examples")
    save_encoder(folder / "bert-base-uncased")
    save_encoder(folder / "princeton-nlp/sup-simcse-bert-base-uncased", BertModel)
    decoder = tiny_config("qwen3", num_key_value_heads=1, head_dim=16, max_position_embeddings=128)
    save_encoder(folder / "Qwen/Qwen3-0.6B", Qwen3ForCausalLM, decoder)
    if not with_model:
        return
    run_command(TRAIN + " --output_dir outputs/my-unsup")
    for name in ("my-model", "sample-unsup"):
        os.symlink("my-unsup", folder / "outputs" / name)
    for name in ("MODEL", "M"):
        os.symlink("outputs/my-unsup", folder / name)
    run_command(f"simcse-hf evaluate --model MODEL --data_dir {SENTEVAL} --output evaluation.json --quiet")
    shutil.copy(folder / "evaluation.json", folder / "baseline.json")
    run_command("simcse-hf evaluate --model MODEL --task classification=tickets.csv --output before.json --quiet")


SENTEVAL = "SentEval/data/downstream"
#: Files that the recipes name, and the files of the workspace that stand for them.
RECIPE_FILES = {
    "sts-dev.csv": "sts-dev.csv",
    "nli.csv": "nli.csv",
    "nli_for_simcse.csv": "triplets.csv",
    "wiki1m_for_simcse.txt": "sentences.txt",
}
TRAIN = (
    "simcse-hf train unsup --model_name_or_path bert-base-uncased --train_file sentences.txt --dev_file sts-dev.csv "
    "--pooler_type avg --max_steps 2 --use_cpu --report_to none"
)


def blocks(document):
    """The blocks of bash, Python and output in a document, as pairs of language and text."""
    return re.findall(r"^```(bash|python|text)\n(.*?)^```", text_of(document), re.DOTALL | re.MULTILINE)


def commands(block):
    """The commands of a ```bash block, without comments and with continued lines joined."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in lines if shlex.split(line, comments=True)]


def inline_commands(document):
    """The pieces of `code` in a document, and its indented lines, with continued lines joined."""
    text = re.sub(r"```.*?```", "", text_of(document), flags=re.DOTALL).replace("\\\n", " ")
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]
    return [*spans, *(line.strip() for line in text.splitlines() if line.startswith("    "))]


def rows_of_tables(document):
    """The cells of each row of each table in a document."""
    rows = re.findall(r"^\|(?!---).*", text_of(document), re.MULTILINE)
    return [row.strip("|").split(" | ") for row in rows]


@cache
def help_of_commands():
    """What `--help` of each command prints, under its name."""
    return runpy.run_path(str(ROOT / "docs/site_reference.py"))["commands"]()


def known_options():
    """The options of each command."""
    options = {}
    for section in help_of_commands().split("\n## "):
        command = section.removeprefix("## ").split()[0]
        options.setdefault(command, set()).update(re.findall(r"--\w+", section))
    for cls in (*ARGUMENTS, PretrainingArguments):
        options["train"].update(f"--{field.name}" for field in fields(cls))
    options["train"].update(("--no_unpadded", "--model"))
    return options


def simcse_arguments(command):
    """The words after `simcse-hf`, also for `accelerate launch ... -m simcse_hf`; None for another program."""
    words = shlex.split(command, comments=True)
    if words[0] == "simcse-hf":
        return words[1:]
    if words[:2] == ["accelerate", "launch"] and "simcse_hf" in words:
        return words[words.index("simcse_hf") + 1 :]
    return None


def run_command(command):
    """Run a command of `simcse-hf` in this process, check that it ends with exit status 0, and that it can write.

    What `--output` or `--output_dir` names is removed first, because no command overwrites anything unasked.
    """
    arguments = simcse_arguments(command)
    for option in ("--output", "--output_dir"):
        if option in arguments:
            target = Path(arguments[arguments.index(option) + 1])
            shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    try:
        status = main(arguments)
    except SystemExit as ended:
        status = ended.code
    assert status in (0, None), command


def public_names():
    """Return (module, name) of what `simcse_hf` exports and of what docs/api.md lists, also by whole modules."""
    page = text_of("docs/api.md")
    listed = {tuple(path.rpartition(".")[::2]) for path in re.findall(r"^::: simcse_hf\.(\S+)", page, re.MULTILINE)}
    for module, names in re.findall(r"^\| `simcse_hf\.([\w.]+)` \| (.*) \|$", page, re.MULTILINE):
        listed |= {(module, name) for name in re.findall(r"`(\w+)`", names)}
    return listed | {("", name) for name in simcse_hf.__all__}


# --- what a program prints, and what a page shows of it ---

ON_A_PROCESSOR = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="the pages show what a machine without a GPU prints",
)

NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?"
BAR = re.compile(r"%\||/s\]")
#: A number may differ by this many units of its last digit, as another processor rounds. Whole numbers are equal.
UNITS = 5


def agrees(shown, line):
    """Return whether a printed line is the shown one: the same words, and numbers that round to about the same."""
    pattern, numbers = "", []
    for part in re.split(rf"(\.\.\.|{NUMBER})", shown.rstrip()):
        if part == "...":
            pattern += ".*"
        elif re.fullmatch(NUMBER, part):
            pattern += f"({NUMBER})"
            numbers.append(part)
        else:
            pattern += re.escape(part)
    found = re.fullmatch(pattern, line.rstrip())
    return bool(found) and all(map(is_close, numbers, found.groups()))


def is_close(shown, printed):
    digits = len(shown.partition(".")[2])
    difference = float(shown.replace(",", "")) - float(printed.replace(",", ""))
    return abs(difference) <= (UNITS + 0.01) * 10**-digits * bool(digits)


def difference(shown, printed):
    """Return the first line of a page that was not printed, or that was printed and is left out without a mark."""
    lines = [line for line in re.split("[\r\n]", printed) if line.strip() and not BAR.search(line)]
    may_skip = False
    for each in shown.splitlines():
        if each.strip() == "...":
            may_skip = True
        elif each.strip():
            place = next(
                (number for number, line in enumerate(lines) if agrees(each, line)),
                None,
            )
            if place is None:
                return f"{each!r} is shown, and was not printed"
            if place and not may_skip:
                return f"{lines[0]!r} was printed before {each!r}, and is left out without a mark"
            lines = lines[place + 1 :]
            may_skip = False
    if lines and not may_skip:
        return f"{lines[0]!r} was printed at the end, and is left out without a mark"
    return None
