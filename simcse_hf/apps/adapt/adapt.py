"""The whole adaptation: from the text of a domain and a present model to a verdict, a model and a picture."""

import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from huggingface_hub import snapshot_download
from transformers.utils import logging

from ... import AutoModelForCL, SimCSE, __version__, card, sample_files
from ...evaluation.protocol import PAPER_PROTOCOL
from ...evaluation.tasks import KINDS, Task, TaskResult, name_general_tasks
from ...evaluation.tasks.base import headline
from ...names import PoolerType
from ...runtime.errors import SettingError, as_list, check_values, refuse_changes
from ...runtime.files import digest, entries, lock, read_json, remove, write_atomically, write_json
from ...runtime.messages import check_together
from ...runtime.upload import hub_id, public_name
from ...training.parser import check_files
from ...training.seeds import learnt_files
from ..study.runs import RUNS, SeedRun, finish_run, plan_runs, score_run
from .arms import ARM_NAMES, SPANS, START, UNTRAINED, Arm, make_arms
from .inputs import MIN_TEXTS, neighbouring_spans, prepare_labels, read_corpus, split_tasks, write_rows
from .verdict import ADAPTATION, GAIN, NO_GAIN, Adaptation, Judgement, choose, draw, judge

logger = logging.get_logger(__name__)

#: The record of an adaptation, beside the files that it works with.
RECORD_FILE = "search/record.json"
_GO_ON = "Continue it as it began, start again with --overwrite, or name another --output."

#: The longest texts that are trained on; longer ones cost more time than the budgets of this command allow.
MAX_LENGTH = 128
#: Seed of the runs by which an arm is chosen. Those of the verdict follow it.
FIRST_SEED = 42
_PROBE_STEPS = 8  # the first one takes longer
_TOKENIZED_TEXTS = 2_000
#: Texts that a whitening is fitted on, for each dimension of the embeddings.
_TEXTS_PER_DIMENSION = 5
#: What the training of one arm may raise without ending the adaptation.
_FAILURES = (ValueError, FloatingPointError, NotImplementedError, torch.OutOfMemoryError)


