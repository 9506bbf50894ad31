"""Train an adapter (LoRA) on a decoder such as Qwen or Llama.

python examples/lora_decoder.py (pip install peft)
"""

from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM, set_seed

from simcse_hf import SimCSE, sample_files, train

sample, encoder = sample_files()
MODEL = "outputs/decoder"  # or "Qwen/Qwen3-0.6B", with lora_r=16, learning_rate=1e-4, bf16=True
PAIRS = sample.train_triplets  # or "triplets.csv"
DEV = sample.dev  # or "dev.tsv", with the columns sentence1, sentence2 and score

# A decoder with random weights, so that this runs offline. Leave it out.
set_seed(0)
tokenizer = AutoTokenizer.from_pretrained(encoder)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **sizes, **heads)).save_pretrained(MODEL)
tokenizer.save_pretrained(MODEL)

results = train(
    "sup",
    model_name_or_path=MODEL,
    pooler_type="lasttoken",
    lora_r=8,
    learning_rate=1e-2,
    train_file=PAIRS,
    max_train_samples=2000,
    dev_file=DEV,
    per_device_train_batch_size=64,
    max_steps=20,
    eval_steps=20,
    output_dir="outputs/lora",
    overwrite_output_dir=True,
)
print(results.change)
print(SimCSE("outputs/lora"))  # the adapter is merged, so the model loads everywhere

# Prints:
# ...
# +16.10 [+10.08, +22.56]: significant at 95%
# SimCSE('outputs/lora', pooler_type='lasttoken', dim=64, max_length=32, ...)
