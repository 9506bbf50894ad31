"""Search for the model that does best on the dev part of the tasks, within a time budget and resumably."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from ...evaluation.user_tasks import TaskResult, UserTask
from .candidates import StageResult, TrainingOptions, train_candidate
from .corpus import Corpus
from .plan import LONGER, Candidate, Costs, Division, Stage, candidates, divide, fitting, name_of, steps_within
from .record import Record
from .trial import START, Trial, contenders
from .variants import POOLERS, StartModel, TaskScores, Variant, fit_corpus_whitening, open_variant

logger = logging.get_logger(__name__)

FIRST_SEED = 42
_PROBE_STEPS = 5
#: Part of the budget that poolers and whitenings may take before the first training step.
_UNTRAINED_SHARE = 0.25
#: Trained models are not whitened if whitening loses more points than this without training.
_WORSE = 1.0
#: What a run of one candidate may raise without ending the search.
_FAILURES = (ValueError, FloatingPointError, NotImplementedError, torch.OutOfMemoryError)


class Search:
    """A search over poolers, whitenings and training runs.

    Every measurement is recorded, so an interrupted search continues where it was. The models of training runs that
    may still be chosen are kept in `directory`.

    Args:
        start (`StartModel`): The model to start from.
        corpus (`Corpus`): The training texts.
        task (`UserTask`): The dev part of the task by which models are chosen.
        name (`str`): The name of the task.
        record (`Record`): Measurements and clock.
        directory (`Path`): For the models of the search.
        bf16 (`bool`): Whether to train in bfloat16.
    """

    def __init__(
        self,
        start: StartModel,
        corpus: Corpus,
        task: UserTask,
        name: str,
        record: Record,
        directory: Path,
        bf16: bool = False,
    ):
        self.start, self.corpus, self.record, self.directory = start, corpus, record, directory
        self._task, self._name, self._bf16 = task, name, bf16
        self._whitens = True
        self.trials: list[Trial] = []
        self._pooler = start.variant.pooler
        self.division: Division | None = None

    def run(self, seeds: int) -> list[Trial]:
        """Run the search.

        Args:
            seeds (`int`): How many seeds the best training run gets, if the budget allows.

        Returns:
            `list[Trial]`: The chosen model: one trial for each seed, or a single one that was not trained, which may
                be the start model itself.
        """
        self._measure_untrained()
        self._pooler = Variant.parse(contenders(self.trials)[0].variant).pooler
        self._whitens = self._is_whitening_promising()
        self._train(seeds)
        best = contenders(self.trials)[0]
        if not best.stages:
            return [best]
        repeated = [self._trial(best.candidate, best.steps, "seed", FIRST_SEED + i) for i in range(1, self._seeds())]
        return [best, *(trial for trial in repeated if not trial.failure)]

    def model_directory(self, trial: Trial) -> Path:
        """Return where the model of a training run is, or was."""
        return self.directory / _key(trial.candidate, trial.round, trial.seed).replace("/", "-").replace(", ", "+")

    # --- without training ------------------------------------------------------------------------------------------

    def _measure_untrained(self) -> None:
        began = time.monotonic()
        values = self.record.once(START, lambda: self._headline(TaskScores(self.start.open(), [self._task])()))
        seconds = self.record.once(f"{START}/seconds", lambda: round(time.monotonic() - began, 2))
        variant = str(self.start.variant)
        self._add(Trial(START, START, variant, values, seconds, {variant: _first(values)}))
        for pooler in dict.fromkeys([self.start.variant.pooler, *POOLERS]):
            known = f"untrained/{pooler}"
            late = self.record.seconds > _UNTRAINED_SHARE * self.record.budget
            if late and not self.record.has(known):
                self.record.note("Not all poolers and whitenings were tried, because the budget is small.")
                break
            trial = self.record.once(known, lambda pooler=pooler: asdict(self._untrained(pooler)))  # type: ignore[misc]
            self._add(Trial(**trial))

    def _is_whitening_promising(self) -> bool:
        """Return whether whitening costs any pooler at most `_WORSE` points, so that trained models try it too."""
        pairs = [
            (value, trial.variants[str(Variant(Variant.parse(name).pooler))])
            for trial in self.trials
            for name, value in trial.variants.items()
            if trial.round == "untrained" and Variant.parse(name).whitening
        ]
        return not pairs or any(whitened > plain - _WORSE for whitened, plain in pairs)

    def _untrained(self, pooler: str) -> Trial:
        return self._measured(Trial("untrained", "untrained", "", {}, 0.0), pooler, lambda: self.start.name)

    def _measured(self, trial: Trial, pooler: str, make: Callable[[], str | Path]) -> Trial:
        """Make a model and score it with and without whitening; return the trial with the better figures."""
        began = time.monotonic()
        described = asdict(trial)
        try:
            scores = self._score(make(), pooler)
        except _FAILURES as error:
            described["failure"] = f"{type(error).__name__}: {error}"
        else:
            variant, described["dev"] = max(scores.items(), key=lambda item: _first(item[1]))
            described |= {"variant": variant, "variants": {name: _first(x) for name, x in scores.items()}}
        return Trial(**{**described, "seconds": round(time.monotonic() - began, 2)})

    def _score(self, directory: str | Path, pooler: str) -> dict[str, dict[str, float]]:
        """Return the headline metrics of a model under a pooler, without and with whitening, by variant."""
        model = open_variant(directory, Variant(pooler), self.corpus)
        scores = TaskScores(model, [self._task])
        values = {str(Variant(pooler)): self._headline(scores())}
        self.record.tick()
        if not self._whitens:
            return values
        try:
            whitening = fit_corpus_whitening(model, self.corpus)
        except ValueError as error:  # too few texts
            self.record.note(f"No whitening was tried: {error}.")
            return values
        return values | {str(Variant(pooler, True)): self._headline(scores(whitening))}

    def _headline(self, results: Sequence[TaskResult]) -> dict[str, float]:
        return {self._name: round(float(results[0].metrics[self._task.metric]), 4)}

    # --- with training ---------------------------------------------------------------------------------------------

    def _train(self, seeds: int) -> None:
        """Try candidates in short runs, and the best of them in longer ones."""
        costs, plan = self._measure_costs(seeds)

        def division() -> dict[str, Any] | None:
            found = divide(self.record.seconds_left, plan, seeds, costs)
            return asdict(found) if found is not None else None

        saved = self.record.once("division", division)
        if saved is None:
            reason = "The budget is too small for a training run" if plan else "No method can train this model here"
            self.record.note(f"{reason}, so the verdict is about poolers and whitening only.")
            return
        self.division = Division(**saved)
        if self.division.seeds < seeds:
            self.record.note(f"The budget allows {self.division.seeds} of {seeds} seeds.")
        short = [
            self._trial(candidate, steps_within(candidate, self.division.seconds, costs), "short", FIRST_SEED)
            for candidate in fitting(plan, self.division.seconds, costs)[: self.division.short_runs]
        ]
        ranked = sorted((t for t in short if not t.failure), key=lambda trial: -trial.headline)
        long = ranked[: self.division.long_runs]
        seconds = self.record.once("long_seconds", lambda: self._long_seconds(len(long), costs))
        for trial in long:
            steps = [round(n * seconds / self.division.seconds) for n in trial.steps]
            if seconds > self.division.seconds:
                self._trial(trial.candidate, steps, "long", FIRST_SEED)

    def _long_seconds(self, runs: int, costs: Costs) -> float:
        """Return the training time of a longer run, from the time that is really left after the short ones."""
        assert self.division is not None
        further = runs + self.division.seeds - 1
        used = [trial.seconds for trial in self.trials if trial.round == "short"]
        overhead = max(0.0, sum(used) / max(1, len(used)) - self.division.seconds)
        left = 0.9 * self.record.seconds_left - costs.judge - further * overhead
        return min(2 * LONGER * self.division.seconds, left / further) if further else 0.0

    def _measure_costs(self, seeds: int) -> tuple[Costs, list[Candidate]]:
        """Time a few steps of each method; return the costs and the candidates whose methods run here."""
        plan = candidates(self.start.tokenizer.mask_token_id is not None)
        untrained = [trial for trial in self.trials if trial.round == "untrained" and not trial.failure]
        scoring = max((trial.seconds for trial in untrained), default=self.trials[0].seconds)
        steps: dict[str, float] = {}
        loads = [0.0]
        first = {stage.method: stage for candidate in reversed(plan) for stage in candidate}
        for method, stage in reversed(first.items()):
            probe = self.record.once(f"probe/{method}", lambda stage=stage: self._probe(stage))  # type: ignore[misc]
            if "failure" in probe:
                self.record.note(f"{method} cannot train this model: {probe['failure']}")
                continue
            steps[method] = probe["step"]
            loads.append(probe["load"])
        plan = [candidate for candidate in plan if all(stage.method in steps for stage in candidate)]
        judge = (seeds + 1) * scoring + 2 * self.trials[0].seconds
        return Costs(steps, max(loads), scoring, judge), plan

    def _probe(self, stage: Stage) -> dict[str, Any]:
        began = time.monotonic()
        directory = self.directory / "probe"
        if self.record.seconds_left <= 0:
            return {"failure": "the budget was spent before it was tried"}
        try:
            (result,) = train_candidate(
                self.start.name, (stage,), [_PROBE_STEPS], FIRST_SEED, directory, self._options()
            )
        except _FAILURES as error:
            return {"failure": str(error)}
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        seconds = time.monotonic() - began
        step = max(result.step_seconds, 1e-4)
        return {"step": step, "load": max(0.0, seconds - result.steps * step)}

    def _trial(self, candidate: Candidate, steps: Sequence[int], round_name: str, seed: int) -> Trial:
        """Train and score a candidate, unless that is recorded, and keep its model if it may still be chosen."""
        stages = [asdict(stage) for stage in candidate]
        planned = Trial(name_of(candidate), round_name, "", {}, 0.0, {}, list(steps), stages, seed)
        directory = self.model_directory(planned)
        taken: list[StageResult] = []

        def make() -> Path:
            taken.extend(train_candidate(self.start.name, candidate, steps, seed, directory, self._options()))
            return directory

        def measure() -> dict[str, Any]:
            if self.record.seconds_left <= 0:
                return asdict(planned) | {"failure": "the budget was spent before this run"}
            trial = asdict(self._measured(planned, self._pooler, make))
            return trial | {"steps": [result.steps for result in taken] or trial["steps"]}

        trial = Trial(**self.record.once(_key(candidate, round_name, seed), measure))
        self._add(trial)
        self._remove_unneeded()
        return trial

    def _options(self) -> TrainingOptions:
        return TrainingOptions(self.corpus.texts, self._pooler, self.corpus.max_length, self._bf16, self._is_time_up)

    def _is_time_up(self) -> bool:
        self.record.tick()
        return self.record.seconds_left <= 0

    def _seeds(self) -> int:
        return self.division.seeds if self.division is not None else 1

    def _add(self, trial: Trial) -> None:
        self.trials.append(trial)
        if trial.failure:
            logger.warning(f"[{_clock(self.record.seconds)}] {trial.name}: {trial.failure}")
            return
        gain = trial.headline - self.trials[0].headline
        steps = f", {sum(trial.steps)} steps" if trial.steps else ""
        logger.info(
            f"[{_clock(self.record.seconds)}] {trial.round}: {trial.name}{steps} ({trial.variant}): dev "
            f"{self._name} {trial.headline:.2f} ({gain:+.2f})"
        )

    def _remove_unneeded(self) -> None:
        """Delete the models of training runs that cannot be chosen any more."""
        needed = {self.model_directory(trial) for trial in contenders(self.trials) if trial.stages}
        for trial in self.trials:
            if trial.stages and trial.round != "seed" and self.model_directory(trial) not in needed:
                shutil.rmtree(self.model_directory(trial), ignore_errors=True)


def _key(candidate: Candidate, round_name: str, seed: int | None) -> str:
    return f"{round_name}/{name_of(candidate)}/{seed}"


def _first(values: dict[str, float]) -> float:
    return next(iter(values.values()))


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
