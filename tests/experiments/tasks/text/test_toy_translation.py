import numpy as np

from archbench.experiments.tasks.text.toy_translation import (
    ADVERBS,
    NOUNS,
    VERBS,
    NounPhrase,
    Phrase,
    phrases,
)

NOUN = {noun.singular: noun for noun in NOUNS}
VERB = {verb.singular: verb for verb in VERBS}


def test_phrases_translated_by_hand():
    women = NounPhrase(article="a", adjective="old", noun=NOUN["woman"], plural=True)
    book = NounPhrase(article="the", adjective="", noun=NOUN["book"], plural=False)
    phrase = Phrase(subject=women, verb=VERB["finds"], past=True, object=book, adverb="in silence")
    assert phrase.english() == "some old women found the book in silence"
    # adverb, subject (feminine plural, adjective behind), object (masculine), verb (past, plural)
    assert phrase.translation() == "in silu unas dornas vejas el libbo trovin"
    other = Phrase(
        subject=book,
        verb=VERB["sees"],
        past=False,
        object=NounPhrase(article="a", adjective="old", noun=NOUN["dog"], plural=False),
        adverb="",
    )
    assert other.english() == "the book sees an old dog"
    assert other.translation() == "el libbo un kano vejo vida"


def test_the_translation_is_a_function_of_the_english():
    """No phrase of English may mean two things: two that read alike are translated alike."""
    found = {}
    for phrase in phrases(0, "train", np.arange(60_000)):
        assert found.setdefault(phrase.english(), phrase.translation()) == phrase.translation()
    forms = [form for noun in NOUNS for form in (noun.singular, noun.plural)]
    assert len(set(forms)) == len(forms)
    verbs = [form for verb in VERBS for form in verb[:3]]
    assert len(set(verbs)) == len(verbs)
    assert len({noun.stem for noun in NOUNS}) == len(NOUNS)


def test_every_choice_is_equally_likely():
    some = phrases(0, "train", np.arange(32_000))
    counts = np.bincount([NOUNS.index(phrase.object.noun) for phrase in some], minlength=16)
    assert ((counts - 2000) ** 2 / 2000).sum() < 37.7  # 15 degrees of freedom, p = 0.001
    adverbs = np.unique([phrase.adverb for phrase in some], return_counts=True)[1]
    assert len(adverbs) == len(ADVERBS)
    assert ((adverbs - 6400) ** 2 / 6400).sum() < 18.5
    plural = np.array([(phrase.subject.plural, phrase.object.plural) for phrase in some])
    assert abs(np.corrcoef(plural.T)[0, 1]) < 0.03


def test_a_phrase_is_a_function_of_seed_split_and_index():
    together = phrases(3, "train", np.arange(10, 20))
    assert phrases(3, "train", np.array([15])) == [together[5]]
    for seed, split in ((4, "train"), (3, "test")):
        assert phrases(seed, split, np.arange(10, 20)) != together
