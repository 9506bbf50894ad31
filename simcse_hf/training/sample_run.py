"""What a run on the sample of the package shows at its end."""

from ..data.sample import sample_files
from ..data.scored_pairs import read_scored_pairs
from ..encoding.simcse import SimCSE
from ..names import POOLER_TYPES
from ..retrieval.sentences import SentenceIndex

#: A sentence of the sample's test set, which is searched before and after training.
_QUERY = "The exhausted percussionist lost the lute at the auditorium."
_NEXT = """
Next, search your own sentences, or train on them:
  simcse-hf index --model {folder} --input sentences.txt --output my-index
  simcse-hf search --index my-index
  simcse-hf train unsup --model bert-base-uncased --train_file sentences.txt"""


def describe_sample_run(folder: str) -> str:
    """Return the sentences nearest to one of the sample before and after training, and the next commands.

    Args:
        folder (`str`): The folder of the trained model.

    Returns:
        `str`: The lines; none for a model whose pooler the start cannot have.
    """
    corpus, encoder = sample_files()
    trained = SimCSE(folder, device="cpu")
    if trained.pooler_type not in POOLER_TYPES:  # the start has no templates and no filters
        return ""
    # The sample's encoder has no head of its own.
    pooler = "cls_before_pooler" if trained.pooler_type == "cls" else trained.pooler_type
    start = SimCSE(encoder, pooler_type=pooler, device="cpu")
    pairs = read_scored_pairs(corpus.test)
    texts = sorted({*pairs.sentences1, *pairs.sentences2} - {_QUERY})
    lines = []
    for when, model in (("before", start), ("after", trained)):
        lines.append(f"\nNearest to {_QUERY!r} {when} training, of {len(texts):,} sentences:")
        for match in SentenceIndex.build(model, texts).search(_QUERY, top_k=3):
            lines.append(f"  {match.score:.4f}  {match.sentence}")
    return "\n".join([*lines, _NEXT.format(folder=folder)])
