"""Writes the cards of the paper's eight models from `paper.json` and `examples/recipes`.

    python model_cards/generate.py

The figures are the paper's. They stand in the text, with their table, and not in the front matter, where the hub would
take them for measured results of the model at hand.
"""

import json
from pathlib import Path

import yaml
from huggingface_hub import ModelCardData
from transformers import AutoConfig

from simcse_hf.publishing.card import FRONT_MATTER, describe_model, render_card
from simcse_hf.publishing.card_results import Table
from simcse_hf.models.configuration import ContrastiveSettings

HERE = Path(__file__).parent
RECIPES = HERE.parent / "examples" / "recipes"
MARKER = "<!-- Written by model_cards/generate.py. -->"
NOT_THE_PAPERS = "**The paper's figures**, not measured with this package"
PROTOCOLS = {
    "sts": "Spearman's correlation x 100 of gold score and cosine similarity on the test sets, aggregation `all`.",
    "transfer": "Accuracy x 100 of a logistic regression on frozen vectors, by SentEval's default configuration.",
}
TITLES = {"sts": "Semantic textual similarity", "transfer": "Transfer"}
UNSUPERVISED_VIEW = {"name": "identity", "rate": None, "both": False}
PATHS = ("train_file", "dev_file", "output_dir")


def paper_tables(name: str, paper: dict) -> list[Table]:
    """The tables of the paper's figures for a model; none for those that the paper has no row for."""
    return [
        Table(
            title=TITLES[kind],
            protocol=f"{NOT_THE_PAPERS} ({paper[kind]['table']}). {PROTOCOLS[kind]}",
            header=paper[kind]["tasks"],
            rows=[[f"{figure:.2f}" for figure in paper[kind]["figures"][name]]],
        )
        for kind in PROTOCOLS
        if name in paper[kind]["figures"]
    ]


def card_of(name: str, recipe: dict, paper: dict) -> str:
    """The card of the model that a recipe makes."""
    encoder, supervised = recipe["model_name_or_path"], name.startswith("sup-")
    config = AutoConfig.for_model(**paper["encoders"][encoder])
    settings = ContrastiveSettings(
        pooler_type=recipe["pooler_type"],
        mlp_only_train=recipe["mlp_only_train"],
        temperature=recipe["temp"],
        max_seq_length=recipe["max_seq_length"],
    )
    tables = paper_tables(name, paper)
    script = "run_sup.py" if supervised else "run_unsup.py"
    data = ModelCardData(
        language="en", base_model=encoder, datasets=["princeton-nlp/datasets-for-simcse"], **FRONT_MATTER
    )
    texts = (
        "275,601 rows of a premise, an entailed hypothesis and a contradictory one, from SNLI and MultiNLI "
        if supervised
        else "A million sentences of the English Wikipedia "
    )
    rows = {"rows": "hard negatives"} if supervised else {"rows": "sentences", "view": UNSUPERVISED_VIEW}
    return render_card(
        data,
        marker=MARKER,
        name=name,
        repo_id=recipe["output_dir"],
        tables=tables,
        training=(
            f"{texts}(`{Path(recipe['train_file']).name}`), by the recipe "
            f"[`{name}.yaml`](../examples/recipes/{name}.yaml):\n\n"
            f"```bash\naccelerate launch examples/{script} examples/recipes/{name}.yaml\n```\n\n"
            "Batch size and learning rate are those of Table A.1, the batch that of all processes."
            + ("" if tables else " The paper's tables have no row for this model.")
        ),
        all_hyperparameters=True,
        hyperparameters=sorted((k, v) for k, v in recipe.items() if k not in PATHS and not k.startswith("save_")),
        hardware="",
        sentence_transformers=True,
        **describe_model(config, settings, True, rows, recipe["output_dir"]),
    )


def index_of(recipes: dict[str, dict], paper: dict) -> str:
    """The list of the cards, with the settings that differ and the paper's averages."""
    rows = []
    for name, recipe in recipes.items():
        figures = {kind: paper[kind]["figures"].get(name) for kind in PROTOCOLS}
        cells = [f"{figures[kind][-1]:.2f}" if figures[kind] else "" for kind in PROTOCOLS]
        stsb = f"{figures['sts'][5]:.2f}" if figures["sts"] else ""
        batch, rate = recipe["per_device_train_batch_size"], recipe["learning_rate"]
        rows.append(
            f"| [`{name}`]({name}.md) | {batch} | {rate:.0e} | {recipe['num_train_epochs']} | "
            f"{stsb} | {cells[0]} | {cells[1]} |".replace("e-0", "e-")
        )
    return "\n".join(
        [
            "# The paper's eight models",
            "",
            "Cards of the models that the recipes in [`examples/recipes`](../examples/recipes) make, written by",
            "`python model_cards/generate.py` from them and from `paper.json`. The figures are **the paper's**, not",
            "measured with this package: Spearman's correlation x 100 (Table 5) and accuracy x 100 (Table E.1) of",
            f"{paper['source']}.",
            "The card of a model trained here is written by `simcse-hf card`, from the files of its own results.",
            "",
            "| recipe | batch | learning rate | epochs | STS-B test | average of 7 STS tasks | of 7 transfer tasks |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            "The paper's tables have no row for the two BERT-large models.",
            "",
        ]
    )


def generate() -> dict[str, str]:
    """File names and their contents."""
    paper = json.loads((HERE / "paper.json").read_text(encoding="utf-8"))
    recipes = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(RECIPES.glob("*.yaml"))}
    recipes = {name: recipe for name, recipe in recipes.items() if name.startswith(("sup-", "unsup-"))}
    return {"README.md": index_of(recipes, paper)} | {
        f"{name}.md": card_of(name, recipe, paper) for name, recipe in recipes.items()
    }


if __name__ == "__main__":
    for file, content in generate().items():
        (HERE / file).write_text(content, encoding="utf-8")
        print(HERE / file)
