"""Running a function of a model under the wrapper that keeps its gradients the same on all processes."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

T = TypeVar("T")


def call_wrapped(wrapper: nn.Module, module: nn.Module, function: Callable[[Any], T], argument: Any) -> T:
    """``function(argument)``, computed inside the `forward` of the `wrapper` around `module`.

    DistributedDataParallel synchronises the gradients of what its `forward` computed, and that calls the module's. The
    objective calls several other methods of the model, so for one call it takes the place of the module's `forward`.
    """
    if wrapper is module:
        return function(argument)
    before = module.__dict__.get("forward")  # mixed precision puts a `forward` on the instance
    module.forward = function
    try:
        return wrapper(argument)
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before
