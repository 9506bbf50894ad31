"""The layout of the package: subpackages import only from lower ones, and files and functions stay small."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "simcse_hf"

#: The subpackages from the bottom to the top. Each imports from itself and from those before it.
SUBPACKAGES = (
    "ops",
    "objectives",
    "data",
    "postprocessing",
    "models",
    "search",
    "inference",
    "evaluation",
    "publishing",
    "training",
    "cli",
)
MAX_FILES, MAX_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 14, 600, 60, 8
#: File names that may occur in several folders, because they play the same part in each.
SHARED_NAMES = {"__init__.py", "base.py"}

#: Functions whose signature or length another library's interface demands.
LONG_SIGNATURES = {
    "models/modeling.py:ContrastiveModel.forward": "the inputs of a transformers model",
    "inference/simcse.py:SimCSE.__init__": "what is loaded, as SentenceTransformer takes it, and how texts are cut",
    "inference/simcse.py:SimCSE.encode": "the arguments of SentenceTransformer.encode beside our own",
    "inference/shards.py:encode_file": "the arguments of SimCSE.encode beside those of the shards",
    "training/trainer.py:SimCSETrainer.create_model_card": "the arguments of transformers' Trainer.create_model_card",
    "publishing/card.py:write_card": "the front matter that transformers' Trainer.create_model_card takes",
    "search/sentences.py:SentenceIndex.build": "the texts, their embeddings and the settings of an index",
}
LONG_FUNCTIONS: dict[str, str] = {}

FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


def runtime_nodes(tree):
    """The nodes of a module that run, without those under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from runtime_nodes(child)


def imported_modules(path):
    """The modules of this package that a file imports, as tuples such as ("models", "poolers")."""
    package = ("simcse_hf", *path.relative_to(PACKAGE).parent.parts)
    for node in runtime_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            prefix = package[: len(package) - node.level + 1] if node.level else ()
            names = [(*prefix, *(node.module.split(".") if node.module else ()))]
            if names[0] == ("simcse_hf",):
                names = [("simcse_hf", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        else:
            continue
        yield from (name[1:] for name in names if name[0] == "simcse_hf" and len(name) > 1)


def functions(path):
    """(qualified name, node) of each function and method of a file, those inside functions included."""

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{prefix}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    yield name, child
                yield from walk(child, f"{name}.")
            else:
                yield from walk(child, prefix)

    yield from walk(ast.parse(path.read_text()), "")


def test_a_folder_has_at_most_14_files():
    for folder in {path.parent for path in FILES}:
        files = [path.name for path in folder.glob("*.py")]
        assert len(files) <= MAX_FILES, f"{folder.name}: {len(files)} files"


def test_no_two_files_share_a_name_unless_they_play_the_same_part():
    folders = {}
    for path in FILES:
        folders.setdefault(path.name, []).append(path.relative_to(PACKAGE).parent.as_posix())
    shared = {name: found for name, found in folders.items() if len(found) > 1 and name not in SHARED_NAMES}
    assert shared == {}


@pytest.mark.parametrize("path", [path for path in FILES if path.parent != PACKAGE], ids=name_of)
def test_no_subpackage_imports_from_one_above_it(path):
    position = SUBPACKAGES.index(path.relative_to(PACKAGE).parts[0])
    for module in imported_modules(path):
        if module[0] in SUBPACKAGES:
            assert SUBPACKAGES.index(module[0]) <= position, f"{name_of(path)} imports {'.'.join(module)}"


def test_no_imports_form_a_circle():
    modules = {path.relative_to(PACKAGE).with_suffix("").parts: path for path in FILES if path.parent != PACKAGE}
    modules |= {name[:-1]: modules.pop(name) for name in list(modules) if name[-1] == "__init__"}
    imports = {name: {m for m in map(tuple, imported_modules(path)) if m in modules} for name, path in modules.items()}
    done, open_path = set(), []

    def visit(name):
        assert name not in open_path, f"circle: {[*open_path[open_path.index(name) :], name]}"
        if name not in done:
            open_path.append(name)
            for module in sorted(imports[name]):
                visit(module)
            done.add(open_path.pop())

    for name in sorted(modules):
        visit(name)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_stay_small(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= MAX_LINES, f"{len(lines)} lines"
    for name, node in functions(path):
        where = f"{name_of(path)}:{name}"
        length = node.end_lineno - node.lineno + 1
        if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
            length -= node.body[0].end_lineno - node.body[0].lineno + 1  # the docstring
        assert length <= MAX_FUNCTION_LINES or where in LONG_FUNCTIONS, f"{where} has {length} lines"
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        parameters = [parameter for parameter in parameters if parameter.arg not in ("self", "cls")]
        assert len(parameters) <= MAX_PARAMETERS or where in LONG_SIGNATURES, (
            f"{where} has {len(parameters)} parameters"
        )
