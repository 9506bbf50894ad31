"""What a card says about training: exactly the objective, rows, views and additions that were used."""

import json
import re

import pytest
from conftest import VOCABULARY, tiny_config
from datasets import Dataset
from huggingface_hub import ModelCard

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.data.documents import SpanDataset
from simcse_hf.data.views import VIEW_CLASSES
from simcse_hf.objectives import (
    OBJECTIVES,
    Objective,
    described_objective,
    part_weights,
    register,
)
from simcse_hf.publishing import write_card
from simcse_hf.publishing.papers import PAPERS

WORDS = VOCABULARY[5:25]
TEMPLATES = ["the {text} [MASK] .", "a {text} [MASK] ."]
TEXTS = ["the cat sat", "a dog ran", "the bird sang", "an old house", "the man slept"]
DROPOUT = "two dropout views of each sentence"
PAIRS = {"sent0": TEXTS, "sent1": TEXTS[::-1]}
TRIPLETS = PAIRS | {"sent2": TEXTS[1:] + TEXTS[:1]}
NLI = {
    "texts": [[text, *TEXTS[:2]] for text in TEXTS],
    "relations": [[0, 2]] * len(TEXTS),
}


def rows_for(objective, tokenizer):
    kind = described_objective(objective).rows
    if kind == "spans":
        return SpanDataset([[" ".join(WORDS)] * 4 for _ in range(8)], tokenizer, 12)
    if kind == "scored_pairs":
        return Dataset.from_dict(PAIRS | {"score": [0.0, 1.0, 2.0, 3.0, 4.0]})
    return Dataset.from_dict(NLI if kind == "nli" else {"sent0": TEXTS})


@pytest.fixture
def card_of(tmp_path, tokenizer):
    """`card_of(settings, rows, **arguments)` returns the card of a run to come, and keeps its `tags` and `run`."""

    def write(settings=None, rows=None, name_or_path=None, **arguments):
        settings = settings or {}
        if name_or_path is None:
            model = AutoModelForCL.from_config(tiny_config(), **settings)
        else:
            model = AutoModelForCL.from_pretrained(
                name_or_path, head="fresh", do_mlm=False, **settings
            )
        rows = (
            rows_for(settings.get("objective", "simcse"), tokenizer)
            if rows is None
            else rows
        )
        args = SimCSETrainingArguments(
            output_dir=str(tmp_path / "run"),
            max_seq_length=16,
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
            **arguments,
        )
        trainer = SimCSETrainer(model, args, rows, processing_class=tokenizer)
        trainer.save_model()
        write.run = trainer.describe_run()
        path = write_card(tmp_path / "run", run=write.run)
        write.tags = ModelCard.load(path).data.tags
        return path.read_text()

    return write


def table(card):
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", card, re.M))


def cited(card):
    keys = {paper.key: name for name, paper in PAPERS.items()}
    return {keys[key] for key in re.findall(r"^@\w+\{([\w-]+),$", card, re.M)}


SCORED = "`temperature` 0.05, `similarity` cosine"


def link(objective, paper):
    return f"trained with [`{objective}`]({PAPERS[paper].url})"


#: For each objective: settings, a part of its summary, a part of its section on training, and its papers.
OBJECTIVE_CARDS = {
    "simcse": (
        {},
        f"{link('simcse', 'simcse')} without labels, from {DROPOUT}.",
        f"(with {SCORED}).",
        {"simcse"},
    ),
    "softmax:0.7+supcon:0.3": (
        {"objective_options": {"softmax.layers": 1}},
        "on premises with labelled hypotheses.",
        "`softmax.layers` 1).",
        {"liao", "sbert"},
    ),
    "declutr": (
        {"pooler_type": "avg", "do_mlm": True, "mlm_weight": 1.0},
        "without labels on spans of documents.",
        "(with `temperature` 0.05). A masked-LM loss was added with weight 1.",
        {"declutr"},
    ),
    "promptbert": (
        {"pooler_type": "mask", "templates": TEMPLATES},
        "labels, from each sentence in 2 templates.",
        "The positive of a sentence is the same sentence in another template.",
        {"promptbert", "simcse"},
    ),
    "diffcse": (
        {},
        f"{link('diffcse', 'diffcse')} without labels, from {DROPOUT}.",
        "`generator` start",
        {"diffcse", "simcse"},
    ),
    "tsdae": (
        {},
        f"{link('tsdae', 'tsdae')} without labels, from a view of each sentence (`delete_words`).",
        "The encoder reads the sentence without some of its words (view `delete_words`, rate 0.6).",
        {"tsdae"},
    ),
    "angle": (
        {"objective_options": {"angle_weight": 2.0}},
        f"{link('angle', 'angle')} on scored pairs of sentences.",
        "(with `temperature` 0.05, `angle_weight` 2).",
        {"angle", "cosent"},
    ),
}


