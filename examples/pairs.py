"""Train on texts that belong together, such as questions and answers.

python examples/pairs.py
"""

from simcse_hf import SimCSE, sample_files, train

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with a learning rate of 5e-5
PAIRS = sample.train_triplets  # or "questions.csv"
COLUMNS = ["sent0", "sent1"]  # or ["question", "answer"]
DEV = sample.dev  # or "dev.tsv", with the columns sentence1, sentence2 and score

results = train(
    "sup",
    model_name_or_path=MODEL,
    pooler_type="avg",
    train_file=PAIRS,
    columns=COLUMNS,
    max_train_samples=2000,
    dev_file=DEV,
    learning_rate=1e-3,
    per_device_train_batch_size=64,  # the other 63 answers of a batch are negatives of a question
    max_steps=20,
    eval_steps=20,
    output_dir="outputs/pairs",
    overwrite_output_dir=True,
)
print(results.change)

model = SimCSE("outputs/pairs")
texts = ["The chef vended the gateau.", "The sailor lost the boat."]
print(model.similarity("The cook sold the cake.", texts))

# Prints:
# ...
# +15.86 [+11.21, +20.86]: significant at 95%
# tensor([0.9724, 0.9293])
