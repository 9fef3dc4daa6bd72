"""Times generation: compared with ``transformers``, with no cache, and with the memory bandwidth.

python benchmarks/decoding.py --families decoder gpt2 mamba --batches 1 8
python benchmarks/decoding.py --output benchmarks/results/decoding.md

Greedy, the prompt read once, no stop token: both generate the same tokens, which is checked. Ours is the loop
that ``experiments.generate`` runs. The two take turns; the first turn is not counted.

Without a cache a token costs a forward pass over all tokens before it; with one, a step. Both are timed at
one context, in turns.

Decoding one sequence reads every weight once for a token. The fraction of bandwidth is those bytes and the
cache's, over the time of a step, against the fastest pass over as much memory in this process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from machine import Page, add_outputs, as_markdown, machine_line, read_arguments, settle
from peer_configs import Shape
from peer_models import make_pair
from torch import Tensor

from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.experiments.benchmark.timing import memory_rate, quartiles
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.decoding.prefill import PrefillState
from archbench.experiments.objectives.decoding.sampling import GREEDY, generate

FAMILIES = ("decoder", "gpt2", "encoder_decoder", "moe", "mamba", "mamba2")
SPECIAL = 4
"""Special tokens, which are never generated; the logits of ``transformers`` are set to 0 there."""
LARGE = {"d_model": 768, "num_layers": 12}
"""A decoder of some 100 million parameters with ``WORDS`` tokens."""
WORDS = 16_384
CPU = torch.device("cpu")


def seconds_of(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def take_turns(calls: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Seconds of each call in each round but the first, in an order that rotates."""
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 1):
        for offset in range(len(calls)):
            chosen = (offset + turn) % len(calls)
            spent = seconds_of(calls[chosen])
            if turn > 0:
                seconds[chosen].append(spent)
    return seconds


def compare(seconds: list[float], peer_seconds: list[float]) -> dict[str, Any]:
    low, _, high = quartiles([b / a for a, b in zip(seconds, peer_seconds, strict=True)])
    a, b = statistics.median(seconds), statistics.median(peer_seconds)
    return {"seconds": a, "peer_seconds": b, "ratio": b / a, "ratio_quartiles": [low, high]}


