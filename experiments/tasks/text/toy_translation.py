"""Phrases of a small English and their translation into an artificial Romance language.

The translation is a function of the phrase: other words, another order (the object before the
verb, adjectives after nouns, the adverb first), agreement of articles and adjectives with the noun in
gender and number, and of the verb with its subject. A model that only translates word by word scores low.

About 41 million phrases exist, so test phrases hardly ever occur in training.

Shapes: B examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import bits
from archbench.experiments.runtime.seeds import stream

T = TypeVar("T")


class Noun(NamedTuple):
    """A noun: English singular and plural, translation without its ending, gender (``o`` or ``a``)."""

    singular: str
    plural: str
    stem: str
    gender: str


class Verb(NamedTuple):
    """A verb: English third person singular and plural of the present, past; stem of its translation."""

    singular: str
    plural: str
    past: str
    stem: str


NOUNS = tuple(
    Noun(*entry.split())
    for entry in (
        "dog dogs kan o", "cat cats mint a", "child children pik o", "woman women dorn a",
        "man men varr o", "teacher teachers lekt a", "friend friends amel o", "horse horses tregg o",
        "bird birds alu a", "frog frogs gren o", "house houses dom a", "tree trees arb o",
        "book books libb o", "letter letters skrip a", "river rivers fluv a", "stone stones pett a",
    )
)  # fmt: skip
ADJECTIVES = {
    "": "", "big": "grand", "small": "tin", "old": "vej", "young": "nov", "red": "rosk", "white": "blan",
    "quiet": "sil", "happy": "lett", "strange": "estr",
}  # fmt: skip
VERBS = tuple(
    Verb(*entry.split())
    for entry in (
        "sees see saw vid", "finds find found trov", "loves love loved ammir", "follows follow followed segu",
        "forgets forget forgot oblid", "calls call called klam", "carries carry carried port",
        "hears hear heard aud", "paints paint painted ping", "wants want wanted vel",
    )
)  # fmt: skip
ADVERBS = {"": "", "today": "oj", "often": "sovent", "quickly": "presti", "in silence": "in silu"}

ARTICLES = {("the", "o"): "el", ("the", "a"): "ela", ("a", "o"): "un", ("a", "a"): "una"}


class NounPhrase(NamedTuple):
    """An article (``the`` or ``a``), an adjective or none, a noun, and its number."""

    article: str
    adjective: str
    noun: Noun
    plural: bool

    def english(self) -> str:
        article = "some" if self.article == "a" and self.plural else self.article
        if article == "a" and (self.adjective or self.noun.singular)[0] in "aeiou":
            article = "an"
        noun = self.noun.plural if self.plural else self.noun.singular
        return _join(article, self.adjective, noun)

    def translation(self) -> str:
        plural_ending = "s" if self.plural else ""
        stems = (self.noun.stem, ADJECTIVES[self.adjective])
        words = [stem + self.noun.gender + plural_ending for stem in stems if stem]
        return _join(ARTICLES[self.article, self.noun.gender] + plural_ending, *words)


class Phrase(NamedTuple):
    """Who does what to whom, and how."""

    subject: NounPhrase
    verb: Verb
    past: bool
    object: NounPhrase
    adverb: str

    def english(self) -> str:
        present = self.verb.plural if self.subject.plural else self.verb.singular
        verb = self.verb.past if self.past else present
        return _join(self.subject.english(), verb, self.object.english(), self.adverb)

    def translation(self) -> str:
        ending = ("i" if self.past else "a") + ("n" if self.subject.plural else "")
        words = (self.subject.translation(), self.object.translation(), self.verb.stem + ending)
        return _join(ADVERBS[self.adverb], *words)


def phrases(seed: int, split: str, index_B: NDArray[np.int64]) -> list[Phrase]:
    """Phrases ``index_B`` of a split: each a pure function of seed, split and index."""
    # Eleven random 64-bit integers for each phrase; every choice is equally likely.
    return [
        Phrase(
            subject=_noun_phrase(draws[0:4]),
            verb=_pick(VERBS, draws[4]),
            past=_pick((False, True), draws[5]),
            object=_noun_phrase(draws[6:10]),
            adverb=_pick(tuple(ADVERBS), draws[10]),
        )
        for draws in bits(stream(seed, split, "phrases"), index_B, 11).tolist()
    ]


def _noun_phrase(draws: list[int]) -> NounPhrase:
    return NounPhrase(
        article=_pick(("the", "a"), draws[0]),
        adjective=_pick(tuple(ADJECTIVES), draws[1]),
        noun=_pick(NOUNS, draws[2]),
        plural=_pick((False, True), draws[3]),
    )


def _pick(options: Sequence[T], draw: int) -> T:
    return options[(draw >> 32) * len(options) >> 32]


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)
