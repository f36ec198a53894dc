"""How a check speaks: ✓ with how close, ✗ with what is probably wrong, ◌ when nothing was attempted."""

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor


class Wrong(Exception):
    """An answer that is not right, with what is probably wrong about it."""


def exercise(check: Callable[[Callable], str]) -> Callable[[Callable], bool]:
    """Turn a function that returns praise or raises Wrong into a check, which prints one sentence and no traceback."""

    @functools.wraps(check)
    def run(answer: Callable) -> bool:
        name = check.__name__.removeprefix("check_")
        try:
            print(f"✓ {name}  {check(answer)}")
            return True
        except Wrong as wrong:
            print(f"✗ {name}  {wrong}")
        except Exception as error:
            if isinstance(error, NotImplementedError) and not str(error):  # torch raises it too, with a reason
                print(f"◌ {name}  not attempted yet: replace `raise NotImplementedError` and run both cells again.")
            else:
                print(f"✗ {name}  your function raised {type(error).__name__}: {error}")
        return False

    return run


def compare(answer: object, target: Tensor | float, mistakes: Mapping[str, Tensor | float], given: str) -> str:
    """Praise an answer that equals the target, else say which known mistake gives just this. `given` describes the input."""
    target = torch.as_tensor(target, dtype=torch.float64)
    if not isinstance(answer, int | float | Tensor):
        raise Wrong(f"return a {'number' if target.ndim == 0 else 'tensor'}; you returned {type(answer).__name__}.")
    got = torch.as_tensor(answer, dtype=torch.float64).detach()
    for mistake, value in mistakes.items():
        if same(got, torch.as_tensor(value, dtype=torch.float64)):
            raise Wrong(mistake)
    if got.shape != target.shape:
        raise Wrong(f"the shape should be {list(target.shape)} and is {list(got.shape)}, for {given}.")
    if not same(got, target):
        raise Wrong(describe(got, target, given))
    return f"largest difference {gaps(got, target).max():.0e}"


def same(a: Tensor, b: Tensor, tolerance: float = 1e-6) -> bool:
    return a.shape == b.shape and gaps(a, b).max().item() <= tolerance


def gaps(a: Tensor, b: Tensor) -> Tensor:
    """|a − b|; 0 where both are the same infinity, or both are nan."""
    return torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs()).nan_to_num(nan=float("inf"))


def describe(got: Tensor, target: Tensor, given: str) -> str:
    """Where the answer is furthest from the target."""
    gap = gaps(got, target)
    where = tuple(index.item() for index in torch.unravel_index(gap.argmax(), gap.shape))
    place = f" at {list(where)}" if where else ""
    return f"{given}: expected {target[where].item():.4f}{place}, got {got[where].item():.4f}."
