import pytest

from mrp_hf.evaluation import ExactAnswer, StepValidity

RIGHT = "12 + 30 = 42. 8 plus 42 is 50. so tom has 50 pens. #### 50"


def test_exact_answer_reads_the_number_behind_the_last_mark() -> None:
    predictions = [RIGHT, "#### 4 #### 5", "the answer is 7.", "####", "#### 50 pens"]
    assert ExactAnswer().compute(predictions=predictions, references=[50, 5, 7, 0, 50]) == {"exact_answer": 3 / 5}


@pytest.mark.parametrize(
    ("text", "terms", "valid"),
    [
        (RIGHT, [12, 30, 8], True),
        (RIGHT, [30, 8, 12], True),
        (RIGHT.replace("42", "43"), [12, 30, 8], False),  # a wrong sum
        ("12 + 30 = 42. #### 42", [12, 30, 8], False),  # a term left out
        ("12 + 12 = 24. #### 24", [12, 30], False),  # a term used twice
        (RIGHT.replace("#### 50", "#### 51"), [12, 30, 8], False),  # right steps, another answer
        ("#### 50", [12, 30, 8], False),
        ("", [12], False),
    ],
)
def test_step_validity_follows_the_terms_to_the_answer(text: str, terms: list[int], valid: bool) -> None:
    assert StepValidity().compute(predictions=[text], references=[terms]) == {"step_validity": float(valid)}


def test_metrics_accumulate_batches_like_any_evaluate_metric() -> None:
    metric = StepValidity()
    metric.add_batch(predictions=[RIGHT], references=[[12, 30, 8]])
    metric.add(prediction="", reference=[1, 2, 3])
    assert metric.compute() == {"step_validity": 0.5}
