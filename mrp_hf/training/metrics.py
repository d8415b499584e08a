"""How much of the backbone's change under a reveal the head explains, per lookahead step."""

from torch import Tensor


def lookahead_metrics(sums: Tensor) -> dict[str, float]:
    """`kl_before_k`, `kl_after_k` (means per position) and `residual_explained_k` = 1 - after / before, k from 1.

    Args:
        sums (`Tensor` of shape (K, 3)): supervised positions, KL(B_k ‖ A) and KL(B_k ‖ A + C_1 + … + C_k) over them.

    A step without supervised positions has no entries, one without any change to explain no `residual_explained_k`.
    """
    metrics = {}
    for k, (count, before, after) in enumerate(sums.tolist(), start=1):
        if count > 0:
            metrics[f"kl_before_{k}"] = before / count
            metrics[f"kl_after_{k}"] = after / count
            if before > 0:
                metrics[f"residual_explained_{k}"] = 1 - after / before
    return metrics
