"""A recipe: what somebody wrote about a training run, and the way from there to a trainer and its results.

Everything that trains is a short program over it: `simcse_hf.train`, the command `simcse-hf train`, `--seeds`, the
arms of `adapt`, the tables of `reproduction` and the benchmarks.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoTokenizer, set_seed
from transformers.utils import logging

from ..data.kinds import Source
from ..data.read import is_labelled
from ..data.sample import sample_files
from ..models.checkpoint import Checkpoint
from ..models.modeling import AutoModelForCL
from ..models.settings import Values
from ..runtime.distributed import lock_together, on_first_process
from ..runtime.errors import SettingError, check_values
from ..runtime.files import StrPath
from ..runtime.loading import load_pretrained
from ..runtime.outputs import Result
from .arguments import DataArguments, ModelArguments, SimCSETrainingArguments
from .checkpoints import check_foreign, check_output_dir, clear_output_dir
from .decide import Decided, decide_command, with_values
from .dev_sets import make_dev_sets
from .parser import DEFAULTS, TEXTS, WordParser, check_files
from .run_results import Results
from .sample_run import describe_sample_run
from .seeds import prepare_seeds, publish_best, release, seed_folder, state_of_run
from .trainer import SimCSETrainer

logger = logging.get_logger(__name__)

#: Errors of the HTTP library, whose class differs between versions of huggingface_hub, and of the system.
_UPLOAD_ERRORS: tuple[Any, ...] = HfHubHTTPError.__bases__
#: The classes of the arguments.
ARGUMENTS = (ModelArguments, DataArguments, SimCSETrainingArguments)
#: What reads their values.
PARSER = WordParser(ARGUMENTS)
#: What the table of a data set says about its file, as the arguments of the same names.
OF_FILES = (*TEXTS, "columns", "max_train_samples")


@dataclass(frozen=True)
class Recipe:
    """What somebody wrote about a run. Nothing is decided, read or loaded yet.

    Args:
        command (`str`): `"unsup"` or `"sup"`: whose defaults fill in what nobody wrote.
        given (`Mapping[str, Any]`): The arguments by their names.

    Examples:
        >>> from simcse_hf import Recipe
        >>> recipe = Recipe.read("unsup", {"train_file": "sentences.txt", "max_steps": 100})
        >>> runs = [recipe.but(seed=seed, output_dir=f"outputs/{seed}") for seed in (1, 2)]
        >>> runs[1].given["seed"]
        2
    """

    command: str
    given: Mapping[str, Any]

    @classmethod
    def read(cls, command: str, *sources: StrPath | Mapping[str, Any] | Sequence[str]) -> "Recipe":
        """Read a recipe from several sources, of which the later ones take precedence.

        Args:
            command (`str`): `"unsup"` or `"sup"`.
            sources (`str`, `Mapping` or `Sequence[str]`): The name of a recipe of the package or of a YAML file, a
                table of arguments, or the words of a command line, of which the first may be such a name.

        Returns:
            [`Recipe`]: The recipe.

        Raises:
            SettingError: If there is no such file or recipe, or the command or an argument is unknown, or an argument
                is of another type.
        """
        if command not in ("unsup", "sup"):
            raise SettingError(f"{command!r} is no way to train; there are unsup, sup and, for `train`, mlm")
        return cls(command, PARSER.read(*sources))

    def but(self, **values: Any) -> "Recipe":
        """Return the recipe with other values: a seed, an arm, a cell of a table."""
        return self.read(self.command, self.given, values)

    def decide(self) -> Decided:
        """Look at the starting checkpoint, and decide each argument.

        Returns:
            [`Decided`]: The arguments.

        Raises:
            ModelError: If the model is not there.
            SettingError: If values contradict each other.
        """
        # 1. The sample of the package where nothing is named.
        given = dict(self.given)
        is_sample = all(given.get(name) is None for name in ("model_name_or_path", *TEXTS, "datasets"))
        if is_sample:
            corpus, encoder = sample_files()
            texts = corpus.train_sentences if self.command == "unsup" else corpus.train_triplets
            sample = DEFAULTS[f"{self.command} sample"] | {
                "model_name_or_path": str(encoder),
                "dev_file": str(corpus.dev),
                "train_file": str(texts),
            }
            if "objective" in given:  # whose paper has a pooler of its own
                sample.pop("pooler_type")
            if "num_train_epochs" in given:  # which the steps of the sample would leave without effect
                sample.pop("max_steps")
            given = sample | given

        # 2. Refuse what contradicts itself or is not there.
        if "seed" in given and given.get("seeds") is not None:
            raise SettingError(
                f"seed is {given['seed']} and seeds {given['seeds']}: give one of the two, --seed for one run or "
                "--seeds with the list of seeds for several"
            )
        name = given.get("model_name_or_path")
        if name is None:
            raise SettingError("--model_name_or_path is missing: name the encoder to start from")
        checkpoint = Checkpoint.find(name, revision=given.get("model_revision", "main"))

        # 3. Labelled texts have an objective of their own.
        if self.command == "sup" and "objective" not in given:
            given |= objective_of_labels(given)
            if given.get("datasets"):
                tables = given["datasets"].items()
                given["datasets"] = {name: {**objective_of_labels(own), **own} for name, own in tables}

        # 4. Decide.
        values = decide_command(given, DEFAULTS[self.command], checkpoint)
        return Decided(given, is_sample, checkpoint, *PARSER.fill(values))

    # The run

    def trainer(self, decided: Decided | None = None) -> SimCSETrainer:
        """Load the model and the texts, and make the trainer.

        Args:
            decided (`Decided`, *optional*): What [`decide`] has returned, if it was called before.

        Returns:
            [`SimCSETrainer`]: The trainer, before training.

        Raises:
            SettingError: If the texts are not named in exactly one way.
            ValueError: If the model or the texts do not fit the arguments.
        """
        decided = decided or self.decide()
        data = decided.data
        args = decided.training
        # 1. Where the texts are. What the tables of data sets say about files is not for the Trainer.
        tables: Any = args.datasets or {}
        if tables and (data.train_file is not None or data.dataset_name or data.columns or data.streaming):
            raise SettingError(
                "datasets names the training texts: leave out --train_file, --dataset_name, --columns and --streaming"
            )
        sources = {}
        settings_of = {}
        for name, own in (tables or {"": vars(data)}).items():
            paths = [own[each] for each in TEXTS if own.get(each) is not None]
            if len(paths) != 1:
                where = f"data set {name!r}: " if name else ""
                raise SettingError(f"{where}name the training texts with either train_file or dataset_name")
            check_values("an integer above 0", max_train_samples=own.get("max_train_samples"))
            sources[name] = Source(
                paths[0],
                own.get("columns"),
                own.get("max_train_samples"),
                None if tables else self.command == "sup",
                streams=data.streaming,
                label_separator=data.label_separator,
            )
            settings_of[name] = {key: value for key, value in own.items() if key not in OF_FILES}
        # 2. What evaluates; then the model, the tokenizer of the same revision, and the trainer.
        dev_sets = make_dev_sets(data.dev_file, data.dev_task, data.general, data.label_separator)
        checkpoint = decided.checkpoint
        chosen = decided.model
        tokenizer = load_pretrained(AutoTokenizer.from_pretrained, checkpoint.name, revision=chosen.model_revision)
        set_seed(args.seed)  # A fresh head is drawn when the model is loaded.
        settings = chosen.settings(checkpoint.config)
        model = AutoModelForCL.from_pretrained(checkpoint, head=chosen.head, unpadded=chosen.unpadded, **settings)
        trainer = SimCSETrainer(
            model,
            with_values(args, datasets=settings_of) if tables else args,
            train_dataset=sources if tables else sources[""],
            processing_class=tokenizer,
            callbacks=[*dev_sets],
        )
        kinds = [plan.kind for plan in (trainer.run.rows, *trainer.run.datasets.values())]
        if data.label_separator is not None and "classes" not in kinds and not (data.dev_task or data.general):
            logger.warning("label_separator has no effect, because neither the training texts nor a task have labels.")
        return trainer

    def train(self) -> Results:
        """Train, save the model and write its results into `output_dir`; with `seeds`, once for each.

        Returns:
            [`Results`]: The results, of several seeds those of the published run.

        Raises:
            ValueError: If something cannot be trained as it is asked for, or `output_dir` holds another run.
        """
        # 1. What is named must be there before anything is deleted or loaded.
        decided = self.decide()
        check_files(decided.inputs)
        data = decided.data
        args = decided.training
        directory = Path(str(args.output_dir))
        overwrites = data.overwrite_output_dir
        if decided.is_sample:
            logger.info("Neither a model nor texts are named: this run trains offline on the sample of the package.")
            # The default output directory of the sample belongs to it: nothing else is lost there.
            overwrites |= "output_dir" not in self.given and data.seeds is None

        # 2. One run, or one for each seed.
        check_foreign(directory)
        with lock_together(directory):
            if data.seeds is not None:
                return self._train_seeds(decided, overwrites)
            check_output_dir(args, overwrites, decided.inputs)
            trainer = self.trainer(decided)
            if data.dev_file is None and not data.dev_task:
                logger.warning(
                    "No --dev_file and no --dev_task: nothing is evaluated during training, and the last weights are "
                    "saved."
                )
            clear_output_dir(args)  # now that nothing is wrong with the new run
            trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
            if args.push_to_hub:
                with _after_training(directory, args.hub_model_id):
                    trainer.push_to_hub()  # which saves the model first
            else:
                trainer.save_model()
            assert trainer.results is not None
            if decided.is_sample and trainer.is_world_process_zero():
                print(describe_sample_run(trainer.results.folder))
        return trainer.results

    def finish(self) -> Results:
        """Train as [`train`] does, unless the run in `output_dir` is finished; continue one that was interrupted.

        Returns:
            [`Results`]: The results of the run, which are read if it is finished.

        Raises:
            ValueError: If something cannot be trained as it is asked for.
        """
        folder = Path(self.given["output_dir"])
        state = on_first_process(lambda: state_of_run(folder))
        if state == "finished":
            logger.info(f"{folder} is finished and not repeated.")
            return Results.read(folder)
        return self.but(resume_from_checkpoint="true" if state == "interrupted" else None).train()

    def _train_seeds(self, decided: Decided, overwrites: bool) -> Results:
        """Train once for each seed, and publish the model of the best one."""
        data = decided.data
        args = decided.training
        directory = Path(str(args.output_dir))
        make_dev_sets(data.dev_file, data.dev_task, data.general, data.label_separator)  # or refuse them now
        seeds = on_first_process(lambda: prepare_seeds(decided, overwrites))
        for number, seed in enumerate(seeds, start=1):
            folder = seed_folder(directory, seed)
            logger.info(f"Seed {seed} ({number} of {len(seeds)}) in {folder}")
            one = replace(self, given=decided.given).but(
                seed=seed,
                seeds=None,
                output_dir=str(folder),
                run_name=None if args.run_name is None else f"{args.run_name}-seed-{seed}",
                push_to_hub=False,
            )
            one.finish()
            release(args)
        results = on_first_process(lambda: publish_best(directory, seeds))
        if args.push_to_hub and args.process_index == 0:
            from ..publishing.hub import push_model

            name = args.hub_model_id or directory.resolve().name
            with _after_training(directory, name):
                push_model(directory, name, private=args.hub_private_repo, token=args.hub_token)
        return results


@contextmanager
def _after_training(directory: Path, repo_id: str | None) -> Iterator[None]:
    """Say in the error of the last push that the model is saved, and how it is pushed."""
    from ..publishing.hub import PushError

    try:
        yield
    except (PushError, *_UPLOAD_ERRORS) as error:
        name = repo_id or directory.resolve().name
        raise PushError(
            f"the run has ended and its model is saved in {directory}, but the hub did not take it ({error}). Push it "
            f"later: simcse-hf push {directory} {name}"
        ) from error


def train(method: str = "unsup", recipe: StrPath | Sequence[str] = (), **arguments: Any) -> Results | Result:
    """Train a model: unsup, sup, or mlm (masked-LM pretraining).

    The command `simcse-hf train` is this function: everything that nobody wrote is decided in the same way.

    Args:
        method (`str`, *optional*, defaults to `"unsup"`): `"unsup"` (a sentence predicts itself under another dropout
            mask; SimCSE, section 3), `"sup"` (an anchor and its positive, with any number of hard negatives, or a text
            and its label; section 4) or `"mlm"` (masked-LM pretraining).
        recipe (`str`, `os.PathLike` or `Sequence[str]`, *optional*): A YAML file of arguments, the name of a recipe of
            the package, or the words of a command line.
        arguments (`Any`): The options of the command `simcse-hf train METHOD`, such as `model_name_or_path`,
            `train_file`, `dev_file` (which may also be data frames) and all fields of [`SimCSETrainingArguments`].
            They take precedence over the recipe. Without a model and texts, the run trains offline on the sample of
            the package.

    Returns:
        [`Results`]: The results, which also stand in `results.json` of `output_dir`.

    Raises:
        ValueError: If something cannot be trained as it is asked for, or `output_dir` holds another run.

    Examples:
        >>> from simcse_hf import train
        >>> results = train("unsup", model_name_or_path="outputs/my-model", train_file="sentences.txt", max_steps=2,
        ...                 output_dir="outputs/my-unsup", report_to="none")
        >>> results.run["train_rows"], results.run["steps"]
        (200, 2)
    """
    if method == "mlm":
        from .. import pretrain  # an app, by the name that the package exports

        return pretrain(recipe, **arguments)
    return Recipe.read(method, recipe, arguments).train()


# Steps ---------------------------------------------------------------------------------------------------------------


def objective_of_labels(named: Mapping[str, Any]) -> Values:
    """Return the objective of the texts that a recipe or a table names, if they are labelled: `class_labels`."""
    source = named.get("train_file")
    if source is None:
        source = named.get("dataset_name")
    is_class = source is not None and is_labelled(source, named.get("columns"))
    return {"objective": "class_labels"} if is_class else {}
