import math

import numpy as np
import pytest
import sacrebleu
from rouge_score.tokenize import tokenize

from archbench.experiments.tasks.text_metrics import ROUGE_TOKENS, bleu, rouge, rouge_tokens, text_metrics

REFERENCES = ["the cat sat on the mat today", "a dog ran over the red hill", "we saw three small birds there"]
TEXTS = ["the cat sat on a mat today", "a dog ran over the hill", "we saw three small birds there"]


def test_bleu_computed_by_hand():
    """One sentence of seven words, the fifth wrong: precisions 6/7, 4/6, 2/5, 1/4; no brevity penalty."""
    value, _, signature = bleu(TEXTS[:1], REFERENCES[:1])
    assert value == pytest.approx(100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25)
    assert "tok:13a" in signature
    assert f"version:{sacrebleu.__version__}" in signature


def test_bleu_is_that_of_the_corpus_and_its_error_leaves_texts_out_in_turn():
    value, error, _ = bleu(TEXTS, REFERENCES)
    assert value == pytest.approx(sacrebleu.corpus_bleu(TEXTS, [REFERENCES]).score)
    without = [
        sacrebleu.corpus_bleu(
            [t for j, t in enumerate(TEXTS) if j != i], [[r for j, r in enumerate(REFERENCES) if j != i]]
        ).score
        for i in range(3)
    ]
    spread = sum((v - np.mean(without)) ** 2 for v in without)
    assert error == pytest.approx(math.sqrt(2 / 3 * spread))


def test_short_texts_pay_for_their_brevity():
    """Four of seven words, all right: every precision is 1 and the penalty exp(1 - 7/4)."""
    assert bleu(["the cat sat on"], REFERENCES[:1])[0] == pytest.approx(100 * math.exp(1 - 7 / 4))


def test_rouge_computed_by_hand():
    """Recall 5/7 and precision 5/6 of words; pairs "a dog dog-ran ran-over over-the": 4 of 6 and of 5."""
    found = rouge(["a dog ran over the hill"], ["a dog ran over the red hill"])
    assert found["rouge_1"][0] == pytest.approx(2 * 6 / (6 + 7))
    assert found["rouge_2"][0] == pytest.approx(2 * 4 / (5 + 6))
    assert found["rouge_l"][0] == pytest.approx(2 * 6 / (6 + 7))
    reversed_order = rouge(["c b a"], ["a b c"])
    assert reversed_order["rouge_1"][0] == 1
    assert reversed_order["rouge_l"][0] == pytest.approx(1 / 3)


def test_every_metric_says_how_it_was_computed():
    found = {m.name: m for m in text_metrics(TEXTS, REFERENCES, "test", "greedy")}
    assert list(found) == ["bleu", "rouge_1", "rouge_2", "rouge_l", "exact_match"]
    assert found["exact_match"].value == pytest.approx(1 / 3)
    assert found["exact_match"].standard_error == pytest.approx(1 / 3)  # sqrt(1/3) / sqrt(3)
    assert found["bleu"].estimator.startswith(
        "sacrebleu nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"
    )
    assert found["rouge_l"].estimator.startswith("rouge-score 0.1")
    assert all(m.estimator.endswith("; greedy") and m.direction == "higher" for m in found.values())
    assert {m.unit for m in found.values()} == {"BLEU", "share"}


def test_nothing_written_scores_zero():
    found = text_metrics(["", ""], ["a b c d", "e f g h"], "test", "greedy")
    assert [m.value for m in found] == [0] * 5
    assert all(math.isfinite(m.standard_error) for m in found)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Кошка, на коврике!", "кошка на коврике"),
        ("Η γάτα κάθεται", "η γάτα κάθεται"),  # noqa: RUF001
        ("猫坐在GPT模型上。", "猫 坐 在 gpt 模 型 上"),
        ("ネコ、2024年", "ネ コ 2024 年"),
        ("القِطَّة على", "القِطَّة على"),
        ("הַחתול יושב", "הַחתול יושב"),
        ("बिल्ली चटाई", "बिल्ली चटाई"),
        ("고양이가 앉아", "고양이가 앉아"),
        ("แมวนั่ง", "แ ม ว นั่ ง"),
        ("ꦄꦏꦱ ᬅᬓ ᥖᥭᥰ", "ꦄ ꦏ ꦱ ᬅ ᬓ ᥖ ᥭ ᥰ"),
        ("H₂O, 5 m² Ⅳ ½", "h₂o 5 m² ⅳ ½"),
        ("ok 👍🏽❤\ufe0f 👩\u200d🚀", "ok 👍🏽 ❤ 👩 🚀"),
        ("⠓⠑⠇⠇⠕⠀⠺⠕", "⠓⠑⠇⠇⠕ ⠺⠕"),
        ("co\u00adop\u200ber\u2060ate a\ufe0fb \u200d\ufeffc\u200e", "cooperate ab c"),
        ("20 °C, Acme™ – €5 → x", "20 c acme 5 x"),  # noqa: RUF001
        ("naïve cafe\u0301", "naïve café"),
        ("می\u200cخواهم", "می\u200cخواهم"),  # noqa: RUF001
    ],
)
def test_rouge_reads_every_script(text, tokens):
    assert rouge_tokens(text) == tokens.split(" ")
    found = rouge([text, text], [text, "other"])
    assert found["rouge_1"].tolist() == found["rouge_l"].tolist() == [1, 0]


def test_rouge_of_text_in_ascii_is_that_of_the_package():
    rng = np.random.default_rng(0)
    texts = ["".join(map(chr, rng.integers(9, 127, size=80))) for _ in range(60)]
    texts += ["Don't stop – it's 10,000 “quoted” words…", *TEXTS]  # noqa: RUF001
    assert [rouge_tokens(text) for text in texts] == [tokenize(text, None) for text in texts]
    metrics = {m.name: m for m in text_metrics(TEXTS, REFERENCES, "test", "greedy")}
    assert ROUGE_TOKENS in metrics["rouge_1"].estimator
