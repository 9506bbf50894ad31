"""Improve an encoder in seconds, without training, by a whitening.

python examples/whitening.py
"""

from simcse_hf import compare, evaluate, fit_postprocessing, sample_files

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with the pooler avg_first_last
SENTENCES = sample.train_sentences  # or "sentences.txt", with one on each line
TEST = sample.test  # or "test.tsv", with the columns sentence1, sentence2 and score

fitted = fit_postprocessing(MODEL, SENTENCES, "outputs/whitened", "whitening", pooler_type="avg", overwrite=True)
print(fitted)
evaluate(MODEL, pooler_type="avg", pairs=[TEST], output="outputs/before.json", overwrite=True)
evaluate("outputs/whitened", pairs=[TEST], output="outputs/after.json", overwrite=True)
print(compare(["outputs/before.json", "outputs/after.json"]))

# Prints:
# outputs/whitened: whitening of pooler 'avg', 64 to 63 dimensions, fitted on 20000 sentences
# ...
# outputs/before.json  27.00  27.00
# outputs/after.json   44.30  44.30
# ...
# test                                      +17.30  [+11.19, +23.10]
# ...
