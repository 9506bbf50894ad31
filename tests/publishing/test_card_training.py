"""What a card says of a training: the objective, rows, views and additions that were there, and no others."""

import re

import pytest
from conftest import VOCABULARY, tiny_config
from datasets import Dataset
from huggingface_hub import ModelCard

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.data.spans import SpanDataset
from simcse_hf.data.views import VIEWS
from simcse_hf.objectives import OBJECTIVES, Objective, register
from simcse_hf.publishing import write_card
from simcse_hf.publishing.methods import METHODS, VIEW_WORDS
from simcse_hf.publishing.papers import PAPERS, bibtex_of
from simcse_hf.training.record import describe_run, kind_of_rows

WORDS = VOCABULARY[5:25]
TEMPLATES = ["the {text} [MASK] .", "a {text} [MASK] ."]
TEXTS = ["the cat sat", "a dog ran", "the bird sang", "an old house", "the man slept"]
DROPOUT = "two dropout views of each sentence"
PAIRS = {"sent0": TEXTS, "sent1": TEXTS[::-1]}
TRIPLETS = PAIRS | {"sent2": TEXTS[1:] + TEXTS[:1]}
NLI = {"texts": [[text, *TEXTS[:2]] for text in TEXTS], "relations": [[0, 2]] * len(TEXTS)}


def rows_for(objective, tokenizer):
    kind = OBJECTIVES[objective].rows
    if kind == "spans":
        return SpanDataset([[" ".join(WORDS)] * 4 for _ in range(8)], tokenizer, 12)
    return Dataset.from_dict(NLI if kind == "nli" else {"sent0": TEXTS})


@pytest.fixture
def card_of(tmp_path, tokenizer):
    """`card_of(settings, rows, **arguments)`: the card of a run that is about to begin; tells its tags too."""

    def write(settings=None, rows=None, name_or_path=None, **arguments):
        settings = settings or {}
        if name_or_path is None:
            model = AutoModelForCL.from_config(tiny_config(), **settings)
        else:
            model = AutoModelForCL.from_pretrained(name_or_path, head="fresh", do_mlm=False, **settings)
        rows = rows_for(settings.get("objective", "simcse"), tokenizer) if rows is None else rows
        args = SimCSETrainingArguments(
            output_dir=str(tmp_path / "run"), max_seq_length=16, use_cpu=True, disable_tqdm=True, report_to="none",
            **arguments,
        )  # fmt: skip
        trainer = SimCSETrainer(model, args, rows, processing_class=tokenizer)
        trainer.save_model()
        write.run = describe_run(trainer)
        path = write_card(tmp_path / "run", run=write.run)
        write.tags = ModelCard.load(path).data.tags
        return path.read_text()

    return write


def table(card):
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", card, re.M))


def cited(card):
    keys = {paper.key: name for name, paper in PAPERS.items()}
    return {keys[key] for key in re.findall(r"^@\w+\{([\w-]+),$", card, re.M)}


