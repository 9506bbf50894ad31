"""Train on sentences, whose positives a function of yours makes.

python examples/own_view.py
"""

import random

from simcse_hf import TextView, sample_files, train

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with a learning rate of 3e-5
SENTENCES = sample.train_sentences  # or "sentences.txt", with one on each line
DEV = sample.dev  # or "dev.tsv", with the columns sentence1, sentence2 and score
GROUPS = ["happy cheerful glad", "brave fearless bold", "tired weary exhausted", "kind gentle friendly"]
GROUPS += ["bought purchased acquired", "fixed repaired mended", "found discovered located", "lost misplaced"]
SYNONYMS = {word: group.split() for group in GROUPS for word in group.split()}


class OwnSynonyms(TextView):
    """Replace words by those of a list of your own."""

    name = "own_synonyms"  # which `view` takes
    words = "the sentence with synonyms of a list"  # for the card of the model

    def __call__(self, text: str, rng: random.Random) -> str:
        # Draw from `rng` alone, so that an interrupted run resumes exactly.
        return " ".join(rng.choice(SYNONYMS.get(word, [word])) for word in text.split())


print(OwnSynonyms()("The tired cook bought the bread.", random.Random(0)))

results = train(
    "unsup",
    view="own_synonyms",
    model_name_or_path=MODEL,
    pooler_type="avg",
    train_file=SENTENCES,
    max_train_samples=2000,
    dev_file=DEV,
    learning_rate=3e-3,
    max_steps=40,
    eval_steps=40,
    output_dir="outputs/own_view",
    overwrite_output_dir=True,
)
print(results.change)

# Prints:
# The weary cook purchased the bread.
# ...
# +8.37 [+2.95, +14.27]: significant at 95%
