import random

from mrp_hf.demo.task import Split, make_problem, problems, read_answer, split_of, steps_are_valid

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def test_a_problem_is_a_pure_function_of_its_number() -> None:
    random.seed(1)
    first = make_problem("test", 0, 17)
    random.seed(2)
    assert make_problem("test", 0, 17) == first == problems("test", 18)[17]
    assert first != make_problem("test", 1, 17)
    # Written out, because a change of the generator would silently change what every figure was measured on.
    assert first.question == "tom has 27 coins. 29 come from school. 31 come from school. what is the total?"
    assert first.answer == (
        "we count coins. the sum of 29 and 31 is 60. adding 60 to 27 gives 87. the answer is 87. #### 87"
    )


def test_splits_share_no_terms() -> None:
    terms = {split: {tuple(sorted(p.terms)) for p in problems(split, 2000)} for split in SPLITS}
    assert all(split_of(t) == split for split in SPLITS for t in terms[split])
    assert not terms["train"] & terms["test"]
    assert not terms["train"] & terms["validation"]
    assert not terms["validation"] & terms["test"]


def test_split_does_not_depend_on_the_order_of_terms() -> None:
    assert all(split_of(p.terms) == split_of(p.terms[::-1]) for p in problems("train", 50))


def test_every_reference_answer_is_right() -> None:
    for problem in problems("test", 500):
        assert read_answer(problem.answer) == problem.total < 100
        assert steps_are_valid(problem.answer, problem.terms)
        assert all(str(term) in problem.question for term in problem.terms)


def test_the_same_problem_is_told_in_many_ways() -> None:
    told = [p.answer for p in problems("train", 500)]
    assert len(set(told)) > 490
