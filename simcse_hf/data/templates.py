"""Templates around a text: token ids of the parts, and texts between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

TEXT, MASK = "{text}", "[MASK]"


@dataclass(frozen=True)
class Template:
    """A tokenised template.

    Args:
        before: token ids up to the text, the tokenizer's leading special tokens included.
        after: those behind it, with the trailing special tokens.
        space: whether the text follows white space, which some tokenizers make part of its first token.
    """

    before: list[int]
    after: list[int]
    space: bool = False

    def tokenize(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int | None = None
    ) -> list[list[int]]:
        """Token ids of each text in the template. The text is cut to make `max_length`, never the template.

        A mask token that a text itself spells becomes the unknown token: the template's is the only one.

        Raises:
            ValueError: the template leaves no room for a text.
        """
        room = None if max_length is None else max_length - len(self.before) - len(self.after)
        if room is not None and room < 1:
            raise ValueError(
                f"the template takes {max_length - room} tokens, so max_seq_length {max_length} leaves no room for a "
                "text: raise it or shorten the template"
            )
        if not texts:
            return []
        lead = " " if self.space else ""
        found = tokenizer([lead + text for text in texts], add_special_tokens=False, return_attention_mask=False)
        mask, unknown = tokenizer.mask_token_id, tokenizer.unk_token_id
        return [
            [*self.before, *(unknown if token == mask else token for token in ids[:room]), *self.after]
            for ids in found["input_ids"]
        ]


def read_template(template: str, tokenizer: PreTrainedTokenizerBase) -> Template:
    """Tokenises a template.

    Args:
        template: holds `{text}` once and `[MASK]` once, whatever the tokenizer's own mask token is.
        tokenizer: adds its special tokens around it.

    Raises:
        ValueError: the template does not hold both once; the tokenizer has no mask token.
    """
    if tokenizer.mask_token is None:
        raise ValueError(f"the template {template!r} needs a mask token, and this tokenizer has none")
    if template.count(TEXT) != 1 or template.count(MASK) != 1:
        raise ValueError(f"a template holds {TEXT} once and {MASK} once, got {template!r}")
    before, after = template.replace(MASK, tokenizer.mask_token).split(TEXT)
    first, last = special_tokens(tokenizer)
    # White space before the text is the text's: a byte-level tokenizer's first token would differ without it.
    before, space = before.rstrip(), before != before.rstrip()
    parts = [tokenizer(part, add_special_tokens=False)["input_ids"] if part else [] for part in (before, after)]
    found = Template([*first, *parts[0]], [*parts[1], *last], space)
    if (found.before + found.after).count(tokenizer.mask_token_id) != 1:
        raise ValueError(f"the tokenizer does not find the mask token in the template {template!r}")
    return found


def template_settings(templates: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> dict:
    """The settings of a model that follow from its templates and its tokenizer; none without templates.

    Raises:
        ValueError: as [`read_template`].
    """
    if not templates:
        return {}
    read = [read_template(template, tokenizer) for template in templates]
    return {
        "mask_token_id": tokenizer.mask_token_id,
        "template_edges": [[len(template.before), len(template.after)] for template in read],
    }


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before a text and behind it."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    start = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)
    return full[:start], full[start + len(bare) :]