SCORED = "`temperature` 0.05 and `similarity` cosine"
#: Of each objective: settings, its summary, a part of its section on training, and its papers.
OBJECTIVE_CARDS = {
    "simcse": ({}, f"contrastive learning ([SimCSE]({PAPERS['simcse'].url})) without labels, from {DROPOUT}.",
               f"`simcse`, InfoNCE with the batch as negatives (with {SCORED}).", {"simcse"}),
    "softmax": ({"pooler_type": "avg"}, "([SBERT](https://arxiv.org/abs/1908.10084)) on premises with labelled",
                "`softmax`, a classifier of entailment, neutral and contradiction.", {"sbert", "liao"}),
    "supcon": ({"similarity": "dot", "temperature": 1.0}, "supervised contrastive learning ([Liao 2021]",
               "(with `temperature` 1 and `similarity` dot).", {"liao"}),
    "softmax+supcon": ({"objective_options": {"supcon_weight": 0.5}}, "on premises with labelled hypotheses.",
                       f"{SCORED.replace(' and', ',')} and `supcon_weight` 0.5).", {"liao", "sbert"}),
    "barlow_twins": ({"objective_options": {"projector_dim": 16}}, f"([Barlow Twins]({PAPERS['barlow_twins'].url}))",
                     "(with `projector_dim` 16).", {"barlow_twins", "non_contrastive", "simcse"}),
    "vicreg": ({"objective_options": {"projector_dim": 16, "invariance_weight": 25.0}}, f"from {DROPOUT}.",
               "invariance, variance and covariance of two views (with `projector_dim` 16).",
               {"vicreg", "non_contrastive", "simcse"}),
    "contrastive_tension": ({}, "without labels, from each sentence in two encoders.",
                            "same sentence. A sentence's positive is itself in the second encoder. An independent",
                            {"contrastive_tension"}),
    "is_bert": ({"pooler_type": "avg"}, "without labels, from single sentences.",
                "`is_bert`, mutual information between a sentence's vector", {"is_bert"}),
    "declutr": ({"pooler_type": "avg", "do_mlm": True, "mlm_weight": 1.0}, "without labels, on spans of documents.",
                "(with `temperature` 0.05). A masked-LM loss was added, times 1.", {"declutr"}),
    "esimcse": ({"objective_options": {"queue_size": 8}}, "from a view of each sentence (`repeat_words`).",
                "some of its tokens repeated (view `repeat_words`, rate 0.32).", {"esimcse", "simcse"}),
    "promptbert": ({"pooler_type": "mask", "templates": TEMPLATES}, "labels, from each sentence in 2 templates.",
                   "A sentence's positive is itself in another template.", {"promptbert", "simcse"}),
    "diffcse": ({}, f"([DiffCSE]({PAPERS['diffcse'].url})) without labels, from {DROPOUT}.",
                "`generator` start)", {"diffcse", "simcse"}),
}  # fmt: skip


def test_every_objective_and_view_has_its_words():
    assert METHODS.keys() == OBJECTIVE_CARDS.keys() and METHODS.keys() <= OBJECTIVES.keys()
    assert VIEW_WORDS.keys() == set(VIEWS)
    named = {name for method in METHODS.values() for name in method.papers} | {
        paper for _, paper in VIEW_WORDS.values()
    }
    assert named <= PAPERS.keys()


@pytest.mark.parametrize("objective", OBJECTIVE_CARDS)
def test_the_objective_of_a_run_is_told(objective, card_of, save_checkpoint, tmp_path):
    settings, summary, training, papers = OBJECTIVE_CARDS[objective]
    start = None
    if objective == "diffcse":
        start = save_checkpoint(AutoModelForCL.from_config(tiny_config(), do_mlm=True), "start")
        settings = {"objective_options": {"generator": str(start)}}
    card = card_of({"objective": objective, **settings}, name_or_path=start)
    assert summary in card and training in card
    assert cited(card) == papers and str(tmp_path) not in card
    assert objective in card_of.tags and ("simcse" in card_of.tags) is (objective == "simcse")
    known = OBJECTIVES[objective].__init__.__code__.co_varnames
    for name in ("temperature", "similarity"):
        assert (f"`{name}`" in card) is (name in known), "only where the objective reads it"
    if OBJECTIVES[objective].rows != "texts" or objective == "promptbert":
        assert "pairs" not in card and "an anchor and a positive" not in card and DROPOUT not in card
    assert not {"mask_token_id", "template_edges", "objective_options"} & table(card).keys()


def test_what_an_objective_does_not_read_is_not_told(card_of):
    settings = {"objective": "vicreg", "temperature": 0.5, "similarity": "dot", "hard_negative_weight": 1.0}
    options = {"projector_dim": 16, "variance_weight": 3.0}
    card = card_of(settings | {"objective_options": options, "mlm_weight": 0.7}, mlm_probability=0.3)
    told = table(card)
    assert told["projector_dim"] == "16" and told["variance_weight"] == "3.0" and told["objective"] == "vicreg"
    unread = {"temperature", "similarity", "hard_negative_weight", "mlm_weight", "mlm_probability"}
    assert not unread & told.keys()
    told = table(card_of({"temperature": 0.5, "do_mlm": True, "mlm_weight": 0.7}, mlm_probability=0.3))
    assert (told["temperature"], told["mlm_weight"], told["mlm_probability"]) == ("0.5", "0.7", "0.3")


