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
    Entry(
        id="decode-cache",
        title="the cache does not hold what one pass computes",
        what=(
            "Keys and values that come out of the cache are rounded, scaled, another layer's, in another order, or "
            "rotated by other positions than those of one pass."
        ),
        shows=(
            "Given the right values before it, the first value of a call that is no part of one pass's is what it has "
            "cached."
        ),
    ),
    Entry(
        id="decode-code",
        title="a call computes otherwise than one pass",
        what="The code of a layer depends on how many tokens a call has, or on where they begin.",
        shows="Given the right values before it, one step of the code has a result that is no part of one pass's.",
    ),
)
