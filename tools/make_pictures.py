"""Make the pictures of docs/concepts.md and README.md with the sample of the package, in about two minutes.

    python tools/make_pictures.py

Each picture shows what the package computes: nothing in them is drawn by hand.
"""

import csv
import gzip
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib
import numpy as np
import torch

from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments, load_text_dataset
from simcse_hf.apps.analysis import COLOURS, LINES, STYLE, legend_below, new_figure, series_style
from simcse_hf.data.sample import sample_files

DOCS = Path(__file__).parents[1] / "docs"
STEPS = 100
SENTENCES = (
    "The old sailor lost the violin at the beach.",
    "The chef sold the cake at the diner.",
    "The brave farmer found the pony at the stable.",
    "The doctor hid the pill at the hospital.",
    "The singer fixed the piano at the theatre.",
    "The teacher praised the book at the library.",
)


def train(
    folder: Path, temperature: float = 0.05, seed: int = 42, labels: bool = False
) -> tuple[SimCSE, dict[int, float]]:
    """Train the sample encoder, without labels or on triplets; return the model and its dev score by step."""
    corpus, encoder = sample_files()
    output = folder / f"temperature-{temperature}-seed-{seed}-labels-{labels}"
    rate = 3e-3 if labels else 1e-3
    args = SimCSETrainingArguments(
        str(output), max_steps=STEPS, per_device_train_batch_size=128, learning_rate=rate, eval_strategy="steps",
        eval_steps=10, save_strategy="no", seed=seed, use_cpu=True, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = AutoModelForCL.from_pretrained(encoder, pooler_type="avg", temperature=temperature)
    texts = load_text_dataset(corpus.train_triplets if labels else corpus.train_sentences)
    trainer = SimCSETrainer(model, args, train_dataset=texts, dev_set=corpus.dev)
    name = "eval_stsb_spearman"
    scores = {0: trainer.evaluate()[name]}
    trainer.train()
    trainer.save_model()
    scores |= {entry["step"]: entry[name] for entry in trainer.state.log_history if name in entry}
    return SimCSE(output, device="cpu"), scores


def two_passes(model: SimCSE, sentences: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode sentences twice with dropout, as in training."""
    torch.manual_seed(0)
    model.model.train()
    inputs = model.tokenizer(list(sentences), padding=True, return_tensors="pt")
    with torch.no_grad():
        passes = [model.model.embed(inputs["input_ids"], inputs["attention_mask"]) for _ in range(2)]
    model.model.eval()
    first, second = (torch.nn.functional.normalize(each.float(), dim=-1) for each in passes)
    return first, second


def two_decimals(value: float) -> str:
    """Write a number as matplotlib writes those of an axis."""
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def draw_matrix(start: SimCSE, trained: SimCSE) -> Any:
    """Draw the cosines that InfoNCE scores: rows are anchors, columns are the second passes of all sentences."""
    figure = new_figure(9.6, 4)
    panels = figure.subplots(1, 2)
    for axes, (name, model) in zip(panels, {"before training": start, "after training": trained}.items(), strict=True):
        first, second = two_passes(model, SENTENCES)
        cosines = (first @ second.T).numpy()
        image = axes.imshow(cosines, vmin=0, vmax=1, cmap="Blues")
        for (row, column), value in np.ndenumerate(cosines):
            weight = "bold" if row == column else "normal"
            colour = "white" if value > 0.6 else "black"
            axes.text(column, row, two_decimals(value), ha="center", va="center", color=colour, weight=weight)
        axes.set_xticks(range(len(SENTENCES)), [f"{n + 1}'" for n in range(len(SENTENCES))])
        axes.set_yticks(range(len(SENTENCES)), [f"{n + 1}" for n in range(len(SENTENCES))])
        axes.set(title=name, xlabel="second pass of each sentence", ylabel="first pass (anchor)")
        axes.grid(visible=False)
    figure.colorbar(image, ax=panels, label="cosine")
    return figure


def draw_dropout(start: SimCSE, trained: SimCSE, sentences: list[str]) -> Any:
    """Draw the cosines of two passes of one sentence beside those of different sentences."""
    figure = new_figure(9.6, 3)
    panels = figure.subplots(1, 2, sharex=True)
    for axes, (name, model) in zip(panels, {"before training": start, "after training": trained}.items(), strict=True):
        first, second = two_passes(model, sentences)
        cosines = (first @ second.T).numpy()
        others = cosines[~np.eye(len(cosines), dtype=bool)]
        bins = np.linspace(-1, 1, 81)
        axes.hist(others, bins, density=True, label="different sentences", alpha=0.6, color=COLOURS[7])
        axes.hist(cosines.diagonal(), bins, density=True, label="one sentence, two masks", alpha=0.6, color=COLOURS[0])
        axes.set(title=name, xlabel="cosine", xlim=(-0.75, 1.02), ylabel="density")
    panels[0].legend(loc="upper left")
    return figure


def draw_sphere(models: dict[str, SimCSE], pairs: list[tuple[str, str]]) -> Any:
    """Draw paraphrases as joined points on the unit circle, along the two main directions of the embeddings."""
    figure = new_figure(9.6, 4)
    panels = figure.subplots(1, 3)
    colours = matplotlib.colormaps["tab20"].colors  # one for each pair
    for axes, (name, model) in zip(panels, models.items(), strict=True):
        vectors = model.encode([text for pair in pairs for text in pair]).double().numpy()
        flat = vectors @ np.linalg.svd(vectors, full_matrices=False)[2][:2].T
        flat /= np.linalg.norm(flat, axis=1, keepdims=True)
        halves = vectors.reshape(-1, 2, vectors.shape[1])
        alignment = ((halves[:, 0] - halves[:, 1]) ** 2).sum(1).mean()
        squared = torch.pdist(torch.from_numpy(vectors)) ** 2
        uniformity = torch.exp(-2 * squared).mean().log().item()
        axes.add_artist(matplotlib.patches.Circle((0, 0), 1, fill=False, color="#cccccc"))
        for number, (a, b) in enumerate(flat.reshape(-1, 2, 2)):
            look = {"color": colours[number], "marker": "o", "markersize": 5, "linewidth": 1.5}
            axes.plot([a[0], b[0]], [a[1], b[1]], **look)
        numbers = f"alignment {two_decimals(alignment)}, uniformity {two_decimals(uniformity)}"
        axes.set(title=f"{name}\n{numbers}", aspect="equal")
        axes.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), xticks=[], yticks=[])
    return figure


def draw_temperature(models: dict[float, SimCSE], sentences: list[str]) -> Any:
    """Draw how much of the gradient a negative gets at each temperature, and the cosines after training with it."""
    figure = new_figure(9.6, 3.6)
    left, right = figure.subplots(1, 2)
    cosines = np.linspace(0, 0.8, 200)
    for number, (temperature, model) in enumerate(models.items()):
        look = {"color": COLOURS[number], "linestyle": LINES[number], "label": f"temperature {temperature:g}"}
        share = np.exp((cosines - cosines.max()) / temperature)
        left.plot(cosines, share, **look)
        vectors = model.encode(sentences)
        values = (vectors @ vectors.T)[~torch.eye(len(sentences), dtype=torch.bool)]
        right.hist(values.numpy(), np.linspace(-1, 1, 81), density=True, histtype="step", linewidth=1.5, **look)
    left.set(title="push of a negative", xlabel="its cosine to the anchor", ylabel="relative to a cosine of 0.8")
    right.set(title="different sentences after training", xlabel="cosine", ylabel="density", xlim=(-0.85, 1.02))
    left.legend(loc="upper left")
    return figure


def draw_training(runs: dict[int, dict[int, float]]) -> Any:
    """Draw the dev score of each seed by step."""
    figure = new_figure(6.4, 3.2)
    axes = figure.subplots()
    for number, (seed, scores) in enumerate(runs.items()):
        axes.plot(list(scores), list(scores.values()), label=f"seed {seed}", **series_style(number))
    axes.set(xlabel="optimizer step", ylabel="dev set, Spearman × 100")
    legend_below(figure, axes)
    return figure


def main() -> None:
    """Train the models and write the pictures."""
    corpus, encoder = sample_files()
    with gzip.open(corpus.train_sentences, "rt", encoding="utf-8") as file:
        sentences = file.read().splitlines()[:400]
    with gzip.open(corpus.dev, "rt", encoding="utf-8") as file:
        scored = [row for row in csv.DictReader(file, delimiter="\t") if float(row["score"]) >= 4.5]
    pairs = [(row["sentence1"], row["sentence2"]) for row in scored[:12]]
    with TemporaryDirectory() as folder:
        start = SimCSE(encoder, pooler_type="avg", device="cpu")
        trained, scores = train(Path(folder))
        labelled, _ = train(Path(folder), labels=True)
        runs = {42: scores} | {seed: train(Path(folder), seed=seed)[1] for seed in (43, 44)}
        models = {0.02: train(Path(folder), 0.02)[0], 0.05: trained, 0.2: train(Path(folder), 0.2)[0]}
        circle = {"before training": start, "trained without labels": trained, "trained on triplets": labelled}
        with matplotlib.rc_context(STYLE):
            for name, figure in {
                "concepts_matrix": draw_matrix(start, trained),
                "concepts_dropout": draw_dropout(start, trained, sentences),
                "concepts_sphere": draw_sphere(circle, pairs),
                "concepts_temperature": draw_temperature(models, sentences),
                "training": draw_training(runs),
            }.items():
                figure.savefig(DOCS / f"{name}.png", dpi=110, facecolor="white", bbox_inches="tight")


if __name__ == "__main__":
    main()
