"""What `simcse-hf train METHOD --help` prints: the options that people use most, from the fields of the arguments.

The fields are read from their source. The parser with all options takes seconds to import.
"""

import ast
import re
from argparse import SUPPRESS, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ..names import POOLER_TYPES
from .options import CommandParser, help_of, paragraph
from .signature import PACKAGE, Parameter, find_definition

_RECIPES = PACKAGE / "training" / "recipes"
_CONTRASTIVE = (
    "training.arguments:ModelArguments",
    "training.arguments:DataArguments",
    "training.arguments:SimCSETrainingArguments",
)
#: The classes of each method's arguments, beside those of transformers.
_CLASSES = {"unsup": _CONTRASTIVE, "sup": _CONTRASTIVE, "mlm": ("apps.pretraining:PretrainingArguments",)}
#: The options that are shown, if the method has them.
_SHOWN = (
    "model_name_or_path train_file dev_file output_dir overwrite_output_dir resume_from_checkpoint objective "
    "objective_options view pooler_type temp max_seq_length learning_rate per_device_train_batch_size "
    "gradcache_chunk_size num_train_epochs max_steps eval_steps bf16 seed train_tokenizer extend_tokenizer seeds"
).split()


def print_help(method: str, purpose: str, words: Sequence[str]) -> None:
    """Print the options of a method with its defaults, what a recipe sets, and the options of an objective.

    Args:
        method (`str`): `"unsup"`, `"sup"` or `"mlm"`.
        purpose (`str`): What it does, in words.
        words (`Sequence[str]`): The words after the method: a YAML file or the name of a recipe of the package, if
            there is one, and options.
    """
    options = options_of(method)
    recipes = []
    for path in sorted(_RECIPES.glob("*.yaml")):
        if f"train {method} " in path.read_text(encoding="utf-8").partition("\n")[0]:
            recipes.append(path.stem)
    listings = [
        f"RECIPE is a YAML file of options, or the name of one that the package has: {', '.join(recipes)}.",
        "--json prints the results as JSON. --quiet shows warnings and errors only.",
    ]
    objectives = names_in("objectives")
    if "objective" in options:
        listings += [
            f"Objectives: {', '.join(objectives)}. --objective NAME --help lists the options of one.",
            f"Views of a sentence: {', '.join(names_in('data/views'))}.",
            f"Poolers: {', '.join(POOLER_TYPES)}, mask, ngrams. docs/api.md describes all of them.",
        ]
    epilog = "\n\n".join(map(paragraph, listings))
    said = [word for word in words if word in objectives]
    for path in (Path(words[0]), _RECIPES / f"{words[0].removesuffix('.yaml')}.yaml"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            epilog += f"\n\n{words[0]} sets:\n{text}"
            said += re.findall(r"^objective: *[\"']?([^\s\"']+)", text, re.MULTILINE)
            break
    said += re.findall(r"--objective[ =](\S+)", " ".join(words))
    sample = "Without a model and texts, it trains offline on the sample of the package, with the sample's settings."
    parser = CommandParser(
        prog=f"simcse-hf train {method}",
        usage="%(prog)s [RECIPE] [--name value ...]",
        description=paragraph(f"{purpose.capitalize()}. {sample}"),
        epilog=epilog,
        formatter_class=RawDescriptionHelpFormatter,
        argument_default=SUPPRESS,
    )
    parser.add_argument("--help_all", action="help", help="list all options, those of transformers too")
    for name in _SHOWN:
        if name in options:
            parser.add_argument(f"--{name}", metavar="", help=help_of(options[name]))
    if said:
        from ..training.parser import add_objective

        add_objective(parser, said[-1])
    parser.print_help()


def names_in(folder: str) -> list[str]:
    """Return the names of the classes in a folder of the package, such as its objectives, from their source."""
    names = []
    for path in PACKAGE.joinpath(folder).rglob("*.py"):
        names += re.findall('^    name = "(.+)"$', path.read_text(encoding="utf-8"), re.MULTILINE)
    return sorted(names)


def options_of(method: str) -> dict[str, Parameter]:
    """Return the options of a method by their names, with its defaults.

    Args:
        method (`str`): `"unsup"`, `"sup"` or `"mlm"`.

    Returns:
        `dict[str, Parameter]`: The fields of the argument classes, and transformers' most used.
    """
    defaults = yaml.safe_load((PACKAGE / "training" / "defaults.yaml").read_text(encoding="utf-8"))
    described: dict[str, tuple[Any, str]] = {name: (None, words) for name, words in defaults["words"].items()}
    for each in _CLASSES[method]:
        for field in find_definition(each).body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Call):
                default, text = field.value.args
                value = default.value if isinstance(default, ast.Constant) else None
                described[ast.unparse(field.target)] = (value, ast.literal_eval(text))
    options = {}
    for name, (own, words) in described.items():
        options[name] = Parameter(name, str, defaults[method].get(name, own), words)
    return options
