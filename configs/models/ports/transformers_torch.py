"""transformers' BERT and GPT-2 in torch, tiny and with random weights: `pip install transformers==5.23.0`."""

import numpy as np
import torch
from torch.nn import functional
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

SIZES = {"vocab_size": 96, "attn_implementation": "eager"}


def build_bert(hidden_act="gelu"):
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=24,
        hidden_act=hidden_act,
        **SIZES,
    )
    return initialized(BertModel(config))


def build_bert_tanh():
    """With the GELU of Keras Hub 0.32.0's BERT, which is the tanh approximation where transformers' is exact."""
    return build_bert("gelu_pytorch_tanh")


def build_gpt2():
    return initialized(
        GPT2LMHeadModel(
            GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=24, bos_token_id=0, eos_token_id=0, **SIZES)
        )
    )


def build_bert_training():
    return without_dropout(build_bert())


def build_gpt2_training():
    return without_dropout(build_gpt2())


def without_dropout(model):
    """Masks differ between frameworks."""
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    return model


def initialized(model):
    """Normal weights; norms and biases that are not 1 and 0, so that a swapped one shows."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_scale = name.endswith("weight") and parameter.ndim == 1
            parameter.copy_(float(is_scale) + 0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def make_batch():
    """Three rows of 20 tokens, two of them padded at the end."""
    generator = np.random.RandomState(0)
    valid = (np.arange(20) < np.array([20, 15, 7])[:, None]).astype(np.int64)
    tokens = generator.randint(1, SIZES["vocab_size"], (3, 20)) * valid
    return {"tokens": tokens, "segments": np.repeat([[0] * 10 + [1] * 10], 3, 0), "valid": valid}


def forward_bert(model, batch):
    return model(batch["tokens"], attention_mask=batch["valid"], token_type_ids=batch["segments"]).to_tuple()


def forward_gpt2(model, batch):
    return model(batch["tokens"], attention_mask=batch["valid"], use_cache=False).logits


def loss_gpt2(output, batch):
    """Cross-entropy of each next token that is no padding."""
    logits, targets = output[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten()
    return functional.cross_entropy(logits, targets, ignore_index=0)
