"""Write the cards of the paper's eight models from `paper.json` and the recipes of the package.

    python model_cards/generate.py

The figures are the paper's. They appear in the text with the number of their table. They are not in the front matter,
where the hub would take them for results of the model in the repository.
"""

import json
from pathlib import Path

import yaml
from huggingface_hub import ModelCardData
from transformers import AutoConfig

from simcse_hf.models.settings import resolve_settings
from simcse_hf.publishing.card import FRONT_MATTER, Card
from simcse_hf.publishing.card_results import ScoreTable
from simcse_hf.publishing.card_subject import Subject

HERE = Path(__file__).parent
RECIPES = HERE.parent / "simcse_hf" / "training" / "recipes"
MARKER = "<!-- Written by model_cards/generate.py. -->"
NOT_THE_PAPERS = "**Figures from the paper**, not measured with this package"
PROTOCOLS = {
    "sts": "Spearman's correlation x 100 between gold scores and cosine similarities on the test sets (`all`).",
    "transfer": "Accuracy x 100 of a logistic regression on frozen embeddings with SentEval's default configuration.",
}
TITLES = {"sts": "Semantic textual similarity", "transfer": "Transfer"}
PATHS = ("dataset_name", "dev_file", "output_dir")


def paper_tables(name: str, paper: dict) -> list[ScoreTable]:
    """Build the tables of the paper's figures for a model, where the paper has a row for it."""
    tables = []
    for kind, protocol in PROTOCOLS.items():
        figures = paper[kind]["figures"].get(name)
        if figures:
            row = [f"{figure:.2f}" for figure in figures]
            source = f"{NOT_THE_PAPERS} ({paper[kind]['table']}). {protocol}"
            tables.append(ScoreTable(TITLES[kind], source, paper[kind]["tasks"], [row]))
    return tables


def card_of(name: str, recipe: dict, paper: dict) -> str:
    """Write the card of the model that a recipe trains."""
    encoder = recipe["model_name_or_path"]
    config = AutoConfig.for_model(**paper["encoders"][encoder])
    settings = resolve_settings(
        pooler_type=recipe["pooler_type"],
        mlp_only_train=recipe["mlp_only_train"],
        temperature=recipe["temp"],
        max_seq_length=recipe["max_seq_length"],
    )
    tables = paper_tables(name, paper)
    dataset = recipe["dataset_name"].partition(":")[0]
    data = ModelCardData(language="en", base_model=encoder, datasets=[dataset], **FRONT_MATTER)
    command = f"accelerate launch -m simcse_hf train {name.partition('-')[0]}"
    if name.startswith("sup-"):
        run = {"rows": "hard negatives"}
        texts = (
            "274,951 rows (275,601 in the paper) of a premise, an entailed hypothesis and a contradictory one, from "
            "SNLI and MultiNLI"
        )
    else:
        run = {"rows": "sentences", "view": {"name": "identity", "rate": None, "both": False}}
        texts = "A million sentences of the English Wikipedia"
    hyperparameters = sorted((k, v) for k, v in recipe.items() if k not in PATHS and not k.startswith("save_"))
    card = Card(
        Subject(recipe["output_dir"], config, settings, run, datasets=[dataset]),
        data,
        marker=MARKER,
        name=name,
        tables=tables,
        training=(
            f"{texts} (`{dataset}`), with the recipe "
            f"[`{name}.yaml`](../simcse_hf/training/recipes/{name}.yaml):\n\n"
            f"```bash\n{command} {name}\n```\n\n"
            "Batch size and learning rate are those of Table A.1. The batch size is the total over all processes."
            + ("" if tables else " The paper's tables have no row for this model.")
        ),
        all_hyperparameters=True,
        hyperparameters=hyperparameters,
    )
    return str(card)


def index_of(recipes: dict[str, dict], paper: dict) -> str:
    """Write the list of the cards with the settings that differ and the paper's averages."""
    rows = []
    for name, recipe in recipes.items():
        figures = {kind: paper[kind]["figures"].get(name) for kind in PROTOCOLS}
        cells = [f"{figures[kind][-1]:.2f}" if figures[kind] else "" for kind in PROTOCOLS]
        stsb = f"{figures['sts'][5]:.2f}" if figures["sts"] else ""
        rate = f"{recipe['learning_rate']:.0e}".replace("e-0", "e-")
        rows.append(
            f"| [`{name}`]({name}.md) | {recipe['per_device_train_batch_size']} | {rate} | "
            f"{recipe['num_train_epochs']} | {stsb} | {cells[0]} | {cells[1]} |"
        )
    return "\n".join(
        [
            "# The paper's eight models",
            "",
            "Cards of the models that the [recipes](../simcse_hf/training/recipes) of the package train, written by",
            "`python model_cards/generate.py` from them and from `paper.json`. The figures are **the paper's**, not",
            "measured with this package: Spearman's correlation x 100 (Table 5) and accuracy x 100 (Table E.1) of",
            f"{paper['source']}.",
            "`simcse-hf card` writes the card of a model that you train yourself, from the files of its own results.",
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
    """Return the content of each file by its name."""
    paper = json.loads((HERE / "paper.json").read_text(encoding="utf-8"))
    recipes = {}
    for path in sorted(RECIPES.glob("*sup-simcse-*.yaml")):
        recipes[path.stem] = yaml.safe_load(path.read_text(encoding="utf-8"))
    files = {"README.md": index_of(recipes, paper)}
    for name, recipe in recipes.items():
        files[f"{name}.md"] = card_of(name, recipe, paper)
    return files


if __name__ == "__main__":
    for file, content in generate().items():
        (HERE / file).write_text(content, encoding="utf-8")
        print(HERE / file)
