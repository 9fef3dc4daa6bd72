"""Settings of mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass

SCORES = ("softmax", "sigmoid")
CHOICES = ("token", "expert")
BALANCES = ("sequence", "batch", "all_layers")
COUNTS = ("chosen", "affinity")
DISPATCHES = ("auto", "grouped", "loop", "padded", "reference")


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """The feed-forwards of type ``experts``. Their activation and gate are those of ``feedforward``.
    The defaults are Mixtral's (Jiang et al. 2024, arXiv 2401.04088)."""

    num_experts: int = 4
    """Routed experts in each such layer."""
    experts_per_token: int = 2
    """Routed experts that each token visits (k); on average, where the experts choose."""
    d_ff: int | None = None
    """Hidden width of one expert; null for the model's ``d_ff``, and if both are null, k experts
    together are as wide as a dense layer."""
    bias: bool = False
    """Biases of the router and of the routed experts (GPT-OSS)."""
    num_shared_experts: int = 0
    """Further experts that process every token (DeepSeekMoE, arXiv 2401.06066)."""
    shared_gate: bool = False
    """The output of the shared experts is multiplied by a learned sigmoid of the token (Qwen2-MoE)."""
    score: str = "softmax"
    """Of the router's logits: ``softmax`` over all experts, or a ``sigmoid`` for each (DeepSeek-V3)."""
    renormalise: bool = True
    """Normalise the gates of the k experts to a sum of one. OLMoE, Switch and Jamba do not."""
    scaling: float = 1.0
    """The gates are multiplied by this (DeepSeek)."""
    num_groups: int = 1
    """Groups of experts, of which a token visits some only (DeepSeek). A group is judged by its best expert,
    or with sigmoids by the sum of its best two."""
    groups_per_token: int = 1
    """Groups that a token may visit."""
    choice: str = "token"
    """``token``: tokens choose experts. ``expert``: each expert selects an equal part of a sequence's tokens
    (Zhou et al. 2022, arXiv 2202.09368); that depends on later tokens, and causal models reject it."""
    capacity_factor: float | None = None
    """In training, an expert accepts this many times an even part of the tokens of a sequence, or of a packed
    document; those that come later are dropped and keep only the residual (Switch, arXiv 2101.03961). Null
    drops none."""
    capacity: int | None = None
    """An expert accepts this many tokens of a sequence or packed document, in training and after; null for no
    limit. One piece of a sequence that is decoded counts as a sequence."""
    jitter: float = 0.0
    """In training, what the router reads is multiplied by noise from [1 - jitter, 1 + jitter] (Switch)."""
    jitter_experts: bool = False
    """The experts also read that noise (Mixtral and Switch in transformers)."""
    bias_rate: float | None = None
    """Experts are chosen by score plus a bias, which after each step falls by this for experts with more
    tokens than the mean and rises for those with fewer (arXiv 2408.15664); null for no bias."""
    balance: str = "sequence"
    """Scope of the balance loss: each ``sequence``, which does not depend on how a batch is split,
    the ``batch`` that is passed at once (Switch): under accumulation, each micro-batch, or the batch in
    ``all_layers`` at once, of an encoder-decoder in those of each side (transformers)."""
    balance_counts: str = "chosen"
    """Experts of a token that the balance loss counts: the ``chosen`` ones, or the k of the highest
    ``affinity``, without bias and groups (DeepSeek-V3, arXiv 2412.19437, eq. 18). Without a bias and groups
    they are the same."""
    balance_coefficient: float = 0.01
    """Weight of the balance loss, for each layer; 1 times it is perfect balance. The losses of layers add up:
    where a source divides by the number of layers, so must the coefficient. With ``balance=all_layers`` it is
    ``router_aux_loss_coef`` of transformers, and perfect balance is ``experts_per_token`` times it."""
    z_coefficient: float = 0.0
    """Weight of the router z-loss, for each layer (ST-MoE, arXiv 2202.08906): the mean over a sequence of
    the squared log-sum-exp of the logits."""
    dispatch: str = "auto"
    """``loop`` over experts on sorted tokens, one ``grouped`` product of them, one product of experts
    ``padded`` to the fullest, or ``reference``, all experts on all tokens; ``auto`` uses the fastest."""

    def __post_init__(self) -> None:
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"experts.experts_per_token={self.experts_per_token} must be between 1 and "
                f"experts.num_experts={self.num_experts}"
            )
        for name, valid in (
            ("score", SCORES),
            ("choice", CHOICES),
            ("balance", BALANCES),
            ("balance_counts", COUNTS),
            ("dispatch", DISPATCHES),
        ):
            if getattr(self, name) not in valid:
                raise ValueError(f"experts.{name}={getattr(self, name)!r} must be one of {', '.join(valid)}")
        for name in ("num_shared_experts", "balance_coefficient", "z_coefficient"):
            if getattr(self, name) < 0:
                raise ValueError(f"experts.{name}={getattr(self, name)} must not be negative")
        for name in ("d_ff", "capacity", "capacity_factor"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"experts.{name}={value} must be positive, or null")
        if self.bias_rate is not None and self.bias_rate < 0:
            raise ValueError(f"experts.bias_rate={self.bias_rate} must not be negative; null for no bias")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"experts.jitter={self.jitter} must be in [0, 1)")
        if self.scaling <= 0:
            raise ValueError(f"experts.scaling={self.scaling} must be positive")
        if self.shared_gate and not self.num_shared_experts:
            raise ValueError("experts.shared_gate=true goes with experts.num_shared_experts of 1 or more")
        self._check_groups()
        self._check_capacity()

    def _check_groups(self) -> None:
        groups, chosen = self.num_groups, self.groups_per_token
        if groups < 1 or self.num_experts % groups:
            raise ValueError(
                f"experts.num_groups={groups} must divide experts.num_experts={self.num_experts}"
            )
        if not 1 <= chosen <= groups:
            raise ValueError(
                f"experts.groups_per_token={chosen} must be between 1 and experts.num_groups={groups}"
            )
        if self.experts_per_token > chosen * (self.num_experts // groups):
            raise ValueError(
                f"experts.experts_per_token={self.experts_per_token} is more than the "
                f"{chosen * (self.num_experts // groups)} experts of experts.groups_per_token={chosen} groups"
            )

    def _check_capacity(self) -> None:
        if self.capacity is not None and self.capacity_factor is not None:
            raise ValueError(
                f"experts.capacity={self.capacity} and experts.capacity_factor={self.capacity_factor} are "
                "two limits: leave one of them null"
            )
        limited = self.capacity is not None or self.capacity_factor is not None
        if self.choice == "expert" and (limited or self.bias_rate is not None or self.num_groups > 1):
            raise ValueError(
                "experts.choice=expert takes no capacity, bias_rate or groups: every expert takes "
                "equally many tokens"
            )
