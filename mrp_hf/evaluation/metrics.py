"""The demo task's scores as `evaluate` metrics. They are classes to instantiate: nothing is looked up on a hub."""

import datasets
import evaluate

from mrp_hf.demo.task import read_answer, steps_are_valid


class ExactAnswer(evaluate.Metric):
    """The share of texts whose stated answer, the number after ``####``, is the right one.

    >>> ExactAnswer().compute(predictions=["12 + 30 = 42. #### 42"], references=[42])
    {'exact_answer': 1.0}
    """

    def __init__(self) -> None:
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.__doc__ or "",
            citation="",
            inputs_description="predictions: decoded answers. references: the right totals.",
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("int64")}
            ),
        )

    def _compute(self, predictions: list[str], references: list[int]) -> dict[str, float]:
        right = sum(read_answer(text) == total for text, total in zip(predictions, references, strict=True))
        return {"exact_answer": right / len(predictions)}


class StepValidity(evaluate.Metric):
    """The share of texts whose worked steps are all right and lead from the problem's terms to the stated answer.

    >>> StepValidity().compute(predictions=["12 + 30 = 42. #### 42"], references=[[12, 30]])
    {'step_validity': 1.0}
    """

    def __init__(self) -> None:
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.__doc__ or "",
            citation="",
            inputs_description="predictions: decoded answers. references: the terms of each problem.",
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.List(datasets.Value("int64"))}
            ),
        )

    def _compute(self, predictions: list[str], references: list[list[int]]) -> dict[str, float]:
        valid = sum(steps_are_valid(text, terms) for text, terms in zip(predictions, references, strict=True))
        return {"step_validity": valid / len(predictions)}
