"""Train on sentences without labels, and ask whether it helped.

python examples/sentences.py
"""

# %% The sentences, and scored pairs to measure with
from simcse_hf import SimCSE, compare, evaluate, sample_files, train

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with a learning rate of 3e-5
SENTENCES = sample.train_sentences  # or "sentences.txt", with one on each line
DEV = sample.dev  # or "dev.tsv", with the columns sentence1, sentence2 and score
TEST = sample.test  # other pairs, by which nothing is chosen
OUTPUT = "outputs/sentences"

# %% Train
results = train(
    "unsup",
    model_name_or_path=MODEL,
    pooler_type="avg",
    train_file=SENTENCES,
    max_train_samples=5000,
    dev_file=DEV,
    learning_rate=1e-3,
    max_steps=40,
    eval_steps=20,
    output_dir=OUTPUT,
    overwrite_output_dir=True,
)

# %% Did it help?
evaluate(MODEL, pooler_type="avg", pairs=[TEST], output="outputs/before.json", overwrite=True)
evaluate(OUTPUT, pairs=[TEST], output="outputs/after.json", overwrite=True)
print(compare(["outputs/before.json", "outputs/after.json"]))

# %% Use the model
model = SimCSE(OUTPUT)
texts = ["The chef vended the gateau.", "The sailor lost the boat."]
print(model.similarity("The cook sold the cake.", texts))
