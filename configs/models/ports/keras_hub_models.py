"""Keras Hub's BERT and GPT-2 of the sizes of transformers_torch.py: `pip install keras-hub==0.32.0`."""

import keras_hub

SIZES = {
    "vocabulary_size": 96,
    "num_layers": 2,
    "num_heads": 4,
    "hidden_dim": 32,
    "intermediate_dim": 64,
    "max_sequence_length": 24,
}


def build_bert():
    return keras_hub.models.BertBackbone(**SIZES)


def build_bert_tanh():
    """The same: its GELU is the tanh approximation in any case."""
    return build_bert()


def build_gpt2():
    return keras_hub.models.GPT2Backbone(**{**SIZES, "intermediate_dim": 128})


def forward_bert(model, batch):
    given = {"token_ids": batch["tokens"], "padding_mask": batch["valid"], "segment_ids": batch["segments"]}
    output = model(given)
    return output["sequence_output"], output["pooled_output"]


def forward_gpt2(model, batch):
    """Logits over the vocabulary: the embedding's matrix is used again."""
    hidden = model({"token_ids": batch["tokens"], "padding_mask": batch["valid"]})
    return model.token_embedding(hidden, reverse=True)