def adapt(
    corpus: str,
    *,
    model: str,
    task: Sequence[str],
    output: str,
    labels: Sequence[str] = (),
    label_separator: str | None = None,
    pretrained: str | None = None,
    arms: Sequence[str] = (),
    steps: int = 400,
    batch_size: int = 16,
    seeds: int = 3,
    budget: float = 40.0,
    column: str | None = None,
    pooler_type: PoolerType | None = None,
    bf16: bool = False,
    extend_tokenizer: int | None = None,
    general: Sequence[str] = (),
    overwrite: bool = False,
) -> Adaptation:
    """Adapt a model to a domain, and keep it only if it helps.

    A fixed list of ways to train it, called arms, is tried with the same number of steps each. One is chosen on a
    third of the task, and judged on the rest by new runs. The same call continues an interrupted adaptation; finished
    runs are not repeated, and a finished adaptation returns its result.

    The output folder gets `adaptation.json` (the verdict and the scores of every arm), `arms.png` (their dev
    scores with intervals), and `model`: the chosen model with its card, or the unchanged files of the present model if
    there is no gain.

    Args:
        corpus (`str`): File of unlabelled texts of the domain: txt, csv, tsv, json, jsonl or parquet, also .gz.
        model (`str`): The present model: its folder, or its name on the Hugging Face hub.
        task (`Sequence[str]`): Tasks from files of yours, as KIND=FILE, of which the first one decides; KIND is one of
            classification, knn, clustering, pairs, reranking, retrieval.
        output (`str`): Folder for the verdict, a picture of the arms, and the model.
        labels (`Sequence[str]`, *optional*, defaults to `()`): Files to train on, one after the other: triplets,
            pairs, scored pairs (sentence1, sentence2, score) or texts with a class (text, label).
        label_separator (`str`, *optional*): What stands between several labels of a text in a cell, such as ";".
        pretrained (`str`, *optional*): Encoder that is not yet a sentence encoder, to train on the corpus and then on
            the labels.
        arms (`Sequence[str]`, *optional*, defaults to `()`): Arms to try: untrained, labels, simcse, for documents
            spans, and with `pretrained` also pretrained-labels, mlm-labels, tsdae-labels, simcse-labels, spans-labels.
            The default is all.
        steps (`int`, *optional*, defaults to `400`): Training steps of an arm.
        batch_size (`int`, *optional*, defaults to `16`): Rows in a step.
        seeds (`int`, *optional*, defaults to `3`): New runs for the verdict, each with another seed.
        budget (`float`, *optional*, defaults to `40.0`): Minutes that everything may take; arms that would not fit are
            left out before training.
        column (`str`, *optional*): Column of texts, if the file has several.
        pooler_type (`str`, *optional*): How token states become one embedding. The default is what the model names.
        bf16 (`bool`, *optional*, defaults to `False`): Train in bfloat16.
        extend_tokenizer (`int`, *optional*): Before mlm-labels, add this many words to the tokenizer: the most
            frequent ones that it splits.
        general (`Sequence[str]`, *optional*, defaults to `()`): General tasks, on which the verdict says what the
            chosen arm forgets: files of scored pairs, or KIND=FILE. The default is the dev set of the sample.
        overwrite (`bool`, *optional*, defaults to `False`): Replace `output` if it exists.

    Returns:
        [`Adaptation`]: The verdict.

    Raises:
        SettingError: If an input is invalid, or the output directory holds something else.

    Examples:
        >>> from simcse_hf import adapt
        >>> adaptation = adapt("sentences.txt", model="outputs/my-model", task=["classification=tickets.csv"],
        ...                    output="outputs/adapted", arms=["simcse"], steps=2, seeds=1)
        >>> adaptation.helped  # if not, outputs/adapted/model is the present model
        False
    """
    # What has to be the same when an adaptation continues.
    task = as_list(task)
    labels = as_list(labels)
    arms = as_list(arms)
    general = as_list(general)
    asked = dict(locals())
    del asked["output"], asked["overwrite"]

    # 1. Refuse what makes no sense, and what is not there, before anything is deleted.
    check_together(1, alone="adapt")
    check_values("an integer above 0", steps=steps, batch_size=batch_size, seeds=seeds)
    check_values("an integer above 0", extend_tokenizer=extend_tokenizer)
    check_values("a number above 0", budget=budget)
    check_values("true or false", bf16=bf16)
    unknown = sorted(set(arms) - set(ARM_NAMES))
    if unknown:
        raise SettingError(f"--arms knows {', '.join(ARM_NAMES)}, not {', '.join(unknown)}.")
    if pretrained is not None and not labels:
        raise SettingError("--pretrained needs --labels: an encoder becomes a sentence encoder by labelled training.")
    inputs = [("CORPUS", corpus)]
    inputs += [("--labels", file) for file in labels]
    for word in task:
        kind, _, file = str(word).partition("=")
        if kind not in KINDS or not file:
            raise SettingError(f"--task must be KIND=FILE, with KIND one of {', '.join(KINDS)}, got {word!r}.")
        inputs.append((f"--task {kind}", file))
    inputs += [("--general", word.rpartition("=")[2]) for word in general]
    check_files(inputs)

    directory = Path(output).expanduser()
    with lock(directory):
        # 2. The output directory is empty, or holds an adaptation to continue or to delete.
        if entries(directory) and not (directory / RECORD_FILE).is_file():
            raise SettingError(
                f"{output} holds something else (there is no {RECORD_FILE} in it): name another --output."
            )
        if overwrite:
            for path in entries(directory):
                remove(path)
        digests = {}
        for source in filter(None, [*(file for _, file in inputs), model, pretrained]):
            for each in learnt_files(source):
                # The output may lie within the folder of a task.
                if directory.resolve() not in each.resolve().parents:
                    digests[f"digest of {each}"] = digest(each)
        if (directory / RECORD_FILE).exists():
            begun = read_json(directory / RECORD_FILE, "arguments", advice=_GO_ON)["arguments"]
            refuse_changes(begun, asked | digests, f"The adaptation in {directory}", _GO_ON)
        if (directory / ADAPTATION).is_file():
            logger.info(f"{output} holds the finished adaptation; --overwrite starts again.")
            return Adaptation.read(directory)

        # 3. Adapt.
        result = _Adaptation(SimpleNamespace(**asked), directory, asked | digests).run()
        write_json(directory / ADAPTATION, result.to_dict())  # last, because it marks the adaptation as finished
        logger.info(f"The models of the arms are removed; {output}/{ADAPTATION} has their scores.")
        for path in (directory / RECORD_FILE).parent.iterdir():
            if path.is_dir():
                remove(path)
        return result


