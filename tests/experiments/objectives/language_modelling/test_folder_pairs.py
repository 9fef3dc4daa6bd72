"""Fine-tuning of Hugging Face encoder-decoders on pairs: read, written and scored as there."""

from pathlib import Path

import pytest
import torch
import transformers as hf

from archbench.architectures.pretrained import load_folder
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.objectives.language_modelling.seq2seq import Seq2Seq, Seq2SeqConfig
from archbench.experiments.tasks.text.text_pairs import Pairs, PairsConfig
from tests.architectures.pretrained.folders import EAGER, make_folder


def objective(folder: Path, max_target: int = 30) -> Seq2Seq:
    tokenizer = TokenizerConfig(kind="folder", path=str(folder), post_processing=[])
    task = Pairs(PairsConfig(tokenizer=tokenizer, num_sentinels=0, max_source=70, max_target=max_target))
    return Seq2Seq(Seq2SeqConfig(), task)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_the_loss_of_pairs_is_theirs(name: str, tmp_path: Path) -> None:
    """Both libraries take the texts of a batch; BART's begin token stands before source and target."""
    folder = make_folder(name, tmp_path / name)
    chosen = objective(folder, max_target=70)
    pairs = chosen.task.pairs("train", 0, 0, 5)
    view = chosen.view(chosen.task.batch("train", 0, 0, 5), torch.Generator())
    tokenizer = hf.AutoTokenizer.from_pretrained(folder, padding_side="right")
    inputs = tokenizer([p.source for p in pairs], padding=True, return_tensors="pt")
    labels = tokenizer(text_target=[p.target for p in pairs], padding=True, return_tensors="pt").input_ids
    assert torch.equal(view.source_BS, inputs.input_ids)
    assert torch.equal(view.target_BT, labels)
    theirs = hf.AutoModelForSeq2SeqLM.from_pretrained(folder, **EAGER).eval()
    ours = load_folder(folder).eval()
    keys = {"input_ids": inputs.input_ids, "attention_mask": inputs.attention_mask}
    with torch.no_grad():
        expected = theirs(**keys, labels=labels.masked_fill(labels == tokenizer.pad_token_id, -100)).loss
        total, count = chosen.loss(view.run(ours), view)
    assert total / count == pytest.approx(expected.item(), rel=1e-5)


def test_what_is_generated_from_is_what_was_trained_on(tmp_path: Path) -> None:
    folder = make_folder("bart", tmp_path / "bart")
    chosen, model = objective(folder), load_folder(folder).eval()
    source = chosen.task.pairs("test", 0, 0, 1)[0].source
    start = chosen.prefill_state(model, [chosen.task.encode(source)], 3)
    view = chosen.answer_view(chosen.task.batch("test", 0, 0, 1))
    with torch.no_grad():
        found = model.step(start.unread_BT, start.state)
        expected = view.run(model).logits_BTV
    torch.testing.assert_close(found[:, -1], expected[:, 0], atol=1e-4, rtol=1e-4)


def test_a_target_that_is_cut_has_no_end(tmp_path: Path) -> None:
    chosen = objective(make_folder("bart", tmp_path / "bart"), max_target=4)
    view = chosen.answer_view(chosen.task.batch("train", 0, 0, 3))
    assert (view.target_BT[:, 0] == chosen.vocabulary.bos).all()
    assert view.target_BT.shape[1] == 5
    assert (view.target_BT != chosen.vocabulary.eos).all()