def test_every_objective_and_every_view_has_a_description_and_papers():
    for name, objective in OBJECTIVES.items():
        assert objective.summary and set(objective.papers) <= PAPERS.keys(), name
    assert {view.paper for view in VIEW_CLASSES.values()} <= PAPERS.keys()
    assert all("words" in vars(view) for view in VIEW_CLASSES.values()), (
        "each view has words of its own"
    )
    assert len({paper.key for paper in PAPERS.values()}) == len(PAPERS)
    assert all(
        paper.bibtex.count("{") == paper.bibtex.count("}") for paper in PAPERS.values()
    )


@pytest.mark.parametrize("objective", OBJECTIVE_CARDS)
def test_the_card_describes_the_objective_of_the_run(
    objective, card_of, save_checkpoint, tmp_path
):
    settings, summary, training, papers = OBJECTIVE_CARDS[objective]
    start = None
    if objective == "diffcse":
        start = save_checkpoint(
            AutoModelForCL.from_config(tiny_config(), do_mlm=True), "start"
        )
        settings = {"objective_options": {"generator": str(start)}}
    card = card_of({"objective": objective, **settings}, name_or_path=start)
    assert summary in card and training in card
    assert (
        f"The objective is `{objective}`: {described_objective(objective).summary}"
        in card
    )
    assert cited(card) == papers and str(tmp_path) not in card
    names = {term.partition(":")[0] for term in objective.split("+")}
    assert names <= set(card_of.tags) and ("simcse" in card_of.tags) is (
        objective == "simcse"
    )
    options = {
        name for part in part_weights(objective) for name in OBJECTIVES[part].options
    }
    for name in ("temperature", "similarity"):
        assert (f"{name}` " in card) is (name in options), (
            "listed only where the objective reads it"
        )
    if described_objective(objective).rows != "texts" or objective == "promptbert":
        assert (
            "on pairs of sentences" not in card
            and "an anchor and a positive" not in card
            and DROPOUT not in card
        )
    assert (
        not {"mask_token_id", "template_edges", "objective_options"}
        & table(card).keys()
    )


def test_settings_that_the_objective_does_not_read_are_not_listed(
    card_of, save_checkpoint
):
    config = tiny_config()
    config.simcse = {"training": {"objective": "vicreg", "mlm_weight": 0.7}}
    start = save_checkpoint(AutoModelForCL.from_config(config), "start")
    options = {"projector_dim": 16, "variance_weight": 3.0}
    settings = {"objective": "vicreg", "objective_options": options, "mlm_weight": 0.7}
    card = card_of(settings, name_or_path=start, mlm_probability=0.3)
    listed = table(card)
    assert (
        listed["projector_dim"] == "16"
        and listed["variance_weight"] == "3.0"
        and listed["objective"] == "vicreg"
    )
    assert not {"mlm_weight", "mlm_probability"} & listed.keys()
    listed = table(
        card_of(
            {"temperature": 0.5, "do_mlm": True, "mlm_weight": 0.7}, mlm_probability=0.3
        )
    )
    assert (listed["temperature"], listed["mlm_weight"], listed["mlm_probability"]) == (
        "0.5",
        "0.7",
        "0.3",
    )


OWN_PAPER = """
@inproceedings{near-2020,
  title = {Near},
  url = {https://example.org/near}
}
"""


def test_a_card_of_another_process_describes_an_objective_of_the_user(
    card_of, tmp_path, caplog
):
    class Near(Objective):
        summary = "the distance of two views"
        papers = ("simcse", "liao", OWN_PAPER, "no-such-paper")

        def forward(self, batch):
            return (batch.embeddings[:, 0] - batch.embeddings[:, 1]).square().mean()

    register("near_losses:Near", Near)
    try:
        card_of({"objective": "near_losses:Near"})
    finally:
        del OBJECTIVES["near_losses:Near"]
    card = write_card(
        tmp_path / "run", run=json.loads(json.dumps(card_of.run))
    ).read_text()
    assert "The objective is `near_losses:Near`: the distance of two views" in card
    assert PAPERS["liao"].url in card and OWN_PAPER.strip() in card
    assert "'no-such-paper': give papers a BibTeX entry with a url" in caplog.text


