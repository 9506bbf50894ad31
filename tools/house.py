"""Count what makes a package hard to hold in mind, and name it with --list.

    python tools/house.py [--list] [FOLDER]

- Tokens, and tokens a line: Python's own, without docstrings and comments. Lines that are fuller than 9 are golf.
- Functions named once: what only one other place of the package names. Under six lines, the name seldom saves reading.
- Names that stand twice: classes and functions at the top of two files. A reader has to ask which one is meant.
- Constants of one name and several values, at the top of two files.
- `getattr(model, ...)`: questions to an object that has no protocol.
"""

import argparse
import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

SHORT = 6
NOT_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
PACKAGE = Path(__file__).parents[1] / "simcse_hf"


class File:
    """A file with its syntax tree, the number of its tokens, and the lines that hold code."""

    def __init__(self, path: Path, package: Path):
        self.name, self.text = path.relative_to(package).as_posix(), path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        documented = set()
        for node in ast.walk(self.tree):
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
                documented.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
        self.tokens, self.lines = 0, set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in NOT_CODE and token.start[0] not in documented:
                self.tokens += 1
                self.lines.update(range(token.start[0], token.end[0] + 1))

    def functions(self) -> list[ast.FunctionDef]:
        """All functions and methods but those with names such as __init__."""
        found = (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef))
        return [node for node in found if not node.name.startswith("__")]

    def words(self) -> Iterator[str]:
        """Every use of a name, in `name` and in `object.name`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Attribute):
                yield node.attr

    def length(self, node: ast.FunctionDef) -> int:
        """Count the lines of a function that hold code."""
        return len(self.lines & set(range(node.lineno, node.end_lineno + 1)))


def named_once(files: list[File]) -> dict[str, int]:
    """Return the length of each function that a single other place of the package names."""
    words = Counter(word for file in files for word in file.words())
    found = {}
    for file in files:
        for node in file.functions():
            if words[node.name] == 1:
                found[f"{file.name}:{node.lineno} {node.name}"] = file.length(node)
    return found


def standing_twice(files: list[File]) -> dict[str, list[str]]:
    """Return the files of each class or function that stands at the top of several."""
    places = defaultdict(list)
    for file in files:
        for node in file.tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("__"):
                places[node.name].append(file.name)
    return {name: where for name, where in places.items() if len(where) > 1}


def several_values(files: list[File]) -> dict[str, list[str]]:
    """Return the values of each constant that has different ones in several files."""
    values = defaultdict(dict)
    for file in files:
        for node in file.tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name) and target.id.isupper() and len(target.id) > 1:
                        values[target.id][f"{file.name} = {ast.unparse(node.value):.40}"] = ast.unparse(node.value)
    return {name: list(each) for name, each in values.items() if len(set(each.values())) > 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=PACKAGE)
    parser.add_argument("--list", action="store_true", help="also name what is counted")
    asked = parser.parse_args()
    files = [File(path, asked.folder) for path in sorted(asked.folder.rglob("*.py"))]
    once = named_once(files)
    short = [place for place, length in once.items() if length < SHORT]
    twice = [f"{name}: {', '.join(where)}" for name, where in standing_twice(files).items()]
    constants = [f"{name}: {'; '.join(where)}" for name, where in several_values(files).items()]
    asking = [file.name for file in files for _ in range(file.text.count("getattr(model"))]
    tokens, lines = sum(file.tokens for file in files), sum(len(file.lines) for file in files)
    apps = sum(file.tokens for file in files if file.name.startswith("apps/"))
    print(f"{tokens:9,} tokens, {tokens - apps:,} without apps, {tokens / lines:.1f} a line")
    print(f"{len(once):9,} functions named once")
    counted = {
        f"of them under {SHORT} lines": short,
        "classes and functions that stand twice": twice,
        "constants of one name and several values": constants,
        "getattr(model": asking,
    }
    for words, found in counted.items():
        print(f"{len(found):9,} {words}")
        for each in found if asked.list else ():
            print(f"{'':14}{each}")


if __name__ == "__main__":
    main()