def generation(family: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Greedy generation compared with ``generate`` of transformers.

    Raises ValueError where the tokens differ.
    """
    max_length = args.prompt + args.tokens
    shape = Shape(d_model=args.d_model, layers=args.layers, vocab_size=args.vocab, length=max_length)
    pair = make_pair(family, shape, extra=False, silent=SPECIAL)
    model, module = pair.backbone.eval(), pair.theirs[0].module.eval()
    vocabulary = Vocabulary(num_symbols=args.vocab - SPECIAL, num_sentinels=0)
    prompt_BT = torch.randint(vocabulary.num_symbols, (batch, args.prompt))
    generators = [torch.Generator() for _ in range(batch)]
    source_BS = prompt_BT if model.capabilities.encoder_decoder else None
    # The output of an encoder-decoder of transformers begins after its start token, 0.
    unread_BT = prompt_BT if source_BS is None else torch.zeros(batch, 1, dtype=torch.long)

    def ours() -> list[list[int]]:
        start = PrefillState(
            state=model.start(batch, max_length + 1, source_BS=source_BS), unread_BT=unread_BT
        )
        return generate(
            model,
            start,
            vocabulary,
            max_tokens=args.tokens,
            generators=generators,
            sampling=GREEDY,
        )

    def theirs() -> Tensor:
        return module.generate(  # type: ignore[operator]
            prompt_BT,
            attention_mask=torch.ones_like(prompt_BT),
            do_sample=False,
            max_new_tokens=args.tokens,
            min_new_tokens=args.tokens,
            eos_token_id=None,
            pad_token_id=0,
            use_cache=True,
        )

    with torch.inference_mode():
        matches = torch.tensor(ours()) == theirs()[:, -args.tokens :]
        if matches.float().mean() < 1:
            raise ValueError(
                f"{family}: {matches.float().mean():.1%} of the tokens are those of transformers"
            )
        times = take_turns([ours, theirs], args.rounds)
    ratios = compare(*times)
    per_token = {"ms_per_token": 1000 * ratios["seconds"] / args.tokens}
    return {"family": family, "batch_size": batch, **ratios, **per_token}


def without_cache(context: int, rounds: int) -> dict[str, Any]:
    """A cached step after ``context`` tokens and a forward pass over them, three million parameters."""
    config = DecoderConfig(d_model=256, num_layers=4)
    model = Decoder(config, vocab_size=256, max_length=context + rounds + 2).eval()
    tokens_BT = torch.randint(256, (1, context))
    with torch.inference_mode():
        state = model.start(1, context + rounds + 2)
        model.step(tokens_BT, state)
        token_B1 = tokens_BT[:, :1]
        times = take_turns([lambda: model.step(token_B1, state), lambda: model(tokens_BT)], rounds)
    return {"context": context, **compare(*times)}


def share_of_bandwidth(context: int, tokens: int) -> dict[str, Any]:
    """One sequence of a decoder of 100 million parameters, a token at a time.

    The fraction is None if it exceeds 1, because the machine was then disturbed.
    """
    model = Decoder(DecoderConfig(**LARGE), vocab_size=WORDS, max_length=context + tokens).eval()
    parts = model.parameters_by_part()
    weights = 4 * (parts.total - parts.embedding)  # a row of the embedding is negligible
    read = weights + model.state_bytes(context + tokens // 2)
    rates = [memory_rate(CPU, read)]
    with torch.inference_mode():
        state = model.start(1, context + tokens)
        model.step(torch.randint(WORDS, (1, context)), state)
        token_B1 = torch.zeros(1, 1, dtype=torch.long)
        seconds = [seconds_of(lambda: model.step(token_B1, state)) for _ in range(tokens)][4:]
    rates.append(memory_rate(CPU, read))
    low, median, high = quartiles(seconds)
    return {
        "parameters": parts.total,
        "bytes": read,
        "seconds": median,
        "seconds_quartiles": [low, high],
        "bandwidth": max(rates),
        "share": share if (share := read / median / max(rates)) <= 1 else None,
    }


def main() -> None:
    args = parse()
    settle(args.threads)
    page = Page(args.output, args.json)
    page.say(machine_line() + ".")
    page.say(
        f"Greedy generation of {args.tokens} tokens after a prompt of {args.prompt}, {args.layers} layers, "
        f"d_model {args.d_model}, {args.vocab} tokens, float32, compared with `generate` of transformers; "
        f"{args.rounds} rounds."
    )
    measurements = [generation(family, batch, args) for family in args.families for batch in args.batches]
    page.note("generation", measurements)
    rows = [
        [
            row["family"],
            str(row["batch_size"]),
            f"{row['ms_per_token']:.2f}",
            f"{1000 * row['peer_seconds'] / args.tokens:.2f}",
            f"{row['ratio']:.2f} ({row['ratio_quartiles'][0]:.2f} to {row['ratio_quartiles'][1]:.2f})",
        ]
        for row in measurements
    ]
    columns = ("family", "sequences", "ms a token", "transformers", "times as fast (quartiles)")
    page.say(as_markdown(columns, rows))
    cold = without_cache(args.context, args.rounds)
    page.note("without_cache", cold)
    page.say(
        f"After {args.context:,} tokens a cached step takes {1000 * cold['seconds']:.2f} ms, a forward pass "
        f"over them {1000 * cold['peer_seconds']:.1f} ms: {cold['ratio']:.1f} times as long."
    )
    bandwidth = share_of_bandwidth(64, 24)
    page.note("bandwidth", bandwidth)
    page.say(
        f"{bandwidth['parameters'] / 1e6:.0f} million parameters, one sequence: "
        f"{1000 * bandwidth['seconds']:.1f} ms a token for {bandwidth['bytes'] / 1e6:.0f} MB, "
        f"{'more than all' if bandwidth['share'] is None else format(bandwidth['share'], '.0%')} of the "
        f"{bandwidth['bandwidth'] / 1e9:.1f} GB/s that passes over memory reach here."
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="written")
    parser.add_argument("--context", type=int, default=2048, help="of the comparison with no cache")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="that count")
    add_outputs(parser)
    return read_arguments(parser)


if __name__ == "__main__":
    main()
