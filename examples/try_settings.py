"""Try several settings of one run, and keep the best.

python examples/try_settings.py
"""

from simcse_hf import Recipe, sample_files

sample, encoder = sample_files()
RECIPE = Recipe.read(
    "sup",  # or also the name of a recipe, such as "sup-simcse-bert-base-uncased"
    {
        "model_name_or_path": encoder,
        "pooler_type": "avg",
        "train_file": sample.train_triplets,
        "max_train_samples": 2000,
        "dev_file": sample.dev,
        "per_device_train_batch_size": 64,
        "max_steps": 8,
        "eval_steps": 8,
        "overwrite_output_dir": True,
    },
)
RATES = (3e-4, 3e-3)

runs = {}
for rate in RATES:
    runs[rate] = RECIPE.but(learning_rate=rate, output_dir=f"outputs/rate-{rate}").train()

for rate, results in runs.items():
    print(f"{rate}: {results.change}")
# The best of several is partly luck: RECIPE.but(learning_rate=RATE, seeds=3) says how much seeds differ.

# Prints:
# ...
# 0.0003: +5.33 [+3.88, +7.02]: significant at 95%
# 0.003: +12.42 [+7.54, +17.83]: significant at 95%
