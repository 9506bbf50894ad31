"""Options that commands share: the same choices as the package, the same words in every command."""

import pytest

from simcse_hf.cli import common, encode, evaluate, outputs, postprocess, publish, search
from simcse_hf.evaluation import scoring
from simcse_hf.evaluation.classifier import SEED
from simcse_hf.evaluation.user_tasks import KINDS
from simcse_hf.inference import quantization, shards
from simcse_hf.inference.exported import GRAPHS
from simcse_hf.models.pooling import POOLER_TYPES
from simcse_hf.postprocessing.transform import METHODS
from simcse_hf.publishing.export import EXPORTS
from simcse_hf.publishing.export_int8 import INSTRUCTIONS, INT8_EXPORTS


def test_choices_are_those_of_the_package():
    assert common.POOLER_TYPES == tuple(POOLER_TYPES)
    assert encode.PRECISIONS == tuple(quantization.PRECISIONS) and encode.FORMATS == tuple(shards.FORMATS)
    assert publish.EXPORTS == tuple(EXPORTS) and publish.INT8_EXPORTS == tuple(INT8_EXPORTS)
    assert publish.INSTRUCTIONS == INSTRUCTIONS
    assert common.BACKENDS == ("torch", *GRAPHS)
    assert sorted(postprocess.METHODS) == sorted(METHODS)
    assert evaluate.TASK_SETS == scoring.TASK_SETS and evaluate.TASKS == ", ".join(scoring.ALL_TASKS)
    assert evaluate.SEED == SEED
    assert common.TASK_KINDS == tuple(KINDS)


def _parsers():
    from simcse_hf.cli import adapt, demo, mine

    return {
        "adapt": adapt._parser(),
        "build-nli": mine._nli_parser(),
        "compare": evaluate._compare_parser(),
        "demo": demo._parser(),
        "encode": encode._parser(),
        "evaluate": evaluate._evaluate_parser(),
        "export": publish._export_parser(),
        "fit": postprocess._parser(),
        "index": search._index_parser(),
        "mine": mine._mine_parser(),
        "search": search._search_parser(),
    }


@pytest.mark.parametrize(
    "option", ["--pooler_type", "--max_length", "--dtype", "--device", "--no_postprocess", "--token_budget"]
    + ["--overwrite", "--json", "--quiet", "--top_k", "--threshold", "--truncate_dim"]
    + ["--prompt", "--prompt_name", "--column"]
)  # fmt: skip
def test_an_option_has_one_meaning_in_every_command(option):
    declared = {
        name: (action.help, action.default, action.type, type(action), action.choices and tuple(action.choices))
        for name, parser in _parsers().items()
        for action in parser._actions
        if option in action.option_strings
        and (option != "--column" or action.nargs is None)
        # `evaluate --threshold` takes the goal for which a threshold is chosen; the others take the threshold.
        and (option, name) != ("--threshold", "evaluate")
    }
    assert declared and len(set(declared.values())) == 1, declared


def test_every_option_has_help_in_every_command():
    for name, parser in _parsers().items():
        for action in parser._actions:
            assert action.help, f"{name}: {action.option_strings or action.dest}"


# --- folders that are written ----------------------------------------------------------------------------------------


def _write(folder, overwrite, marker="done", content="new", sources=()):
    with outputs.output_folder(folder, overwrite=overwrite, marker=marker, sources=sources) as new:
        new.mkdir()
        (new / marker).write_text(content)


@pytest.mark.parametrize(
    "name, sources, message",
    [
        ("thesis.tex", [], "holds something else"),
        ("done", ["model"], "holds the model that is read"),
        *((name, [], rf"holds more than an earlier output \({name}\)")
          for name in ("checkpoint-500", "trainer_state.json", "results.json", ".git")),
    ],
)  # fmt: skip
def test_a_folder_of_something_else_is_never_replaced(name, sources, message, tmp_path):
    folder = tmp_path / "output"
    (folder / "model").mkdir(parents=True)
    for file in {name, "done" if name != "thesis.tex" else name}:
        (folder / file).write_text("precious")
    with pytest.raises(ValueError, match=message):
        _write(folder, overwrite=True, sources=[str(folder / source) for source in sources])
    assert (folder / name).read_text() == "precious"


def test_a_failure_leaves_the_old_folder(tmp_path):
    folder = tmp_path / "output"
    _write(folder, overwrite=False, content="old")
    with pytest.raises(RuntimeError), outputs.output_folder(folder, overwrite=True, marker="done") as new:
        new.mkdir()
        raise RuntimeError
    assert (folder / "done").read_text() == "old" and list(tmp_path.iterdir()) == [folder]


def test_the_current_folder_cannot_be_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(ValueError, match=r"--output \. is the current folder"),
        outputs.output_folder(".", overwrite=True, marker="x"),
    ):
        raise AssertionError("the block must not run")
