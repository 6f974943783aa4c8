"""Ways to decode: what makes them part."""

from __future__ import annotations

from parity.judge.catalogue.entry import Entry

DECODINGS = (
    Entry(
        id="decode-position",
        title="a token has the wrong position",
        what=(
            "With a cache, or with padding on the left, positions do not start at 0 in each call: they follow from the "
            "length of the cache, and from the mask."
        ),
        shows="A layer gets another whole number for a token than in one pass over the prompt.",
        known_in="No framework: models compute their positions in their own code.",
        source="transformers, GenerationMixin: position_ids = attention_mask.cumsum(-1) - 1.",
    ),
    Entry(
        id="decode-mask",
        title="a token depends on what it must not see, or not on what it must",
        what=(
            "The mask of attention is ignored, aligned with the wrong corner when there are more keys than queries, "
            "or the cache does not have all keys."
        ),
        shows=(
            "When a padded place, another row, or a later token is changed, a token's log-probabilities change; or "
            "those of the full pass change with an earlier token, and these do not."
        ),
        known_in=(
            "scaled_dot_product_attention(is_causal=True) of PyTorch aligns its mask with the top left corner, which "
            "is wrong for queries after a cache."
        ),
        source="The documentation of torch.nn.attention.bias.causal_lower_right.",
    ),
    Entry(
        id="decode-cache-dtype",
        title="the cache has a narrower dtype",
        what="Keys and values are rounded when they are stored, so each step reads other numbers than one pass would.",
        shows="All numbers of the cache fit into bfloat16 or float16, while the model computes in a wider dtype.",
    ),
)
