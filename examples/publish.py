"""Write the card of a trained model, and look at what would be uploaded.

python examples/publish.py
"""

from simcse_hf import card, evaluate, push, sample_files, train

MODEL = "outputs/publish"
REPOSITORY = "your-name/your-model"

# A model to publish. Leave this out, and name yours.
sample, encoder = sample_files()
train(
    "sup",
    model_name_or_path=encoder,
    train_file=sample.train_triplets,
    max_train_samples=2000,
    learning_rate=1e-3,
    per_device_train_batch_size=64,
    max_steps=10,
    output_dir=MODEL,
    overwrite_output_dir=True,
)

evaluate(MODEL, pairs=[sample.test], output=f"{MODEL}/evaluation.json", overwrite=True)
print(card(MODEL, repo_id=REPOSITORY, language=["en"], license="apache-2.0"))
print(push(MODEL, REPOSITORY, dry_run=True))  # without dry_run: uploads all in one commit

# Prints:
# outputs/publish/README.md
# ...
#       517,512  model.safetensors
# ...
# to your-name/your-model, main; nothing was pushed
