"""The words of `simcse-hf train METHOD`, and its help.

`--help` reads the fields of the argument classes from their source, because importing them takes seconds.
"""

import re
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ..names import POOLER_TYPES
from .options import CommandParser, add_general, choice_parser, help_of, paragraph
from .signature import PACKAGE, Parameter, read_fields

_METHODS = {
    "unsup": "Train on sentences, each with another view of itself: by default another dropout mask.",
    "sup": "Train on anchors with positives and any number of hard negatives, or on labelled texts.",
    "mlm": "Pretrain an encoder for a domain or language by masked language modelling.",
}
_CONTRASTIVE = tuple(
    f"training.arguments:{name}" for name in ("ModelArguments", "DataArguments", "SimCSETrainingArguments")
)
#: The classes of each method's arguments.
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
        parser = choice_parser(
            "simcse-hf train",
            "METHOD [RECIPE] [options]",
            _METHODS,
            "Train a model. Options may stand in a recipe: a YAML file, or the name of one that the package has. "
            "Options on the command line take precedence. Without options, it trains offline on the package's sample.",
            "On several GPUs: accelerate launch -m simcse_hf train METHOD [RECIPE] [options]",
        )
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
        words (`Sequence[str]`): The words after the method. With `--help_all` all options of this package are shown,
            and otherwise those that people use most.

    Returns:
        `CommandParser`: The parser.
    """
    paths = sorted(PACKAGE.joinpath("training", "recipes").glob("*.yaml"))
    recipes = {path.stem: path.read_text("utf-8") for path in paths}
    own = [name for name, text in recipes.items() if f"train {method} " in text.partition("\n")[0]]
    listings = [
        f"RECIPE is a YAML file of options, or the name of one that the package has: {', '.join(own)}.",
        "All other arguments of transformers' TrainingArguments are options, too. --json prints the results as JSON. "
        "--quiet shows warnings and errors only.",
    ]
    objectives = names_in("objectives")
    if method != "mlm":
        listings += [
            f"Objectives: {', '.join(objectives)}. --objective NAME --help lists the options of one.",
            f"Views of a sentence: {', '.join(names_in('data/views'))}.",
            f"Poolers: {', '.join(POOLER_TYPES)}, mask, ngrams. docs/api.md describes all of them.",
        ]
    epilog = "\n\n".join(map(paragraph, listings))
    said = re.findall(r"--objective[ =](\S+)", " ".join(words))
    recipe = words[0]
    text = recipes.get(recipe.removesuffix(".yaml"))
    if Path(recipe).is_file():
        text = Path(recipe).read_text(encoding="utf-8")
    if text is not None:
        epilog += f"\n\n{recipe} sets:\n{text}"
        said += re.findall(r"^objective: *[\"']?([^\s\"']+)", text, re.MULTILINE)

    sample = "Without a model and texts, it trains offline on the sample of the package, with the sample's settings."
    parser = CommandParser(
        prog=f"simcse-hf train {method}",
        usage="%(prog)s [RECIPE] [--name value ...]",
        description=paragraph(f"{_METHODS[method]} {sample}"),
        epilog=epilog,
        formatter_class=RawDescriptionHelpFormatter,
        argument_default=SUPPRESS,
    )
    parser.add_argument("--help_all", action="help", help="List all options of this package")
    shows_all = "--help_all" in words
    groups: dict[str, Any] = {"options": parser}
    for parameter in options_of(method, shows_all):
        if parameter.group not in groups:
            groups[parameter.group] = parser.add_argument_group(parameter.group)
        flag = f"--no_{parameter.name}" if parameter.default is True else f"--{parameter.name}"
        groups[parameter.group].add_argument(flag, metavar="", help=help_of(parameter))
    if said or (shows_all and method != "mlm"):
        add_objective(parser, said[0] if said else "simcse")
    return parser


def options_of(method: str, shows_all: bool) -> list[Parameter]:
    """Return the options of a method with its defaults: those that people use most, or all of this package."""
    defaults = yaml.safe_load(PACKAGE.joinpath("training", "defaults.yaml").read_text("utf-8"))
    parameters = []
    for each in _CLASSES[method]:
        parameters += read_fields(each)
    for name, words in defaults["words"].items():
        parameters.append(Parameter(name, "", None, words, "training, of transformers' TrainingArguments"))
    if not shows_all:
        usual = {parameter.name: replace(parameter, group="options") for parameter in parameters}
        parameters = [usual[name] for name in _SHOWN if name in usual]
    for number, parameter in enumerate(parameters):
        if parameter.name in defaults[method]:
            default = str(defaults[method][parameter.name]).lower()  # there is no --no_x, but `--x false`
            parameters[number] = replace(parameter, default=default)
    return parameters


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
