"""The layout of the package: imports go downwards, never in a circle, apps are on top, and a run is decided once."""

import ast
from graphlib import TopologicalSorter

import pytest
from docs_helpers import PACKAGE, public_names

#: The subpackages from the bottom to the top. Each imports from itself and from those before it.
SUBPACKAGES = (
    "kernels runtime objectives data postprocessing models retrieval encoding evaluation publishing training apps cli"
).split()
#: The file that decides what a run is. No other one changes the arguments of training.
RESOLVE = "training/decide.py"

FILES = sorted(PACKAGE.rglob("*.py"))
SOURCES = [path for path in FILES if path.parent != PACKAGE]
APPS = [path for path in SOURCES if path.relative_to(PACKAGE).parts[0] == "apps"]


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


MODULES = {module_of(path): path for path in SOURCES}


def imports_of(path):
    """Each name that a file imports from this package, and its module, as a tuple such as ("models", "modeling")."""
    package = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            module = package[: len(package) - node.level + 1]
        elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "simcse_hf":
            module = ()
        else:
            continue
        inner = (node.module or "").removeprefix("simcse_hf").strip(".")
        module = (*module, *filter(None, inner.split(".")))
        for alias in node.names:
            yield module, alias.name


def imported_modules(path):
    """The modules of this package that a file imports, also for a type only."""
    for module, name in imports_of(path):
        yield (*module, name) if (*module, name) in MODULES else module


def test_no_subpackage_imports_from_one_above_it_and_nothing_imports_an_app():
    """The door of the package and the table of commands name apps, without importing one before it is used."""
    for path in SOURCES:
        position = SUBPACKAGES.index(module_of(path)[0])
        for module in imported_modules(path):
            if module and module[0] in SUBPACKAGES:
                is_allowed = SUBPACKAGES.index(module[0]) <= position and (module[0] != "apps" or path in APPS)
                assert is_allowed, f"{name_of(path)} imports {'.'.join(module)}"


def test_no_imports_form_a_circle_not_even_those_for_a_type():
    imports = {name: set(imported_modules(path)) & set(MODULES) - {name} for name, path in MODULES.items()}
    TopologicalSorter(imports).prepare()  # names a circle if there is one


@pytest.mark.parametrize("path", APPS, ids=name_of)
def test_apps_import_public_names_only(path):
    found = [(".".join(module), name) for module, name in imports_of(path) if module[:1] != ("apps",)]
    assert set(found) <= public_names()


def test_only_one_file_assigns_to_the_arguments_of_training():
    found = []
    for path in SOURCES:
        if module_of(path)[0] not in ("models", "training") or name_of(path) == RESOLVE:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if ast.unparse(node.value) in ("args", "self.args"):
                    found.append(f"{name_of(path)}:{node.lineno}")
    assert found == []
