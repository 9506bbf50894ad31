"""What a card says about training: exactly the objective, rows, views and additions that were used.

`cards/training.md` holds it for many runs; `card_helpers.check_card` says how the file is written anew.
"""

import json
import re

import pytest
from card_helpers import blocks, check_card
from conftest import VOCABULARY, tiny_config
from datasets import Dataset

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.data.documents import SpanDataset
from simcse_hf.data.views import VIEW_CLASSES
from simcse_hf.objectives import OBJECTIVES, Objective, described_objective, register
from simcse_hf.publishing.card import write_card
from simcse_hf.publishing.card_text import PAPERS

WORDS = VOCABULARY[5:25]
TEMPLATES = ["the {text} [MASK] .", "a {text} [MASK] ."]
TEXTS = ["the cat sat", "a dog ran", "the bird sang", "an old house", "the man slept"]
PAIRS = {"sent0": TEXTS, "sent1": TEXTS[::-1]}
TRIPLETS = PAIRS | {"sent2": TEXTS[1:] + TEXTS[:1]}
NLI = {"texts": [[text, *TEXTS[:2]] for text in TEXTS], "relations": [[0, 2]] * len(TEXTS)}
PROMPTBERT = {"objective": "promptbert", "pooler_type": "mask", "templates": TEMPLATES}
SMALL_VICREG = {"objective": "vicreg", "objective_options": {"projector_dim": 16, "variance_weight": 3.0}}


def save_run(folder, tokenizer, settings=None, columns=None, start=None, **arguments):
    """Save the model of a run to come, and return the record of the run."""
    settings = settings or {}
    if start is None:
        model = AutoModelForCL.from_config(tiny_config(), **settings)
    else:
        model = AutoModelForCL.from_pretrained(start, head="fresh", do_mlm=False, **settings)
    kind = described_objective(settings.get("objective", "simcse")).rows
    if kind == "spans":
        rows = SpanDataset([[" ".join(WORDS)] * 4 for _ in range(8)], tokenizer, 12)
    else:
        rows = Dataset.from_dict(columns or {"sent0": TEXTS})
    args = SimCSETrainingArguments(
        output_dir=str(folder), max_seq_length=16, use_cpu=True, disable_tqdm=True, report_to="none", **arguments
    )
    trainer = SimCSETrainer(model, args, rows, processing_class=tokenizer)
    trainer.save_model()
    return trainer.describe_run()


def excerpt(card):
    """What a card says about training: tags, summary, the section, and the papers."""
    tags = re.search(r"^tags:\n((?:- .*\n)+)", card, re.M)[1].replace("- ", "").split()
    summary = re.search(r"^# .*\n\n(.*)$", card, re.M)[1]
    section = card[card.index("## Training") : card.index("## Results")]
    # The processor is that of this machine.
    section = re.sub(r"^(Trained on|Training took) .*\n\n", "", section, flags=re.M)
    shorter = "".join(re.findall(r"^\| shorter embeddings .*\n", card, re.M))
    papers = re.findall(r"^@\w+\{([\w-]+),$", card, re.M)
    return f"{' '.join(tags)}\n\n{summary}\n{shorter}\n#{section}Cites {', '.join(papers)}.\n"


#: The settings, the columns and the arguments of each run.
RUNS = {
    "single sentences": ({}, None, {}),
    "pairs": ({}, PAIRS, {}),
    "triplets": ({}, TRIPLETS, {}),
    "neighbouring sentences": ({}, PAIRS, {"view": "next_sentence"}),
    "sentences in templates": (PROMPTBERT, None, {}),
    "pairs in templates": (PROMPTBERT, PAIRS, {}),
    "two objectives": (
        {"objective": "softmax:0.7+supcon:0.3", "objective_options": {"softmax.layers": 1}},
        NLI,
        {},
    ),
    "spans": ({"objective": "declutr", "pooler_type": "avg", "do_mlm": True, "mlm_weight": 1.0}, None, {}),
    "tsdae": ({"objective": "tsdae"}, None, {}),
    "scored pairs": (
        {"objective": "angle", "objective_options": {"angle_weight": 2.0}},
        PAIRS | {"score": [0.0, 1.0, 2.0, 3.0, 4.0]},
        {},
    ),
    "a view of both sentences": (SMALL_VICREG, None, {"view": "shuffle", "view_rate": 0.25, "view_both": True}),
    "a masked-LM loss": (
        {"temperature": 0.5, "do_mlm": True, "mlm_weight": 0.7},
        None,
        {"mlm_probability": 0.3},
    ),
    "Matryoshka dimensions": ({"matryoshka_dims": [8, 16, 32]}, None, {}),
}


