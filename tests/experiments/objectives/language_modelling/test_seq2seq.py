import math

import pytest
import torch

from archbench.architectures.backbone import Backbone, BackboneConfig, Flops, Output
from archbench.architectures.decoding_state import DecodingState
from archbench.experiments.evaluation.measure import measure
from archbench.experiments.objectives.language_modelling.seq2seq import CausalSeq2Seq, Seq2Seq, Seq2SeqConfig
from archbench.experiments.tasks.text.text_pairs import Pairs, PairsConfig
from tests.experiments.objectives import toys

TASK = Pairs(PairsConfig(max_source=60, max_target=60))
V = TASK.vocabulary


def objective(form=Seq2Seq, task=TASK, **settings):
    return form(Seq2SeqConfig(**settings), task)


class Translator(Backbone):
    """An encoder-decoder that knows the translation of every source, and writes it with certainty."""

    Config = BackboneConfig

    def __init__(self, pairs):
        super().__init__(BackboneConfig(), vocab_size=V.size, max_length=200)
        self.known = {pair.source: [*pair.target.encode(), V.eos] for pair in pairs}
        self.unused = torch.nn.Parameter(torch.zeros(()))

    def _answers(self, source_BS):
        return [self.known[TASK.decode(row.tolist())] for row in source_BS]

    def _logits(self, answers, begin_B, steps):
        logits = torch.zeros(len(answers), steps, V.size)
        for row, (answer, begin) in enumerate(zip(answers, begin_B, strict=True)):
            for step in range(steps):
                if begin + step < len(answer):
                    logits[row, step, answer[begin + step]] = 50.0
        return logits

    def compute(self, inputs):
        answers = self._answers(inputs.source_BS)
        logits = self._logits(answers, [0] * len(answers), inputs.tokens_BT.shape[1])
        return Output(logits_BTV=logits, hidden_BTD=logits)

    def start(self, batch_size, max_length, *, source_BS=None, source_valid_BS=None):
        return DecodingState(lengths=[0] * batch_size, layers=[{"source": source_BS}])

    def step(self, tokens_BT, state, valid_BT=None):
        answers = self._answers(state.layers[0]["source"])
        logits = self._logits(answers, state.lengths, tokens_BT.shape[1])
        state.lengths = [length + tokens_BT.shape[1] for length in state.lengths]
        return logits

    def sequence_flops(self, length, source_length=0):
        return Flops()


def measured(model, chosen, examples=12, batch_size=5):
    found = measure(
        model, chosen, chosen.task, "test", examples=examples, batch_size=batch_size, precision="fp32"
    )
    return {metric.name: metric for metric in found}


def test_the_encoder_reads_the_source_and_the_decoder_writes_the_target():
    view = objective().view(TASK.batch("train", 0, 0, 6), torch.Generator())
    for row, pair in enumerate(TASK.pairs("train", 0, 0, 6)):
        source, target = [*pair.source.encode(), V.eos], [*pair.target.encode(), V.eos]
        assert view.source_BS[row][view.source_valid_BS[row]].tolist() == source
        assert view.target_BT[row][view.valid_BT[row]].tolist() == target
        assert view.tokens_BT[row][view.valid_BT[row]].tolist() == [V.pad, *target[:-1]]
        assert view.weight_BT[row].sum() == view.count_B[row] == len(target)
    assert view.source_BS.shape[1] == max(len(p.source) + 1 for p in TASK.pairs("train", 0, 0, 6))


def test_a_causal_backbone_reads_both_and_is_scored_on_the_same_tokens():
    batch = TASK.batch("train", 0, 0, 6)
    two, one = (objective(form).view(batch, torch.Generator()) for form in (Seq2Seq, CausalSeq2Seq))
    assert torch.equal(one.count_B, two.count_B)
    assert torch.equal(one.target_BT[one.weight_BT > 0], two.target_BT[two.weight_BT > 0])
    pair = TASK.pairs("train", 0, 0, 1)[0]
    text = [V.bos, *pair.source.encode(), V.eos, *pair.target.encode(), V.eos]
    assert one.tokens_BT[0, : len(text) - 1].tolist() == text[:-1]
    assert one.tokens_BT.shape[1] == max(
        len(p.source) + len(p.target) + 2 for p in TASK.pairs("train", 0, 0, 6)
    )


