"""The words of `simcse-hf train METHOD`, and its help.

`--help` reads the fields of the argument classes from their source, because importing them takes seconds.
"""

import re
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from ..names import POOLER_TYPES
from .options import CommandParser, add_general, help_of, import_name, listing, paragraph
from .signature import PACKAGE, Parameter, read_fields

_FOLDER = PACKAGE / "training"
_METHODS = {
    "unsup": "train on sentences, each with another view of itself: by default another dropout mask",
    "sup": "train on anchors with positives and any number of hard negatives, or on labelled texts",
    "mlm": "pretrain an encoder for a domain or language by masked language modelling",
}
_CONTRASTIVE = tuple(
    f"training.arguments:{name}" for name in ("ModelArguments", "DataArguments", "SimCSETrainingArguments")
)
#: The classes of each method's arguments, of which the last one has those of transformers, too.
_CLASSES = {"unsup": _CONTRASTIVE, "sup": _CONTRASTIVE, "mlm": ("apps.pretraining:PretrainingArguments",)}
#: The options that `--help` shows, if the method has them.
_SHOWN = (
    "model_name_or_path train_file dev_file output_dir overwrite_output_dir resume_from_checkpoint objective "
    "objective_options view pooler_type temp max_seq_length learning_rate per_device_train_batch_size "
    "gradcache_chunk_size num_train_epochs max_steps eval_steps bf16 seed train_tokenizer extend_tokenizer seeds"
).split()


def read_train(words: Sequence[str]) -> dict[str, Any]:
    """Read the words after `simcse-hf train`, or print the help that they ask for and end.

    Args:
        words (`Sequence[str]`): The method, a recipe if one is named, and options.

    Returns:
        `dict[str, Any]`: The parameters of `train`, and the options that every command has.
    """
    if not words or words[0] not in _METHODS:
        parser = CommandParser(
            prog="simcse-hf train",
            usage="%(prog)s METHOD [RECIPE] [options]",
            description=paragraph(
                "Train a model. Options may stand in a recipe: a YAML file, or the name of one that the package has. "
                "Options on the command line take precedence. Without options, it trains offline on the package's "
                "sample."
            ),
            epilog=f"methods:\n{listing(_METHODS)}\n\n`simcse-hf train METHOD --help` lists the options of a method.\n"
            "On several GPUs: accelerate launch -m simcse_hf train METHOD [RECIPE] [options]",
            formatter_class=RawDescriptionHelpFormatter,
        )
        parser.add_argument("method", choices=_METHODS, metavar="METHOD", help="one of those below")
        parser.parse_args(words or ["--help"])  # which ends
    method, *rest = words
    if {"-h", "--help", "--help_all"} & set(rest):
        parser = method_parser(method, rest)
        parser.print_help()
        parser.exit()
    parser = CommandParser(add_help=False, allow_abbrev=False)
    add_general(parser)
    general, rest = parser.parse_known_args(rest)
    return {**vars(general), "method": method, "recipe": rest}


