"""The pages of the documentation: what they name exists, the reference is complete, and they stay short."""

import re
import runpy

import pytest
import yaml
from docs_helpers import EVERY_SKILL, ROOT, SKILLS, help_of_commands, inline_commands, known_options, text_of

import simcse_hf
from simcse_hf.cli.main import COMMANDS
from simcse_hf.objectives import OBJECTIVES, describe_options

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
#: A part of a page that tools/write_reference.py writes.
GENERATED = re.compile(r"<!-- from the classes: (\w+) -->.*?<!-- end -->", re.DOTALL)
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *PAGES,
    *sorted((DOCS / "results").glob("[bip]*.md")),
    *SKILLS,
]


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_the_files_beside_the_code_link_what_exists(name):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text_of(name))
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert missing == []


@EVERY_SKILL
def test_a_skill_has_the_open_form_and_is_short(path):
    """As agentskills.io specifies it: a name, which is that of the folder, and what the skill is for."""
    _, header, text = text_of(path).split("---\n", 2)
    fields = yaml.safe_load(header)
    assert fields["name"] == path.parent.name and re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert 0 < len(fields["description"]) <= 1024 and len(fields["name"]) <= 64
    assert "Use when" in fields["description"] and len(fields["compatibility"]) <= 500
    assert fields.keys() <= set("name description license compatibility metadata allowed-tools".split())
    assert len(text.split()) <= 500


def test_the_reference_is_what_the_tool_writes_from_the_classes():
    page = text_of("docs/api.md")
    write = runpy.run_path(str(ROOT / "tools/write_reference.py"))["write"]
    assert page == write(page), "run python tools/write_reference.py"
    parts = [match[1] for match in GENERATED.finditer(page)]
    assert parts == ["objectives", "views", "poolers", "training_arguments"]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_option_of_an_objective_is_described(name):
    assert f"**`{name}`**" in text_of("docs/methods.md")
    words = describe_options(OBJECTIVES[name])
    assert words.keys() == OBJECTIVES[name].options.keys()
    assert not [option for option, text in words.items() if not text or text.startswith("See ")]


def test_the_reference_shows_the_help_of_every_command():
    commands = help_of_commands()
    assert all(re.search(rf"^## {name}", commands, re.MULTILINE) for name in COMMANDS)
    assert commands.count("usage: simcse-hf") == commands.count("```text")


def test_the_api_page_has_every_public_name():
    page = text_of("docs/api.md")
    assert not [name for name in simcse_hf.__all__ if name != "__version__" and f".{name}\n" not in page]


# --- commands outside of the blocks that tests/project/documents/test_docs_run.py runs ---


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_other_command_of_a_page_exists_with_its_options(path):
    options = known_options()
    recipes = {each.stem for each in (ROOT / "simcse_hf/training/recipes").glob("*.yaml")}
    for command in inline_commands(path):
        words = command.split()
        if words[0] == "simcse-hf" and words[1:] and words[1] != "COMMAND" and words[1][0] != "-":
            assert words[1] in COMMANDS, command
            used = {word.partition("=")[0] for word in words if word.startswith("--")} - {"--help"}
            assert used <= options[words[1]], command
            if words[1] == "train" and len(words) > 3 and words[3] not in ("NAME", "...") and words[3][0] != "-":
                assert words[3] in recipes, command
        elif command.startswith("python -m reproduction") and len(words) > 3 and "/" in words[3]:
            assert (ROOT / f"reproduction/tables/{words[3].replace('/', '-')}.yaml").exists(), command
        elif words[0] == "python" and "/" in words[1]:  # others are of the reference implementation
            program = text_of(words[1])
            assert all(word in program for word in words if word.startswith("--")), command


def test_the_navigation_of_the_site_has_every_page():
    listed = re.findall(
        r" (\w+\.md)",
        yaml.dump(yaml.unsafe_load(text_of("mkdocs.yml").split("nav:")[-1])),
    )
    assert sorted(listed) == [path.name for path in PAGES]
