"""How a check speaks: ✓ with how close, ✗ with what is probably wrong, ◌ when nothing was attempted."""

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor


class Wrong(Exception):
    """An answer that is not right, with what is probably wrong about it."""


def exercise(check: Callable[[Callable], str]) -> Callable[[Callable], bool]:
    """Make a check of a function that returns praise or raises Wrong; the student sees a sentence, never a traceback of ours."""

    @functools.wraps(check)
    def run(answer: Callable) -> bool:
        name = check.__name__.removeprefix("check_")
        try:
            print(f"✓ {name}  {check(answer)}")
            return True
        except NotImplementedError:
            print(f"◌ {name}  not attempted yet: replace `raise NotImplementedError` and run both cells again.")
        except Wrong as wrong:
            print(f"✗ {name}  {wrong}")
        except Exception as error:
            print(f"✗ {name}  your function raised {type(error).__name__}: {error}")
        return False

    return run


def compare(answer: object, target: Tensor, mistakes: Mapping[str, Tensor], given: str, tolerance: float = 1e-8) -> str:
    """Praise an answer that equals the target, else say which known mistake gives just this. `given` describes the input."""
    got = torch.as_tensor(answer).double() if isinstance(answer, int | float | Tensor) else None
    if got is None:
        raise Wrong(f"return a {'number' if target.ndim == 0 else 'tensor'}; you returned {type(answer).__name__}.")
    for mistake, value in mistakes.items():
        if same(got, value, tolerance) and not same(value, target, tolerance):
            raise Wrong(mistake)
    if got.shape != target.shape:
        raise Wrong(f"the shape should be {list(target.shape)} and is {list(got.shape)}, for {given}.")
    if not same(got, target, tolerance):
        raise Wrong(describe(got, target, given))
    return f"largest difference {largest_difference(got, target):.0e}"


def same(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return a.shape == b.shape and largest_difference(a, b) <= tolerance


def largest_difference(a: Tensor, b: Tensor) -> float:
    """0 where both are equal, infinities too."""
    return torch.where(a == b, 0.0, (a - b).abs()).nan_to_num(nan=float("inf")).max().item()


def describe(got: Tensor, target: Tensor, given: str) -> str:
    """Where the answer is furthest from the target."""
    gap = torch.where(got == target, 0.0, (got - target).abs()).nan_to_num(nan=float("inf"))
    where = tuple(index.item() for index in torch.unravel_index(gap.argmax(), gap.shape))
    place = f" at {list(where)}" if where else ""
    return f"{given}: expected {target[where].item():.4f}{place}, got {got[where].item():.4f}."
