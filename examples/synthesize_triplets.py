"""Let a text model write a positive and a hard negative for every sentence of a file (SynCSE, arXiv:2305.15077).

python examples/synthesize_triplets.py sentences.txt triplets.csv --model llama3 --base_url http://localhost:11434/v1
python examples/synthesize_triplets.py sentences.txt triplets.csv --model ./my-model --local --guide ./my-embeddings

With --base_url the model runs on a server that speaks the OpenAI protocol (with the key in OPENAI_API_KEY, if it needs
one), with --local in this process, and else at an inference provider of the hub. Answers are appended to
triplets.csv.answers.jsonl, where the command continues when it is started again, and at the end filtered.
"""

import argparse
import csv
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from simcse_hf import SimCSE

# One is drawn for each sentence, so that not all answers differ from their sentence in the same way.
PROMPTS = {
    "positive": (
        "Say the same in other words.",
        "Write a sentence that is certainly true if this one is true.",
        "Describe the same in another order.",
    ),
    "negative": (
        "Write a sentence on the same subject that cannot be true if this one is true.",
        "Contradict this sentence, using many of its words.",
        "Describe a similar situation in which something else happens.",
    ),
}
REFUSAL = re.compile(r"i'?m sorry|sorry,|i (can'?t|cannot|am unable|won'?t)\b|as an? (ai|language) ", re.IGNORECASE)
MOST_TOKENS = 64
TEMPERATURE = 0.7
SEED = 42
WORKERS = 8
#: A text model that does not understand writes positives without a word of their sentence. Few paraphrases have none.
MOST_STRANGE = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", type=Path, help="file with one sentence on a line")
    parser.add_argument("output", type=Path, help="csv file to write, with the columns sent0, sent1 and hard_neg")
    parser.add_argument("--model", required=True, help="name of the text model; with --local also a folder")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--base_url", help="server that speaks the OpenAI protocol, such as http://localhost:8000/v1")
    place.add_argument("--local", action="store_true", help="run the model in this process, with transformers")
    parser.add_argument("--guide", help="embedding model; negatives that it finds closer than positives are dropped")
    arguments = parser.parse_args()

    lines = arguments.sentences.read_text(encoding="utf-8").split("\n")
    sentences = [line.strip() for line in lines if line.strip()]
    path = Path(f"{arguments.output}.answers.jsonl")
    earlier = path.read_bytes() if path.exists() else b""
    earlier = earlier[: earlier.rfind(b"\n") + 1]  # a killed run may have left a part of a line
    answers = [json.loads(line) for line in earlier.splitlines()]
    if [answer["sentence"] for answer in answers] != sentences[: len(answers)]:
        raise SystemExit(f"{path} holds answers for other sentences: name another output, or delete it.")
    if len(answers) < len(sentences):
        ask = text_model(arguments.model, arguments.base_url, arguments.local)
        workers = 1 if arguments.local else WORKERS
        with path.open("a", encoding="utf-8") as file:
            file.truncate(len(earlier))
            for row in generate(sentences, len(answers), ask, workers):
                print(json.dumps(row, ensure_ascii=False), file=file, flush=True)
                answers.append(row)
    triplets, dropped = choose(answers, arguments.guide)
    with arguments.output.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["sent0", "sent1", "hard_neg"], *triplets])
    reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.most_common())
    print(f"{arguments.output}: {len(triplets)} triplets of {len(sentences)} sentences; dropped: {reasons or 'none'}")
    if arguments.guide is None:
        print(
            "Nobody has looked at what the triplets mean: read some, or let --guide MODEL drop those that it doubts."
        )
    strange = [triplet for triplet in triplets if not shares_a_word(*triplet[:2])]
    if len(strange) > MOST_STRANGE * len(triplets):
        print(f"WARNING: {len(strange)} of {len(triplets)} positives share no word with their sentence: {strange[0]}")


def shares_a_word(first: str, second: str) -> bool:
    """Return whether two texts have a word of more than three letters in common."""
    one, other = (set(re.findall(r"\w{4,}", text.casefold())) for text in (first, second))
    return not one or not one.isdisjoint(other)


def generate(sentences: list[str], first: int, ask: Callable[[str], str], workers: int) -> Iterator[dict[str, str]]:
    """Ask for a positive and a hard negative of each sentence from the first one on."""

    def row_of(number: int) -> dict[str, str]:
        draw = random.Random(f"{SEED} {number}")
        row = {"sentence": sentences[number]}
        for part, prompts in PROMPTS.items():
            row[part] = ask(f"{draw.choice(prompts)} Answer with one sentence only.\n\n{row['sentence']}") or ""
        return row

    with ThreadPoolExecutor(workers) as pool:
        for start in range(first, len(sentences), workers):
            yield from pool.map(row_of, range(start, min(start + workers, len(sentences))))


def text_model(name: str, base_url: str | None, local: bool) -> Callable[[str], str]:
    """Return the function that answers a prompt."""
    if local:
        from transformers import pipeline

        model = pipeline("text-generation", name, dtype="auto")
        options = {"max_new_tokens": MOST_TOKENS, "do_sample": True, "temperature": TEMPERATURE}
        has_chat = model.tokenizer.chat_template is not None

        def answer(prompt: str) -> str:
            asked = [{"role": "user", "content": prompt}] if has_chat else f"{prompt}\n"
            return model(asked, return_full_text=False, **options)[0]["generated_text"]

        return answer
    from huggingface_hub import InferenceClient

    client = InferenceClient(timeout=600)
    if base_url:  # a server without a key of its own must not get the token of the hub
        client = InferenceClient(timeout=600, base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))

    def answer_of_server(prompt: str) -> str:
        asked = [{"role": "user", "content": prompt}]
        reply = client.chat_completion(asked, model=name, max_tokens=MOST_TOKENS, temperature=TEMPERATURE)
        return reply.choices[0].message.content

    return answer_of_server


def choose(answers: list[dict[str, str]], guide: str | None) -> tuple[list[list[str]], Counter[str]]:
    """Return the triplets that are fit for training, and how many were dropped for which reason."""
    triplets = []
    dropped = Counter()
    seen = set()
    for row in answers:
        texts = [part.strip().partition("\n")[0].strip("\"' ") for part in row.values()]
        words = [" ".join(re.findall(r"\w+", text.casefold())) for text in texts]
        sentence, *written = texts
        if not all(words):
            dropped["empty"] += 1
        elif any(map(REFUSAL.match, written)):
            dropped["refusals"] += 1
        elif not sentence.endswith("?") and any(text.endswith("?") for text in written):
            dropped["questions back"] += 1
        elif len(set(words)) < len(words):
            dropped["copies"] += 1
        elif not seen.isdisjoint(words):
            dropped["duplicates"] += 1
        else:
            triplets.append(texts)
            seen.update(words)
    if guide is not None and triplets:
        model = SimCSE(guide)
        sentences, positives, negatives = (model.encode(list(column)) for column in zip(*triplets, strict=True))
        is_closer = (sentences * positives).sum(1) >= (sentences * negatives).sum(1)
        kept = [triplet for triplet, keep in zip(triplets, is_closer.tolist(), strict=True) if keep]
        if len(kept) < len(triplets):
            dropped["negatives closer than the positive"] = len(triplets) - len(kept)
        triplets = kept
    return triplets, dropped


if __name__ == "__main__":
    main()
