"""The causal mask begins at the first key, which differs where there are more keys than queries."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
