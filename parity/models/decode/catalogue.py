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
        shows="A layer gets another integer for a token than in one pass over the prompt.",
        known_in="No framework: models compute their positions in their own code.",
        source="transformers, GenerationMixin: position_ids = attention_mask.cumsum(-1) - 1.",
    ),
    Entry(
        id="decode-mask",
        title="a token attends to tokens it must not see, or misses some it must see",
        what=(
            "The mask of attention is ignored, aligned with the wrong corner when there are more keys than queries, "
            "or the cache does not have all keys."
        ),
        shows=(
            "A token's log-probabilities change with padding, with another row, or with a later token; or they do not "
            "change with an earlier token, although those of the full pass do."
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
            "Given the right inputs, the first value of a call that matches no value of one pass is read from the "
            "cache."
        ),
    ),
    Entry(
        id="decode-code",
        title="a call computes something else than one pass",
        what="The code of a layer depends on how many tokens a call has, or on where they begin.",
        shows="Given the right inputs, the result of one step matches no value of one pass.",
    ),
)
