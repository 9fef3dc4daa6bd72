"""Text from Hugging Face folders: that of their own library, whatever tokenizer, settings and padding."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers as hf

from archbench.experiments.objectives.decoding.stops import read_stops
from archbench.experiments.run.model_files import folder_tokenizer
from archbench.experiments.runtime.errors import ConfigError, DataError
from tests.architectures.pretrained.folders import (
    DECODERS,
    ENCODER_DECODERS,
    ENCODERS,
    make_folder,
    write_json,
)
from tests.experiments.folder_texts import chats, ours, quoted, theirs
from tests.tiers import fast_only

PROMPTS = ["the cat", "a dog ran to the house", "<|im_start|>user the  added"]
FULL = pytest.mark.full


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a family, made once."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = make_folder(name, tmp_path_factory.mktemp("folders") / name)
        return made[name]

    return folder


ALL = [*DECODERS, *ENCODER_DECODERS]


@pytest.mark.parametrize("name", fast_only(ALL, ["qwen2", "t5"]))
def test_greedy_text_is_that_of_their_library(name: str, folders: Any) -> None:
    """As a padded batch; alone with a penalty, and n-grams that must not repeat."""
    folder = folders(name)
    expected = theirs(folder, PROMPTS, max_new_tokens=12)
    assert ours(folder, quoted(PROMPTS), "max_tokens=12") == expected
    if name != "bart":  # its random decoder repeats one token, whatever it is asked
        assert len(set(expected)) == len(PROMPTS)
    words = ("sampling.repetition_penalty=1.3", "constraints.no_repeat_ngram_size=2")
    limits = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "max_new_tokens": 12}
    alone = PROMPTS[[*ALL].index(name) % len(PROMPTS)]
    assert ours(folder, f"prompt='{alone}'", "max_tokens=12", *words) == theirs(folder, [alone], **limits)


BEAMS: list[tuple[int, float, Any, int]] = [
    (3, 1.0, False, 0),
    (4, 2.0, True, 2),
    (3, 0.5, "never", 3),
    (2, -1.0, False, 0),
]
"""Beams, length penalty, early stopping and n-grams that must not repeat."""
STATES = ("gpt2", "mamba", "jamba", "t5", "bart", "llama")
"""Families whose decoding states differ in kind: each takes some of ``BEAMS``, each of those two families."""


@FULL
@pytest.mark.parametrize(
    ("name", "beams"), [(name, BEAMS[(i + more) % 4]) for more in (0, 1) for i, name in enumerate(STATES)][:8]
)
def test_beam_search_is_theirs(name: str, beams: tuple[int, float, Any, int], tmp_path: Path) -> None:
    """The settings are read from generation_config.json, with many tokens that end a text."""
    num_beams, length_penalty, early_stopping, ngram = beams
    settings = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "early_stopping": early_stopping,
        "no_repeat_ngram_size": ngram,
        "max_new_tokens": 14,
    }
    folder = make_folder(name, tmp_path / name, **settings)
    ends = [*range(40, 60), hf.AutoTokenizer.from_pretrained(folder).eos_token_id]
    write_json(folder / "generation_config.json", eos_token_id=ends)
    expected = theirs(folder, PROMPTS, **settings)
    assert ours(folder, quoted(PROMPTS)) == expected


@pytest.mark.parametrize("name", fast_only(["llama", "bart"], ["llama"]))
def test_stops_and_settings_are_those_of_the_folder(name: str, folders: Any, tmp_path: Path) -> None:
    whole = theirs(folders(name), PROMPTS[:1], skip=name != "bart")[0]
    tokenizer = hf.AutoTokenizer.from_pretrained(folders(name))
    ids = tokenizer(whole, add_special_tokens=False).input_ids
    folder = make_folder(name, tmp_path / name, max_new_tokens=12)
    write_json(folder / "generation_config.json", eos_token_id=[ids[5], ids[9]])
    words = f"prompt='{PROMPTS[0]}'"
    expected = theirs(folder, PROMPTS[:1], max_new_tokens=12)
    assert ours(folder, words) == expected
    assert len(expected[0]) < len(theirs(folders(name), PROMPTS[:1])[0])
    # Text of several tokens, and of one, and the name of a special token.
    piece = max(re.findall(r"[a-z]{2,5}", whole[:-3]), key=len)
    expected = theirs(folders(name), PROMPTS[:1], stop_strings=[piece])
    found = ours(folders(name), words, "max_tokens=16", f"stop=[eos,{hydra_text(piece)}]")
    assert found == expected
    ours(folder, words, "stop=['<s>','<|im_end|>']", "max_tokens=4")
    write_json(folder / "generation_config.json", min_new_tokens=8, suppress_tokens=ids[:2])
    assert ours(folder, words) == theirs(folder, PROMPTS[:1], max_new_tokens=12)


def hydra_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


@pytest.mark.parametrize("name", fast_only(["qwen2", "llama"], ["qwen2"]))
@pytest.mark.parametrize("place", ["file", "settings"])
def test_a_conversation_is_rendered_by_the_chat_template(
    name: str, place: str, folders: Any, tmp_path: Path
) -> None:
    folder = make_folder(name, tmp_path / name)
    template = folder / "chat_template.jinja"
    if place == "settings":
        write_json(folder / "tokenizer_config.json", chat_template=template.read_text())
        template.unlink()
    messages = [{"role": "system", "content": "be kind "}, {"role": "user", "content": "the cat, and <a>"}]
    expected = chats(folder, messages, max_new_tokens=12)
    words = "messages=[{role: system, content: 'be kind '}, {role: user, content: 'the cat, and <a>'}]"
    assert ours(folder, words, "max_tokens=12") == [expected]
    with pytest.raises(ConfigError, match="must have a role and a content"):
        ours(folder, "messages=[{role: user}]")
    with pytest.raises(ConfigError, match="messages: 'hello' must be a list"):
        ours(folder, "messages=hello")
    template.write_text("{{ 1 + 'a' }}")
    with pytest.raises(ConfigError, match=r"the chat template of .* refuses them: unsupported operand"):
        ours(folder, words)
    write_json(folder / "tokenizer_config.json", chat_template=None)
    template.unlink(missing_ok=True)
    with pytest.raises(DataError, match=r"it has no chat template \(chat_template.jinja\): give prompt=TEXT"):
        ours(folder, words)


def test_text_that_ends_a_text_may_be_within_a_token(folders: Any) -> None:
    tokenizer = folder_tokenizer(folders("qwen2"))
    assert len(tokenizer.encode(" cat")) == 1
    stop = read_stops(["cat", "<|im_end|>"], tokenizer)
    assert (stop.texts, len(stop.tokens)) == (("cat",), 1)


@FULL
def test_tokens_that_a_decoder_must_begin_or_end_with(folders: Any, tmp_path: Path) -> None:
    folder = make_folder("bart", tmp_path / "bart")
    write_json(folder / "generation_config.json", forced_bos_token_id=77, forced_eos_token_id=2, max_length=9)
    limits = {"max_new_tokens": None, "max_length": 9}
    assert ours(folder, quoted(PROMPTS)) == theirs(folder, PROMPTS, **limits)
    beams = {"num_beams": 3, **limits}
    assert ours(folder, quoted(PROMPTS), "beam.num_beams=3") == theirs(folder, PROMPTS, **beams)
    word = "constraints.forced_bos_token_id=88"
    assert ours(folder, quoted(PROMPTS), word) == theirs(folder, PROMPTS, forced_bos_token_id=88, **limits)


def test_settings_without_counterpart_are_refused(folders: Any, tmp_path: Path) -> None:
    folder = make_folder("gpt2", tmp_path / "gpt2")
    write_json(folder / "generation_config.json", typical_p=0.9)
    with pytest.raises(ConfigError, match=r"generation_config.json: typical_p=0.9 is not supported"):
        ours(folder, "prompt=x")


DAMAGED = [
    ({"eos_token_id": "x"}, "eos_token_id='x' must be the id of a token, or a list of them"),
    ({"eos_token_id": [[1]]}, r"eos_token_id=\[\[1\]\] must be the id of a token"),
    ({"suppress_tokens": [1.5]}, r"suppress_tokens=\[1.5\] must be the id of a token"),
    ({"max_new_tokens": "9"}, "max_new_tokens='9' must be a whole number from 1 to 2147483647"),
    ({"max_new_tokens": None, "max_length": 10**30}, "max_length=1000+ must be a whole number"),
    ({"num_beams": True}, "num_beams=True must be a whole number"),
    ({"temperature": [1]}, r"temperature=\[1\] must be a number"),
    ({"top_p": float("nan")}, "top_p=nan must be a number"),
    ({"do_sample": 1}, "do_sample=1 must be true or false"),
    ({"early_stopping": {}}, "early_stopping={} must be true, false or 'never'"),
]


@pytest.mark.parametrize(("values", "message"), DAMAGED)
def test_damaged_settings_are_refused(values: Any, message: str, folders: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders("qwen2"), tmp_path / "qwen2"))
    write_json(folder / "generation_config.json", **values)
    with pytest.raises((ConfigError, DataError), match=message):
        ours(folder, "prompt=x")


@pytest.mark.parametrize("ids", [-1, 10**9, [10**30], []])
def test_ids_that_no_token_has_end_nothing(ids: Any, folders: Any, tmp_path: Path) -> None:
    """Older files mean no token by -1."""
    folder = Path(shutil.copytree(folders("qwen2"), tmp_path / "qwen2"))
    file = folder / "generation_config.json"
    write_json(file, eos_token_id=ids, suppress_tokens=ids, begin_suppress_tokens=ids)
    expected = ours(folders("qwen2"), "prompt='the cat'", "max_tokens=6")
    assert ours(folder, "prompt='the cat'", "max_tokens=6") == expected


LIMITED = {"gpt2": 80, "bart": 80, "bert": 80, "roberta": 78}
"""Families with tables of positions, and how many they have."""


@pytest.mark.parametrize("name", fast_only([*LIMITED], ["gpt2"]))
def test_a_text_ends_where_positions_end(name: str, folders: Any) -> None:
    """Without a limit of the person's; one that does not fit is an error, and so is such a prompt."""
    folder, limit = folders(name), LIMITED[name]
    tokenizer = folder_tokenizer(folder)
    tokens = tokenizer.encode("the cat") if name in ENCODERS else tokenizer.encode_prompt("the cat")
    read = 1 if name == "bart" else len(tokens)
    most = limit - read + (0 if name in ENCODERS else 1)
    whole = ours(folder, "prompt='the cat'", "stop=[]")
    assert ours(folder, "prompt='the cat'", "stop=[]", f"max_tokens={most}") == whole
    with pytest.raises(ConfigError, match=f"max_tokens={most + 1}: .*, {most} behind the prompt: set it"):
        ours(folder, "prompt='the cat'", f"max_tokens={most + 1}")
    with pytest.raises(ConfigError, match=r"prompt: \d+ tokens.*: shorten it"):
        ours(folder, f"prompt='{'a dog ran ' * 60}'", "max_tokens=2")
