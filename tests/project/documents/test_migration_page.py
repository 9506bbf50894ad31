"""Whatever docs/migration.md names as a substitute, and each name in a skill, exists; its objectives can be built."""

import inspect
import pkgutil
import re

import pytest
import yaml
from docs_helpers import EVERY_SKILL, PACKAGE, inline_commands, known_options, public_names, rows_of_tables
from transformers import BertConfig

from simcse_hf.cli.main import COMMANDS
from simcse_hf.evaluation.tasks import KINDS
from simcse_hf.objectives import OBJECTIVES, build_objective

PAGE = "docs/migration.md"
#: What a page names beside the package: other libraries, and columns, tables and results in files.
OTHERS = """
    Dataset EarlyStoppingCallback LoraConfig dot_score label_names set_seed use_faiss masked_lm_loss change
    eval_NAME_spearman eval_stsb_spearman
    anchor positive negative negatives text label sentence1 sentence2 pos_scores neg_scores macro_f1 share
""".split()
#: A name that is assigned, called or followed by a colon, or that stands alone. Capitals stand for something.
NAME = re.compile(r"(?<![\w.\-])[a-z_][\w.]*(?=[(=]|:(?: |$))|^[\w.]*[a-z][\w.]*$|[A-Z]\w*[a-z]\w*(?=\()")


@pytest.fixture(scope="module")
def options():
    return known_options()


@pytest.fixture(scope="module")
def known(options):
    """Options, objectives with theirs, settings of an encoder, and public names with their members and arguments."""
    found = {*OTHERS, *COMMANDS, *KINDS, *OBJECTIVES, *BertConfig().to_dict()}
    for objective in OBJECTIVES.values():
        found |= objective.options.keys()
    for of_command in options.values():
        found |= {option.removeprefix("--") for option in of_command}
    for module, name in public_names():
        value = pkgutil.resolve_name(f"simcse_hf.{module}.{name}".replace("..", "."))
        found |= {name, *dir(value)}
        for each in [value, *vars(value).values()] if inspect.isclass(value) else [value]:
            if inspect.isfunction(each):
                found |= inspect.signature(each).parameters.keys()
    return found


def exists(path, known):
    first, last = path.split(".")[0], path.split(".")[-1]
    if first != "simcse_hf" and not (PACKAGE / first).is_dir():
        return last in known
    try:
        pkgutil.resolve_name(path if first == "simcse_hf" else f"simcse_hf.{path}")
    except (ImportError, AttributeError):
        return False
    return True


def missing_names(span, options, known):
    """The options and names of a piece of code that the package does not have."""
    code = re.sub(r'"[^"]*"|^(simcse-hf|.* -m simcse_hf) ', "", span)
    command = code.split(" ")[0]
    of_command = options[command] if command in COMMANDS else set().union(*options.values())
    missing = set(re.findall(r"--\w+", code)) - of_command - {"--help"}
    return missing | {name for name in NAME.findall(code) if not exists(name, known)}


def test_what_the_page_puts_in_the_place_of_something_exists(options, known):
    for cells in rows_of_tables(PAGE):
        has_the_names_from_there = cells[-1].startswith("the same")
        for span in re.findall(r"`([^`]+)`", " ".join(cells if has_the_names_from_there else cells[-1:])):
            assert missing_names(span, options, known) == set(), span


def test_the_losses_of_the_page_can_be_built():
    built = set()
    for cells in rows_of_tables(PAGE):
        spans = re.findall(r"`([^`]+)`", cells[-1])
        for name in spans[:1]:
            if name in OBJECTIVES:
                given = dict(span.split("=", 1) for span in spans if "=" in span)
                own = {key: yaml.safe_load(value) for key, value in given.items() if key in OBJECTIVES[name].options}
                kind = {"loss": own["loss"]} if "loss" in own else {}
                for option, value in own.items():  # of which some exclude each other
                    build_objective(name, 8, kind | {option: value})
                built.add(name)
    assert len(built) >= 8


@EVERY_SKILL
def test_a_skill_names_options_and_columns_that_exist(path, options, known):
    for span in inline_commands(path):
        if re.fullmatch(r"--.*|\w+|\w+=.*|simcse-hf .*", span):
            assert missing_names(span, options, known) == set(), span
