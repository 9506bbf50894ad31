"""Train a small model without labels to find alike what a better model finds alike.

python examples/teacher.py
"""

from simcse_hf import sample_files, train

sample, encoder = sample_files()
MODEL = encoder  # the student; or "nreimers/MiniLM-L6-H384-uncased", with a learning rate of 3e-4
TEXTS = sample.train_triplets  # or "rows.csv", with related texts in a row; no labels are read
DEV = sample.dev  # or "dev.tsv", with the columns sentence1, sentence2 and score
COMMON = {"pooler_type": "avg", "learning_rate": 1e-3, "per_device_train_batch_size": 64, "max_train_samples": 1000}

# A teacher that is there offline. Leave this out, and name a better one: "sentence-transformers/all-mpnet-base-v2".
TEACHER = "outputs/teacher"
train(
    "sup",
    model_name_or_path=encoder,
    train_file=sample.train_triplets,
    max_steps=20,
    output_dir=TEACHER,
    overwrite_output_dir=True,
    **COMMON,
)

results = train(
    "sup",
    objective="distill",
    teacher=[TEACHER],
    model_name_or_path=MODEL,
    train_file=TEXTS,
    dev_file=DEV,
    max_steps=20,
    eval_steps=20,
    output_dir="outputs/student",
    overwrite_output_dir=True,
    **COMMON,
)
print(results.change)

# Prints:
# ...
# +12.10 [+7.88, +16.82]: significant at 95%