def test_cards_say_of_runs_what_was_used_and_nothing_else(tokenizer, tmp_path):
    said = []
    for name, (settings, columns, arguments) in RUNS.items():
        folder = tmp_path / name.replace(" ", "-")
        run = save_run(folder, tokenizer, settings, columns, **arguments)
        said.append(f"# {name}\n\n{excerpt(write_card(folder, repo_id='org/name', run=run).read_text())}")
    check_card("training.md", "\n".join(said))


def test_a_card_names_no_folder_of_a_generator_and_no_setting_of_the_start_that_is_not_read(
    tokenizer, save_checkpoint, tmp_path
):
    config = tiny_config()
    config.simcse = {"training": {"objective": "simcse", "mlm_weight": 0.7}}
    start = save_checkpoint(AutoModelForCL.from_config(config, do_mlm=True), "start")
    for settings in ({"objective": "diffcse", "objective_options": {"generator": str(start)}}, SMALL_VICREG):
        folder = tmp_path / settings["objective"]
        run = save_run(folder, tokenizer, settings | {"mlm_weight": 0.7}, start=start, mlm_probability=0.3)
        card = write_card(folder, run=run).read_text()
        assert str(tmp_path) not in card
        assert ("`generator` start" in card) is (settings["objective"] == "diffcse")
        assert "mlm_weight" not in card and "mlm_probability" not in card


def test_the_code_of_a_card_shows_how_to_use_matryoshka_dimensions(tokenizer, tmp_path):
    save_run(tmp_path, tokenizer, {"matryoshka_dims": [8, 16, 32]})
    names = {}
    exec(blocks(write_card(tmp_path, repo_id=str(tmp_path)).read_text())[0], names)
    assert names["embeddings"].shape == (2, 32) and names["shorter"].shape == (2, 16)


def test_without_a_record_a_card_says_what_config_json_says(save_checkpoint):
    config = tiny_config(attention_probs_dropout_prob=0.3)
    folder = save_checkpoint(AutoModelForCL.from_config(config, objective="is_bert", matryoshka_dims=[8]))
    check_card("without_record.md", excerpt(write_card(folder, repo_id="org/name").read_text()))


# --- objectives of the user ---

OWN_PAPER = """
@inproceedings{near-2020,
  title = {Near},
  url = {https://example.org/near}
}
"""


class Near(Objective):
    summary = "the distance of two views."
    papers = ("simcse", "liao", OWN_PAPER)

    def __init__(self, dim, weight=1.0):
        super().__init__(dim)

    def forward(self, batch):
        return (batch.embeddings[:, 0] - batch.embeddings[:, 1]).square().mean()


@pytest.fixture
def near_run(tokenizer, tmp_path):
    """The record of a run with an objective of the user, which nothing has imported when the card is written."""
    register("near_losses:Near", Near)
    try:
        settings = {"objective": "near_losses:Near", "objective_options": {"weight": 2.0}}
        return json.loads(json.dumps(save_run(tmp_path, tokenizer, settings)))
    finally:
        del OBJECTIVES["near_losses:Near"]


def test_a_card_of_another_process_describes_an_objective_of_the_user(near_run, tmp_path, caplog):
    card = write_card(tmp_path, run=near_run).read_text()
    assert "The objective is `near_losses:Near`: the distance of two views (with `weight` 2)." in card
    assert PAPERS["liao"].url in card and OWN_PAPER.strip() in card
    write_card(tmp_path, run=near_run | {"objective": {"papers": ["no-such-paper"]}})
    assert "'no-such-paper': give papers a BibTeX entry with a url" in caplog.text


def test_without_a_record_a_card_names_an_objective_of_the_user(near_run, tmp_path):
    said = excerpt(write_card(tmp_path).read_text())
    assert "configured for the objective `near_losses:Near`" in said
    assert "`near_losses:Near`, which is not part of simcse_hf (with `weight` 2)." in said
    assert said.endswith(f"Cites {PAPERS['simcse'].key}.\n")


# --- what objectives, views and papers say of themselves ---


def test_every_objective_and_every_view_has_words_and_papers_that_a_card_can_cite():
    cited = {view.paper for view in VIEW_CLASSES.values()}
    for objective in OBJECTIVES.values():
        if not objective.__module__.startswith("simcse_hf"):  # somebody's own, which another test has imported
            continue
        assert objective.summary
        cited.update(objective.papers)
    assert cited <= PAPERS.keys()
    assert all("words" in vars(view) for view in VIEW_CLASSES.values())
    assert len({paper.key for paper in PAPERS.values()}) == len(PAPERS)
    for paper in PAPERS.values():
        assert paper.bibtex.count("{") == paper.bibtex.count("}")
