"""The demo task: short addition stories with worked answers, generated, never downloaded.

A problem has three or four two-digit terms whose total has two digits. One problem has many right answers: the
terms may be added in any order, each sum may be told in eight ways, with its operands in either order, and the
text around the sums varies too. That is what makes the task a test of *parallel* decoding: tokens that are each
plausible alone are often wrong together.

Problems are a pure function of ``(split, seed, index)``. The split of a problem is decided by its terms alone, so a
held-out problem shares its sums with no training problem, whatever the names and the wording.
"""

import random
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "validation", "test"]

NAMES = ("tom", "ann", "ben", "eva", "leo", "mia", "sam", "zoe")
ITEMS = ("pens", "cards", "shells", "books", "coins", "stamps", "apples", "stones")
GAINS = ("buys", "finds", "wins", "gets", "makes", "picks")
GAIN_SENTENCES = (
    "{name} {gain} {n} more.",
    "then {gain} {n}.",
    "a friend gives {n}.",
    "{n} come from school.",
)
QUESTIONS = ("how many {item} now?", "how many in all?", "what is the total?")
OPENINGS = ("", "let us add.", "we count {item}.", "{name} adds them.")
STEPS = (
    "{a} + {b} = {c}.",
    "{a} plus {b} is {c}.",
    "adding {a} to {b} gives {c}.",
    "{a} and {b} make {c}.",
    "the sum of {a} and {b} is {c}.",
    "we put {a} with {b} and get {c}.",
    "now {a} + {b} is {c}.",
    "take {a} and {b}, that is {c}.",
)
ENDINGS = ("so {name} has {c} {item}.", "the answer is {c}.", "in total {c} {item}.")
ANSWER_MARK = "####"

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Problem:
    """One story: the terms to add, the question, and one of its right answers."""

    terms: tuple[int, ...]
    question: str
    answer: str

    @property
    def total(self) -> int:
        return sum(self.terms)

    @property
    def conversation(self) -> list[dict[str, str]]:
        """Question and answer as chat messages."""
        return [{"role": "user", "content": self.question}, {"role": "assistant", "content": self.answer}]


def split_of(terms: Sequence[int]) -> Split:
    """The split that a multiset of terms belongs to: one in twenty is test, one in twenty validation."""
    bucket = zlib.crc32(" ".join(map(str, sorted(terms))).encode()) % 20
    return "test" if bucket == 0 else "validation" if bucket == 1 else "train"


def _draw_terms(rng: random.Random, split: Split) -> tuple[int, ...]:
    while True:
        count = rng.choice((3, 4))
        terms = tuple(rng.randint(10, 99 // count) for _ in range(count))
        if split_of(terms) == split:
            return terms


def _write_question(rng: random.Random, terms: Sequence[int], name: str, item: str) -> str:
    sentences = [f"{name} has {terms[0]} {item}."]
    for n in terms[1:]:
        sentences.append(rng.choice(GAIN_SENTENCES).format(name=name, gain=rng.choice(GAINS), n=n, item=item))
    sentences.append(rng.choice(QUESTIONS).format(name=name, item=item))
    return " ".join(sentences)


def _write_answer(rng: random.Random, terms: Sequence[int], name: str, item: str) -> str:
    order = rng.sample(list(terms), len(terms))
    sentences = [rng.choice(OPENINGS).format(name=name, item=item)]
    total = order[0]
    for n in order[1:]:
        a, b = rng.sample((total, n), 2)
        total += n
        sentences.append(rng.choice(STEPS).format(a=a, b=b, c=total))
    sentences.append(rng.choice(ENDINGS).format(name=name, item=item, c=total))
    sentences.append(f"{ANSWER_MARK} {total}")
    return " ".join(filter(None, sentences))


def make_problem(split: Split, seed: int, index: int) -> Problem:
    """Problem number `index` of `split`; the same arguments give the same problem on every machine."""
    rng = random.Random(f"{split}/{seed}/{index}")
    terms = _draw_terms(rng, split)
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    return Problem(terms, _write_question(rng, terms, name, item), _write_answer(rng, terms, name, item))


def problems(split: Split, count: int, seed: int = 0) -> list[Problem]:
    """The first `count` problems of `split`."""
    return [make_problem(split, seed, index) for index in range(count)]


def every_text() -> Iterator[str]:
    """Every wording that a problem can contain, once: what the tokenizer's vocabulary is read from."""
    digits = " ".join(f"{n}" for n in range(10)) + " " + " ".join(f"1{n}" for n in range(10))
    yield digits
    templates = (*GAIN_SENTENCES, *QUESTIONS, *OPENINGS, *STEPS, *ENDINGS, "{name} has {n} {item}.", ANSWER_MARK)
    for template in templates:
        yield template.format(name=NAMES[0], item=ITEMS[0], gain=GAINS[0], n=10, a=10, b=10, c=10)
    yield from (*NAMES, *ITEMS, *GAINS)


def read_answer(text: str) -> int | None:
    """The number after the last answer mark, or `None` where there is none."""
    _, mark, tail = text.rpartition(ANSWER_MARK)
    found = _NUMBER.match(tail.strip()) if mark else None
    return int(found.group()) if found else None


def steps_are_valid(text: str, terms: Sequence[int]) -> bool:
    """Whether the worked steps lead from `terms` to the stated answer.

    Every sentence with three numbers is a step ``a, b -> c``: c must be a + b, and a and b must be available, that is
    terms or earlier results that no step has used yet. At the end a single number may be left, and it must be the
    stated answer.
    """
    body, _, _ = text.rpartition(ANSWER_MARK)
    available = Counter(terms)
    for sentence in body.split("."):
        numbers = [int(n) for n in _NUMBER.findall(sentence)]
        if len(numbers) != 3:
            continue
        a, b, c = numbers
        available.subtract((a, b))
        if a + b != c or min(available.values()) < 0:
            return False
        available[c] += 1
    left = list(available.elements())
    return len(left) == 1 and read_answer(text) == left[0]