@pytest.mark.parametrize("num_beams", [1, 3])
def test_generation_reads_what_training_reads(num_beams, monkeypatch):
    """The same source for the encoder; for a causal backbone the same tokens up to the end of the source."""
    task = Pairs(PairsConfig(max_source=60, max_target=3))
    batch, read = task.batch("test", 0, 0, 4), []
    model = toys.build("encoder_decoder", V.size, max_length=80)
    start = model.start
    monkeypatch.setattr(
        model, "start", lambda *sizes, **source: read.append(source) or start(*sizes, **source)
    )
    chosen = objective(task=task, num_beams=num_beams)
    assert len(chosen.generate(model, batch, toys.generators(4))) == 4
    view = chosen.answer_view(batch)
    assert torch.equal(read[0]["source_BS"], view.source_BS)
    assert torch.equal(read[0]["source_valid_BS"], view.source_valid_BS)

    model, first = toys.build("decoder", V.size, max_length=80), []
    step = model.step
    monkeypatch.setattr(model, "step", lambda tokens, *rest: first.append(tokens) or step(tokens, *rest))
    chosen = objective(CausalSeq2Seq, task, num_beams=num_beams)
    chosen.generate(model, batch, toys.generators(4))
    view = chosen.answer_view(batch)
    for row, scored in enumerate(view.weight_BT > 0):
        begun = int(scored.int().argmax()) + 1  # the first target token is predicted behind the separator
        assert first[0][row, :begun].tolist() == view.tokens_BT[row, :begun].tolist()
        assert (first[0][row, begun:] == V.pad).all()


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_perfect_translator_scores_perfectly(num_beams):
    model = Translator(TASK.pairs("test", 0, 0, 12))
    found = measured(model, objective(num_beams=num_beams))
    assert found["bleu"].value == pytest.approx(100)
    assert [found[name].value for name in ("rouge_1", "rouge_2", "rouge_l", "exact_match")] == [1] * 4
    assert found["bits_per_byte"].value == pytest.approx(0, abs=1e-6)
    assert found["bits_per_byte"].likelihood == "conditional"
    assert found["bleu"].likelihood is None
    assert found["bleu"].estimator.endswith(
        "greedy" if num_beams == 1 else "beam search of 3, length penalty 1"
    )
    assert {metric.items for metric in found.values()} == {12}


def test_a_translator_that_mixes_up_pairs_is_not_rewarded():
    """The right texts for the wrong sources: fluent, and scored low."""
    pairs = TASK.pairs("test", 0, 0, 12)
    model = Translator(pairs)
    answers = list(model.known.values())
    model.known = dict(zip(model.known, answers[1:] + answers[:1], strict=True))
    found = measured(model, objective())
    assert found["exact_match"].value == 0
    assert found["bleu"].value < 30
    assert found["bits_per_byte"].value > 10


def test_bits_per_byte_count_the_end_and_divide_by_the_bytes_of_the_target():
    model = toys.uniform_model(V)
    model.start = lambda size, length, **source: DecodingState(lengths=[0] * size, layers=[])
    model.step = lambda tokens_BT, state, valid_BT=None: torch.zeros(*tokens_BT.shape, V.size)
    found = measured(model, objective())["bits_per_byte"]
    lengths = [len(pair.target) for pair in TASK.pairs("test", 0, 0, 12)]
    assert found.value == pytest.approx(math.log2(V.size) * (sum(lengths) + 12) / sum(lengths), rel=1e-6)
    assert found.standard_error > 0


@pytest.mark.parametrize(("form", "name"), [(Seq2Seq, "encoder_decoder"), (CausalSeq2Seq, "decoder")])
def test_evaluation_of_real_backbones_does_not_depend_on_the_batch(form, name):
    task = Pairs(PairsConfig(max_source=60, max_target=12))
    model = toys.build(name, V.size, max_length=task.sequence_length)
    for num_beams in (1, 2):
        values = [
            [m.value for m in measured(model, objective(form, task, num_beams=num_beams), 5, size).values()]
            for size in (1, 3, 5)
        ]
        assert values[0] == pytest.approx(values[1], rel=1e-6)
        assert values[0] == pytest.approx(values[2], rel=1e-6)


@pytest.mark.parametrize("metric", ["bits_per_byte", "bleu", "rouge_l"])
def test_the_metric_of_the_table_comes_first(metric):
    task = Pairs(PairsConfig(max_source=60, max_target=60, metric=metric))
    found = list(measured(Translator(TASK.pairs("test", 0, 0, 4)), objective(task=task), 4))
    assert found[0] == metric
    assert sorted(found) == sorted(["bits_per_byte", "bleu", "rouge_1", "rouge_2", "rouge_l", "exact_match"])


def test_only_tasks_of_pairs_suit():
    assert Seq2Seq.incompatibility(Pairs) is None
    assert "tokens" in Seq2Seq.incompatibility(toys.Symbols)


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="num_beams=0"):
        Seq2SeqConfig(num_beams=0)
