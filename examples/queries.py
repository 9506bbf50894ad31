"""Train on queries and documents that get different prompts, and search.

python examples/queries.py
"""

from simcse_hf import SimCSE, sample_files, train

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with a learning rate of 5e-5
PAIRS = sample.train_triplets  # or "questions.csv"
COLUMNS = ["sent0", "sent1"]  # or ["question", "document"]
PROMPTS = {"anchor": "on ", "positive": "the "}  # or {"anchor": "query: ", "positive": "passage: "}
DOCUMENTS = ["The tired drummer lost the violin.", "The chef sold the bread.", "The nurse found the pill."]

train(
    "sup",
    model_name_or_path=MODEL,
    pooler_type="avg",
    train_file=PAIRS,
    columns=COLUMNS,
    prompts=PROMPTS,
    max_seq_length={"anchor": 16, "positive": 32},
    max_train_samples=2000,
    learning_rate=1e-3,
    per_device_train_batch_size=64,
    max_steps=20,
    output_dir="outputs/queries",
    overwrite_output_dir=True,
)

model = SimCSE("outputs/queries")
print(model.prompts)  # saved with the model
query = model.encode_query("Who lost the fiddle?")  # with the prompt of queries
documents = model.encode_document(DOCUMENTS)  # with the prompt of documents
print(model.similarity(query, documents))
model.build_index(DOCUMENTS)  # an index uses both prompts by itself
print(model.search("Who lost the fiddle?", top_k=1)[0].sentence)

# Prints:
# {'query': 'on ', 'document': 'the '}
# tensor([0.8948, 0.8608, 0.8514])
# The tired drummer lost the violin.
