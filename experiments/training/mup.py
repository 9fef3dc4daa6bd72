"""Width transfer by maximal update parametrisation (muP): one learning rate for all widths.

Yang et al. 2022 (Tensor Programs V, arXiv 2203.03466), table 3, for Adam. Against the same model at the base
width:

    what                   fan-in   fan-out   initial variance   learning rate
    hidden matrices        grows    grows     1 / fan-in         times base fan-in / fan-in
    readouts: head, router grows    stays     1 / fan-in^2       times base fan-in / fan-in
    tables, norms, biases  stays    grows     as it was          as it was
    softmax attention: scores by 1 / head_dim, equal to 1 / sqrt(head_dim) at the base width

What grows is read off the shapes of the two models, so no backbone is named. Decoupled weight decay acts
times the learning rate; it is divided by the rate's factor, so that a step decays matrices by the same
fraction at all widths (Wang and Aitchison 2024, arXiv 2405.13698). For Mamba this preserves the size of
activations in our test, but is not the scaling that Vankadara et al. 2024 (NeurIPS) derive for its limit.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import nn

from archbench.architectures.backbone import Backbone, BackboneConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.experiments.runtime.errors import ConfigError

KEY = "optimizer.mup_base_width"


def at_width(config: BackboneConfig, width: int) -> Any:
    """The configuration of the base model. What the YAML gives as a number stays. Raises ConfigError."""
    assert is_dataclass(config)
    try:
        return replace(config, d_model=width)
    except ValueError as error:
        raise ConfigError(f"{KEY}={width}: {error}") from None


def scaled_attention(config: Any, width: int) -> Any:
    """The configuration with attention scores by 1 / head_dim, where heads grow with the width."""
    attention = getattr(config, "attention", None)
    if not isinstance(attention, AttentionConfig) or attention.head_dim is not None:
        return config
    if attention.scale is not None or attention.latent.kv_rank is not None:
        return config
    head_dim, base = config.width / attention.num_heads, width / attention.num_heads
    return replace(config, attention=replace(attention, scale=base**0.5 / head_dim))


@torch.no_grad()
def parametrise(model: Backbone, base: Backbone) -> None:
    """Scales the readouts of a new model, and tells the optimizer the rate of every matrix.

    Args:
        base: the same model at the base width; its shapes are enough.

    Raises:
        ConfigError: the token table is also the head, which cannot have two rates.
    """
    shapes = {name: parameter.shape for name, parameter in base.named_parameters()}
    tables = {id(p) for p in model.embedding.parameters()}
    if any(id(p) in tables for p in model.head.parameters()):
        raise ConfigError(
            f"{KEY}: the head is the token table, and these need different rates: tie_embeddings=false"
        )
    projections = (part for part in model.embedding.modules() if isinstance(part, nn.Linear))
    tables -= {id(part.weight) for part in projections}
    for name, parameter in model.named_parameters():
        shape, base_shape = parameter.shape, shapes[name]
        bias = "bias" in name.rpartition(".")[2]  # biases of experts are matrices by their shape
        if bias or parameter.ndim < 2 or id(parameter) in tables or shape[-1] == base_shape[-1]:
            continue
        ratio = base_shape[-1] / shape[-1]  # the inputs of a matrix come last
        parameter.learning_rate_factor = ratio  # type: ignore[attr-defined]
        if shape[:-1] == base_shape[:-1]:
            parameter.mul_(ratio**0.5)