def test_the_card_names_an_objective_of_the_user(card_of, tmp_path):
    class Closeness(Objective):
        def __init__(self, dim, weight=1.0):
            super().__init__(dim)

    register("closeness", Closeness)
    try:
        card = card_of({"objective": "closeness", "objective_options": {"weight": 2.0}})
    finally:
        del OBJECTIVES["closeness"]
    assert "trained with the objective `closeness` without labels" in card
    assert "`closeness`, which is not part of simcse_hf (with `weight` 2)." in card
    card = write_card(
        tmp_path / "run"
    ).read_text()  # where nothing has imported the objective
    assert "configured for the objective `closeness`" in card and cited(card) == {
        "simcse"
    }


# --- rows and views -----------------------------------------------------------------------------------------------


PROMPTBERT = {"objective": "promptbert", "pooler_type": "mask", "templates": TEMPLATES}


@pytest.mark.parametrize(
    ("rows", "options", "description", "summary"),
    [
        (
            {"sent0": TEXTS},
            {},
            "single sentences.",
            f" without labels, from {DROPOUT}.",
        ),
        (PAIRS, {}, "an anchor and a positive.", " on pairs of sentences."),
        (
            PAIRS,
            {"settings": PROMPTBERT},
            "an anchor and a positive.",
            " on pairs of sentences.",
        ),
        (
            TRIPLETS,
            {},
            "an anchor, a positive and hard negatives.",
            " on pairs of sentences with hard negatives.",
        ),
        (
            PAIRS,
            {"view": "next_sentence"},
            "a sentence and a later sentence of the same document.",
            "on neighbouring",
        ),
    ],
)
def test_the_card_describes_the_training_rows(
    rows, options, description, summary, card_of
):
    card = card_of(rows=Dataset.from_dict(rows), **options)
    assert (
        f"5 rows of {description}" in card
        and summary in card
        and "from each sentence" not in card
    )
    assert ("pairs" in card) is ("pairs" in summary) and ("view" in table(card)) is (
        len(rows) == 1
    )


def test_the_card_describes_a_view_of_both_sentences_with_its_rate(card_of):
    settings = {"objective": "vicreg", "objective_options": {"projector_dim": 16}}
    card = card_of(settings, view="shuffle", view_rate=0.25, view_both=True)
    assert (
        "from two views of each sentence (`shuffle`)." in card
        and "dropout views" not in card
    )
    assert "(view `shuffle`, rate 0.25); the anchor is changed in the same way." in card
    assert cited(card) == {"vicreg", "non_contrastive"}


# --- around any objective -----------------------------------------------------------------------------------------


def test_the_card_shows_how_to_use_matryoshka_dimensions(card_of, tmp_path):
    card = card_of({"matryoshka_dims": [8, 16, 32]})
    assert (
        "The objective was also applied to the leading 32, 16, 8 dimensions ([Matryoshka]("
        in card
    )
    assert (
        "| shorter embeddings | the leading 16, 8 dimensions (`truncate_dim`) |" in card
    )
    assert cited(card) == {"simcse", "matryoshka"}
    code = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0].replace(
        "your-name/run", str(tmp_path / "run")
    )
    names = {}
    exec(code, names)
    assert names["embeddings"].shape == (2, 32) and names["shorter"].shape == (2, 16)
    assert "truncate_dim" not in card_of()


# --- without a record ---------------------------------------------------------------------------------------------


def test_without_a_record_the_card_takes_the_objective_from_config_json(
    save_checkpoint,
):
    config = tiny_config(attention_probs_dropout_prob=0.3)
    card = write_card(
        save_checkpoint(
            AutoModelForCL.from_config(config, objective="is_bert", matryoshka_dims=[8])
        )
    ).read_text()
    assert (
        "| `attention_probs_dropout_prob` | 0.3 |" in card
        and "`hidden_dropout_prob`" not in card
    )
    assert "from a `bert` encoder, configured for the objective `is_bert`." in card
    assert (
        "how the model was trained. According to its config.json: The objective is `is_bert`"
        in card
    )
    assert "the leading 8 dimensions" in card and cited(card) == {
        "is_bert",
        "matryoshka",
    }