class _Adaptation:
    """The inputs and the arms of an adaptation, whose runs are those of a study.

    Args:
        asked (`SimpleNamespace`): The arguments of [`adapt`] but `output` and `overwrite`.
        output (`Path`): The output directory.
        record (`dict[str, Any]`): What has to be the same when the adaptation continues: arguments and digests.
    """

    def __init__(self, asked: SimpleNamespace, output: Path, record: dict[str, Any]):
        began = time.monotonic()
        self.asked = asked
        self.output = output
        self.work = (output / RECORD_FILE).parent

        # 1. The present model, and the pooler to train it with if that is not its own.
        name = asked.model
        pooler = asked.pooler_type
        model = AutoModelForCL.from_pretrained(name, pooler_type=pooler)
        own = model.settings.inference_pooler
        if pooler is None and (model.settings.templates or own == "ngrams"):
            raise SettingError(
                f"--model {name} has the pooler {own!r}, which adapt cannot train. Name another one with "
                "--pooler_type."
            )
        if pooler is None and own == "cls" and model.head_source != "kept":
            pooler = "avg"
            logger.info(f"{name} names no pooler for sentences: its baseline is the mean of all tokens.")
        self.present = present = SimCSE(name, pooler_type=pooler)

        # 2. Tasks, texts and labels.
        separator = asked.label_separator
        general = name_general_tasks(asked.general or [str(sample_files()[0].dev)], separator)
        dev, self.held_out, scored = split_tasks(asked.task, general, separator)
        self.first, self.dev = next(iter(dev.items()))  # the task that chooses an arm
        texts, self.corpus = read_corpus(asked.corpus, scored, asked.column)
        self.work.mkdir(exist_ok=True)
        # Before other files, because it marks their folder as that of an adaptation.
        write_json(output / RECORD_FILE, {"arguments": record})
        labels = {}
        for number, source in enumerate(asked.labels, start=1):
            file = self.work / f"labels{number}-{Path(source).name.partition('.')[0]}.jsonl"
            labels[file] = prepare_labels(source, scored, file, separator)

        # 3. The arms, and how they are trained.
        rows = [{"text": text} for text in texts]
        text = self.work / "text.jsonl"
        write_rows(rows, text)
        whitening = self.work / "whitening.jsonl"
        write_rows(rows[: _TEXTS_PER_DIMENSION * present.dim], whitening)
        spans = None
        if not {SPANS, f"{SPANS}-labels"}.isdisjoint(asked.arms or ARM_NAMES):
            pairs = neighbouring_spans(asked.corpus, scored, asked.column)
            if len(pairs) >= MIN_TEXTS:
                spans = self.work / "spans.jsonl"
                write_rows(pairs, spans)
        lengths = [len(ids) for ids in present.tokenize(texts[:_TOKENIZED_TEXTS])]
        longest = min(MAX_LENGTH, present.max_length or MAX_LENGTH)
        length = int(np.quantile(lengths, 0.95, method="lower"))
        options = {
            "per_device_train_batch_size": asked.batch_size,
            "max_seq_length": min(longest, max(32, length)),
            "bf16": asked.bf16,
            "extend_tokenizer": asked.extend_tokenizer,
        }
        own = present.pooler_type
        arms = make_arms(name, own, pooler, asked.pretrained, text, spans, whitening, labels, asked.steps, options)
        self.arms = {arm.name: arm for arm in arms}
        [not_trained] = self._runs(START, [None])
        self.present_dev = self._score(not_trained, {self.first: self.dev})[self.first]
        self.scoring_seconds = time.monotonic() - began

    def run(self) -> Adaptation:
        """Measure the arms on dev, choose one, judge it, and write the model and the picture."""
        # 1. Measure the arms that fit into the budget on dev, and choose one.
        plan_file = self.work / "plan.json"
        if not plan_file.exists():  # it depends on how fast the machine is
            write_json(plan_file, self._plan())
        plan = read_json(plan_file, "arms", "left_out", advice=_GO_ON)
        for name, reason in plan["left_out"].items():
            logger.warning(f"The arm {name} is left out: {reason}")
        measured = {name: self._measure(name) for name in plan["arms"]}
        scores = {name: found["dev"] for name, found in measured.items() if found["dev"] is not None}
        chosen = self.arms[choose(scores)]
        logger.info(f"Chosen on dev: {chosen.name}. The verdict is about new runs on the held-out part of the tasks.")

        # 2. Compare new runs of it with the present model, and with new runs of its control, on every task.
        against = [START]
        if chosen.control not in ("", START):
            against.append(chosen.control)
        results = defaultdict(list)
        for name in {*against, chosen.name}:
            for run in self._judged_runs(name):
                for task, scored in self._score(run, self.held_out).items():
                    results[name, task].append(scored)
        judged = []
        for name in against:
            for task, held_out in self.held_out.items():
                judged.append(judge(held_out, task, name, results[name, task], results[chosen.name, task]))

        # 3. Keep the model of the chosen arm after a gain, and else the files of the present model.
        runs = self._judged_runs(chosen.name)
        seeds = [run.seed for run in runs if run.seed is not None]
        stages = {}
        for arm in self.arms.values():
            stages[arm.name] = [asdict(stage) | {"file": stage.file.name} for stage in arm.stages]
        result = Adaptation(
            summary=self._summary(chosen, measured, judged),
            comparisons=judged,
            chosen={
                "name": chosen.name,
                "model": hub_id(chosen.model),
                "pooler": chosen.pooler,
                "whitening": chosen.whitening is not None,
                "stages": stages[chosen.name],
                "control": chosen.control,
                "seed": runs[0].seed,
            },
            seeds=seeds,
            arms=[{"name": name, "stages": stages[name], **found} for name, found in measured.items()],
            model=public_name(self.asked.model),
            versions={
                "simcse_hf": __version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            left_out=plan["left_out"],
            corpus=self.corpus,
            arguments=vars(self.asked),
            output=str(self.output),
        )
        with write_atomically(self.output / "model") as folder:
            if result.helped:
                model = chosen.open(runs[0].folder)
                model.save_pretrained(folder)
                result = replace(result, identity=replace(model.identity(), name_or_path=None).to_dict())
                content = result.to_dict()
                del content["arguments"]
                write_json(folder / ADAPTATION, content)
                card(folder, repo_id=f"your-name/{self.output.resolve().name}")
            else:
                start = self.asked.model
                source = start if Path(start).is_dir() else snapshot_download(start, local_files_only=True)
                shutil.copytree(source, folder, ignore=shutil.ignore_patterns("checkpoint-*"))
        draw(result, self.output)
        return result

    def _summary(self, chosen: Arm, measured: Mapping[str, dict[str, Any]], judged: Sequence[Judgement]) -> str:
        """Say in a sentence how the chosen arm compares with the present model, and domain text with its control."""
        first = judged[0]
        summary = f"{first.verdict}: {first} on {first.task} ({first.metric}) with the arm {chosen.name}"
        if chosen.name == START:
            summary = f"{first.verdict}: no arm was better than the present model on dev"
        for each in judged:
            if each.against == chosen.control != START and each.task == first.task:
                helped = "helped" if each.verdict == GAIN else "did not help"
                summary += f"; the text of the domain {helped}: {each} over {each.against}"
        if not chosen.control and any(self.arms[name].control for name in measured):
            summary += "; the text of the domain did not help: no arm with it was better on dev"
        intervals = [first.interval, *(found["interval"] for found in measured.values() if found["dev"] is not None)]
        low, high = next(filter(None, intervals), (0.0, 0.0))
        if first.verdict == NO_GAIN and high > low:
            summary += f"; as many rows can show a gain of {(high - low) / 2:.1f} or more"
        return summary

    def _plan(self) -> dict:
        """Return the names of the arms that fit into the budget, and why the others are left out."""
        wanted = self.asked.arms or ARM_NAMES
        possible = [name for name in ARM_NAMES if name in wanted and name in self.arms]
        if not possible and UNTRAINED not in wanted:
            raise SettingError(f"no arm of {', '.join(wanted)} can be tried: give --labels and --pretrained")
        left_out = {}
        for name in self.asked.arms:
            if name not in (UNTRAINED, *possible):
                left_out[name] = "it needs --labels, --labels and --pretrained, or documents of several sentences"
        kept = [START]
        if UNTRAINED in wanted:
            kept = [arm.name for arm in self.arms.values() if not arm.stages]
        left = self.asked.budget - self.scoring_seconds * (1 + 2 * len(kept)) / 60
        costs = dict.fromkeys(["", *kept], 0.0)
        for name in possible:
            try:
                for each in (self.arms[name].control, name):
                    if each not in costs:
                        costs[each] = self.scoring_seconds + self._training_seconds(self.arms[each])
            except _FAILURES as error:
                left_out[name] = f"it cannot be trained: {error}"
                continue
            tried = [*kept, name]
            verdict = max(costs[each] + costs[self.arms[each].control] for each in tried)
            minutes = (sum(costs[each] for each in tried) + self.asked.seeds * verdict) / 60
            if minutes <= left:
                kept = tried
            else:
                left_out[name] = f"training would take {minutes:.0f} minutes with it, --budget leaves {left:.0f}"
        return {"arms": [name for name in self.arms if name in kept], "left_out": left_out}

    def _training_seconds(self, arm: Arm) -> float:
        """Time a few steps of each stage of an arm, and return what the whole arm will take."""
        total = 0.0
        for stage in arm.stages:
            began = time.monotonic()
            few = replace(stage, steps=_PROBE_STEPS)
            with tempfile.TemporaryDirectory(dir=self.work) as folder:
                results = arm.train_stage(few, arm.model, FIRST_SEED, Path(folder))
            seconds = results.train_seconds or 0.0
            total += time.monotonic() - began + seconds * (stage.steps / _PROBE_STEPS - 1)
        return total

    def _measure(self, name: str) -> dict:
        """Train an arm, if it trains, and compare it with the present model on dev."""
        arm = self.arms[name]
        [run] = self._runs(name, [FIRST_SEED if arm.stages else None])
        found: dict = {"dev": None, "failure": "", "seconds": 0.0}
        try:
            result = self._score(run, {self.first: self.dev})[self.first]
        except _FAILURES as error:
            found["failure"] = f"{type(error).__name__}: {error}"
            logger.warning(f"{name}: {found['failure']}")
            remove(run.folder)
        else:
            before = [self.present_dev]
            change = judge(self.dev, self.first, START, before, before if name == START else [result])
            found |= {"dev": change.after, "difference": change.difference, "interval": change.interval}
            over = "" if name == START else f", {change} over the present model"
            logger.info(f"{name}: dev {self.first} {change.after:.2f}{over}")
        for path in run.folder.glob("stage*"):  # the models, which no verdict is about
            remove(path)
        if run.record is not None:
            found["seconds"] = round(run.record["train_seconds"], 1)
        return found

    def _judged_runs(self, name: str) -> list[SeedRun[Arm]]:
        """Return the runs of the verdict, whose seeds are new. An arm that does not train is the same under any."""
        if not self.arms[name].stages:
            return self._runs(name, [None])
        first = FIRST_SEED + 1
        return self._runs(name, range(first, first + self.asked.seeds))

    def _runs(self, name: str, seeds: Sequence[int | None]) -> list[SeedRun[Arm]]:
        return plan_runs([self.arms[name]], seeds, self.work / RUNS)

    def _score(self, run: SeedRun[Arm], tasks: Mapping[str, Task]) -> dict[str, TaskResult]:
        """Train a run unless it is finished or needs no training, and score it unless it was scored."""
        if run.seed is not None:
            finish_run(run)

        def model() -> SimCSE:
            return self.present if run.way.name == START else run.way.open(run.folder)

        evaluation = score_run(run, model, tasks, bar=False)
        found = {}
        for name, task in tasks.items():
            figure = headline(evaluation.results[name], PAPER_PROTOCOL)
            assert figure is not None  # a file of the user has data
            found[name] = TaskResult({task.metric: figure}, evaluation.scores[name])
        return found