def method_parser(method: str, words: Sequence[str]) -> CommandParser:
    """Make the parser whose help has the options of a method with its defaults, what a recipe sets, and an objective.

    Args:
        method (`str`): `"unsup"`, `"sup"` or `"mlm"`.
        words (`Sequence[str]`): The words after the method. With `--help_all` all options are shown, and otherwise
            those that people use most.

    Returns:
        `CommandParser`: The parser.
    """
    recipes = {path.stem: path.read_text("utf-8") for path in sorted(_FOLDER.joinpath("recipes").glob("*.yaml"))}
    own = [name for name, text in recipes.items() if f"train {method} " in text.partition("\n")[0]]
    listings = [
        f"RECIPE is a YAML file of options, or the name of one that the package has: {', '.join(own)}.",
        "--json prints the results as JSON. --quiet shows warnings and errors only.",
    ]
    objectives = names_in("objectives")
    if method != "mlm":
        listings += [
            f"Objectives: {', '.join(objectives)}. --objective NAME --help lists the options of one.",
            f"Views of a sentence: {', '.join(names_in('data/views'))}.",
            f"Poolers: {', '.join(POOLER_TYPES)}, mask, ngrams. docs/api.md describes all of them.",
        ]
    epilog = "\n\n".join(map(paragraph, listings))
    # The objective that the words name, or else a recipe.
    said = [word for word in words if word in objectives]
    recipe = words[0]
    text = recipes.get(recipe.removesuffix(".yaml"))
    if Path(recipe).is_file():
        text = Path(recipe).read_text(encoding="utf-8")
    if text is not None:
        epilog += f"\n\n{recipe} sets:\n{text}"
        said += re.findall(r"^objective: *[\"']?([^\s\"']+)", text, re.MULTILINE)
    said += re.findall(r"--objective[ =](\S+)", " ".join(words))

    sample = "Without a model and texts, it trains offline on the sample of the package, with the sample's settings."
    parser = CommandParser(
        prog=f"simcse-hf train {method}",
        usage="%(prog)s [RECIPE] [--name value ...]",
        description=paragraph(f"{_METHODS[method].capitalize()}. {sample}"),
        epilog=epilog,
        formatter_class=RawDescriptionHelpFormatter,
        argument_default=SUPPRESS,
    )
    parser.add_argument("--help_all", action="help", help="list all options, those of transformers too")
    shows_all = "--help_all" in words
    groups: dict[str, Any] = {"options": parser}
    for parameter, choices in (every_option if shows_all else usual_options)(method):
        if parameter.group not in groups:
            groups[parameter.group] = parser.add_argument_group(parameter.group)
        flag = f"--no_{parameter.name}" if parameter.default is True else f"--{parameter.name}"
        groups[parameter.group].add_argument(flag, metavar="", help=help_of(parameter, choices))
    if said or (shows_all and method != "mlm"):
        add_objective(parser, said[-1] if said else "simcse")
    return parser


def usual_options(method: str) -> Iterator[tuple[Parameter, Sequence[str]]]:
    """Yield the options that people use most, with the method's defaults, without importing their classes."""
    defaults = yaml.safe_load(_FOLDER.joinpath("defaults.yaml").read_text("utf-8"))
    described: dict[str, tuple[Any, str]] = {name: (None, words) for name, words in defaults["words"].items()}
    for each in _CLASSES[method]:
        described |= read_fields(each)
    for name in _SHOWN:
        if name in described:
            default, words = described[name]
            yield Parameter(name, str, defaults[method].get(name, default), words), ()


def every_option(method: str) -> Iterator[tuple[Parameter, Sequence[str]]]:
    """Yield the options of this package, class by class, and then those of transformers."""
    from transformers import TrainingArguments

    from ..training.parser import DEFAULTS, argument_names

    of_transformers = argument_names([TrainingArguments])
    theirs = []
    for each in _CLASSES[method]:
        cls = import_name(each)
        for field in fields(cls):
            if not field.init:
                continue
            words = DEFAULTS["words"].get(field.name) or field.metadata.get("help", "")
            default = DEFAULTS[method].get(field.name, field.default)
            if not isinstance(default, (str, int, float)) or re.search("default: |Defaults? to ", words):
                default = None
            if default is True and field.default is not True:  # there is no --no_x, but `--x false`
                default = "true"
            group = cls._argument_group_name
            if field.name in of_transformers:
                group = "training, of transformers' TrainingArguments"
            words = words.replace(" (default)", "").replace("%%", "%")
            option = Parameter(field.name, str, default, words, group), tuple(field.metadata.get("choices", ()))
            if field.name in of_transformers:
                theirs.append(option)
            else:
                yield option
    yield from theirs


def names_in(folder: str) -> list[str]:
    """Return the names of the classes in a folder of the package, such as its objectives, from their source."""
    names = []
    for path in PACKAGE.joinpath(folder).rglob("*.py"):
        names += re.findall('^    name = "(.+)"$', path.read_text(encoding="utf-8"), re.MULTILINE)
    return sorted(names)


def add_objective(parser: ArgumentParser, name: str) -> None:
    """Add the options of an objective, or of each part of a sum, to what a parser prints as its help."""
    from ..objectives import OBJECTIVES, describe_options, import_objective, part_weights

    import_objective(name)
    for part in part_weights(name):
        objective = OBJECTIVES[part]
        group = parser.add_argument_group(f"objective {part}, as --objective_options NAME=VALUE")
        for option, words in describe_options(objective).items():
            words = re.sub('[`"]', "", words)
            if objective.options[option] is not None:
                words += f" (default: {objective.options[option]})"
            group.add_argument(option, nargs="?", help=words.replace("%", "%%"))
