"""The layout of the package: subpackages import from lower ones, nothing in a circle, and a run is decided once."""

import ast
import inspect
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from transformers import Trainer

from simcse_hf import SimCSETrainer

PACKAGE = Path(__file__).parents[2] / "simcse_hf"
#: The subpackages from the bottom to the top. Each imports from itself and from those before it.
SUBPACKAGES = [
    "kernels",
    "runtime",
    "objectives",
    "data",
    "postprocessing",
    "models",
    "retrieval.indexes",
    "encoding",
    "retrieval",
    "evaluation",
    "publishing",
    "training",
    "apps",
    "cli",
]
#: The file that decides what a run is. No other one changes the arguments of training.
RESOLVE = "training/decide.py"
#: Any release of transformers may change its private methods.
MOST_PRIVATE_METHODS = 5

FILES = sorted(PACKAGE.rglob("*.py"))
SOURCES = [path for path in FILES if path.parent != PACKAGE]


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


MODULES = {module_of(path): path for path in SOURCES}


def imported_modules(path):
    """The modules of this package that a file imports, also for a type only, as tuples such as ("models", "auto")."""
    package = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            module = package[: len(package) - node.level + 1]
        elif node.module.split(".")[0] == "simcse_hf":
            module = ()
        else:
            continue
        if node.module:
            module = (
                *module,
                *node.module.removeprefix("simcse_hf").strip(".").split("."),
            )
        submodules = [
            (*module, alias.name)
            for alias in node.names
            if (*module, alias.name) in MODULES
        ]
        yield from submodules or [module]


def position_of(module):
    """The place of a module's subpackage from the bottom; the indexes are a subpackage of their own."""
    is_index = module[:2] == ("retrieval", "indexes")
    return SUBPACKAGES.index("retrieval.indexes" if is_index else module[0])


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_subpackage_imports_from_one_above_it(path):
    position = position_of(module_of(path))
    for module in imported_modules(path):
        if module and module[0] in SUBPACKAGES:
            assert position_of(module) <= position, (
                f"{name_of(path)} imports {'.'.join(module)}"
            )


def test_no_imports_form_a_circle_not_even_those_for_a_type():
    imports = {
        name: set(imported_modules(path)) & set(MODULES) - {name}
        for name, path in MODULES.items()
    }
    TopologicalSorter(imports).prepare()  # names a circle if there is one


def test_only_one_file_assigns_to_the_arguments_of_training():
    found = []
    for path in SOURCES:
        if module_of(path)[0] not in ("models", "training"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            targets = (
                [node.target]
                if isinstance(node, ast.AugAssign)
                else getattr(node, "targets", ())
            )
            attributes = [
                each
                for target in targets
                for each in ast.walk(target)
                if isinstance(each, ast.Attribute)
            ]
            owners = [
                ast.unparse(each.value)
                for each in attributes
                if isinstance(each.ctx, ast.Store)
            ]
            if {"args", "self.args"} & set(owners) and name_of(path) != RESOLVE:
                found.append(f"{name_of(path)}:{node.lineno}")
    assert found == []


def test_the_trainer_overrides_few_private_methods_of_transformers():
    own = [
        name
        for name, _ in inspect.getmembers(SimCSETrainer, inspect.isfunction)
        if name in vars(SimCSETrainer)
    ]
    private = [
        name
        for name in own
        if name.startswith("_") and not name.startswith("__") and hasattr(Trainer, name)
    ]
    assert len(private) <= MOST_PRIVATE_METHODS, private