def test_an_option_goes_before_the_setting_of_its_name(card_of):
    card = card_of({"temperature": 0.5, "objective_options": {"temperature": 0.25, "symmetric": True}})
    assert "(with `temperature` 0.25, `similarity` cosine and `symmetric` True)" in card
    assert table(card)["temperature"] == "0.25"


def test_an_objective_of_the_callers_own_is_named(card_of):
    class Closeness(Objective):
        def __init__(self, dim, weight=1.0):
            super().__init__(dim)

        def forward(self, batch):
            return batch.vectors.square().mean()

    register("closeness", Closeness)
    try:
        card = card_of({"objective": "closeness", "objective_options": {"weight": 2.0}})
    finally:
        del OBJECTIVES["closeness"]
    assert "trained by the objective `closeness` without labels" in card
    assert "`closeness`, which is none of this package's own (with `weight` 2)." in card


# --- rows and views -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "told", "summary"),
    [
        ({"sent0": TEXTS}, "5 rows of single sentences.", f" without labels, from {DROPOUT}."),
        (PAIRS, "5 rows of an anchor and a positive.", " on pairs of sentences."),
        (
            TRIPLETS,
            "5 rows of an anchor, a positive and hard negatives.",
            " on pairs of sentences with hard negatives.",
        ),
    ],
)
def test_rows_of_texts(rows, told, summary, card_of):
    card = card_of(rows=Dataset.from_dict(rows))
    assert told in card and summary in card
    assert ("view" in table(card)) is (len(rows) == 1)


@pytest.mark.parametrize("rows", [PAIRS, TRIPLETS])
def test_pairs_in_templates_are_pairs(rows, card_of):
    settings = {"objective": "promptbert", "pooler_type": "mask", "templates": TEMPLATES}
    card = card_of(settings, Dataset.from_dict(rows))
    assert "on pairs of sentences" in card and "from each sentence" not in card and "positive is itself" not in card


@pytest.mark.parametrize("length", [7, 8, 16])
def test_a_long_sentence_that_its_templates_cut_is_one(length, tokenizer, tmp_path):
    templates = ["the {text} [MASK] .", "a big old {text} [MASK] ."]
    model = AutoModelForCL.from_config(tiny_config(), objective="promptbert", pooler_type="mask", templates=templates)
    args = SimCSETrainingArguments(output_dir=str(tmp_path), max_seq_length=length + 1, use_cpu=True)
    rows = Dataset.from_dict({"sent0": [" ".join(WORDS)] * 3})
    assert kind_of_rows(SimCSETrainer(model, args, rows, processing_class=tokenizer)) == "sentences"


@pytest.mark.parametrize(
    ("arguments", "told", "paper"),
    [
        ({"view": "crop"}, "is a contiguous part of it (view `crop`, rate 0.1).", "simcse"),
        ({"view": "delete_words", "view_rate": 0.3}, "(view `delete_words`, rate 0.3).", "simcse"),
        ({"view": "delete_one_word"}, "without one of its words (view `delete_one_word`).", "simcse"),
        ({"view": "fixed_mask"}, "under the same dropout mask (view `fixed_mask`).", "simcse"),
        (
            {"view": "shuffle", "view_rate": 0.25, "view_both": True},
            "tokens permuted (view `shuffle`, rate 0.25), and so is its anchor.",
            "non_contrastive",
        ),
    ],
)
def test_the_view_of_a_run_is_told_with_its_rate(arguments, told, paper, card_of):
    settings = {"objective": "vicreg", "objective_options": {"projector_dim": 16}}
    card = card_of(settings, **arguments)
    assert told in card and "5 rows of single sentences." in card and "dropout views" not in card
    both = "two views" if arguments.get("view_both") else "a view"
    assert f"from {both} of each sentence (`{arguments['view']}`)." in card
    assert cited(card) == {"vicreg", "non_contrastive", paper}


