"""Where two trees part ways: the innermost nodes that differ, with their paths."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax

from malleable.inspection.advice.evidence.wording import is_leaf, kind


@dataclass(frozen=True)
class Difference:
    """One place in two trees: path of keys, and what stands there in each."""

    path: str
    left: Any
    right: Any

    @property
    def keys(self) -> tuple[list, list]:
        """The keys that only the left, and only the right has, if both are dicts."""
        if isinstance(self.left, dict) and isinstance(self.right, dict):
            only_left = [k for k in self.left if k not in self.right]
            return only_left, [k for k in self.right if k not in self.left]
        return [], []

    def says(self, left: str, right: str) -> str:
        """`a` is a tuple of 2 and `b` is a tuple of 3, in words, for the names of the trees."""
        only_left, only_right = self.keys
        parts = [f"`{left}{self.path}[{k!r}]` has no partner in `{right}`" for k in only_left]
        parts += [f"`{right}{self.path}[{k!r}]` has no partner in `{left}`" for k in only_right]
        if parts:
            return "; ".join(parts)
        one, other = kind(self.left), kind(self.right)
        return f"`{left}{self.path}` is {one}, but `{right}{self.path}` is {other}"


def differences(left: Any, right: Any, *, prefix: bool = False, path: str = "") -> Iterator:
    """Every Difference of two trees. prefix: a leaf or None on the left fits anything."""
    if prefix and (left is None or is_leaf(left)):
        return
    if is_leaf(left) and is_leaf(right):
        return
    if type(left) is not type(right) or is_leaf(left) or is_leaf(right):
        yield Difference(path, left, right)
        return
    pairs, others = children(left), children(right)
    if [k for k, _ in pairs] != [k for k, _ in others]:
        yield Difference(path, left, right)
        if not isinstance(left, dict):
            return
    known = dict(others)
    for key, child in pairs:
        if key in known:
            yield from differences(child, known[key], prefix=prefix, path=path + key)


def differ(one: Any, other: Any) -> bool:
    """Whether two types are of another shape or dtype."""
    return tuple(one.shape) != tuple(other.shape) or one.dtype != other.dtype


def children(tree: Any) -> list[tuple[str, Any]]:
    """(key, child) of a container, the key as it is written after the container's name."""
    if tree is None:
        return []
    if isinstance(tree, dict):
        return [(f"[{k!r}]", tree[k]) for k in tree]
    if hasattr(tree, "_fields"):
        return [(f".{name}", getattr(tree, name)) for name in tree._fields]
    if isinstance(tree, list | tuple):
        return [(f"[{i}]", child) for i, child in enumerate(tree)]
    top = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)[0]
    return [(jax.tree_util.keystr(keys), child) for keys, child in top]