def test_a_view_by_a_masked_language_model_names_no_place_of_this_machine(card_of, save_checkpoint, tmp_path):
    start = save_checkpoint(AutoModelForCL.from_config(tiny_config(), do_mlm=True), "editor")
    card = card_of(view="mlm", view_model=str(start))
    assert "put in place of others (view `mlm`, rate 0.15)." in card
    assert table(card)["view_model"] == "editor" and str(tmp_path) not in card


def test_sentences_of_documents_are_no_pairs(card_of):
    card = card_of(rows=Dataset.from_dict(PAIRS), view="next_sentence")
    assert "5 rows of a sentence and a later one of its document." in card
    assert "without labels, on neighbouring sentences." in card and "pairs" not in card


# --- around any objective -----------------------------------------------------------------------------------------


def test_matryoshka_is_told_with_what_it_is_for(card_of, tmp_path):
    card = card_of({"matryoshka_dims": [8, 16, 32]})
    assert "The leading 32, 16 and 8 dimensions carried the objective too ([Matryoshka](" in card
    assert "| shorter vectors | the leading 16, 8 dimensions (`truncate_dim`) |" in card
    assert cited(card) == {"simcse", "matryoshka"}
    code = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0].replace("your-name/run", str(tmp_path / "run"))
    names = {}
    exec(code, names)
    assert names["vectors"].shape == (2, 32) and names["shorter"].shape == (2, 16)
    assert "truncate_dim" not in card_of()


def test_two_encoders_are_told(card_of):
    settings = {"encoders": 2, "objective": "vicreg", "objective_options": {"projector_dim": 16}}
    card = card_of(settings, Dataset.from_dict(PAIRS))
    assert "An independent second encoder, which is not part of this model, encoded all but the first text" in card
    assert cited(card) == {"vicreg", "non_contrastive", "simcse"}
    assert "second encoder" not in card_of()


def test_gradcache_is_told(card_of):
    card = card_of(gradcache_chunk_size=3)
    assert "The encoder took a batch in chunks of 3 rows ([GradCache](https://arxiv.org/abs/2101.06983))" in card
    assert cited(card) == {"simcse", "gradcache"} and table(card)["gradcache_chunk_size"] == "3"


# --- without a record ---------------------------------------------------------------------------------------------


def test_without_a_run_no_training_is_claimed(save_checkpoint):
    card = write_card(save_checkpoint(AutoModelForCL.from_config(tiny_config()))).read_text()
    assert "Sentence vectors of 32 dimensions from a `bert` encoder.\n" in card and "trained by" not in card
    assert "is not recorded beside it.\n" in card and cited(card) == {"simcse"}


def test_without_a_run_config_json_names_the_objective(save_checkpoint):
    model = AutoModelForCL.from_config(tiny_config(), objective="is_bert", matryoshka_dims=[8])
    card = write_card(save_checkpoint(model)).read_text()
    assert "from a `bert` encoder, set up for the objective `is_bert`." in card
    assert "not recorded beside it. By its config.json: The objective is `is_bert`" in card
    assert "The leading 8 dimensions" in card and cited(card) == {"is_bert", "matryoshka"}


def test_bibtex_names_each_paper_once():
    entries = bibtex_of(["simcse", "liao", "simcse"])
    assert entries.count("@") == 2 and entries.count("journal = {arXiv preprint arXiv:2106.04791}") == 1
    for paper in PAPERS.values():
        entry = paper.bibtex()
        assert entry.count("{") == entry.count("}") and f"year = {{{paper.year}}}" in entry
        assert str(paper.year) in paper.key
    assert len({paper.key for paper in PAPERS.values()}) == len(PAPERS)
