"""What the generated NumPy code calls for windows that slide over arrays, and for convolutions."""

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from malleable.execution.numpy.runtime import pad


def windows(x, sizes, strides, padding, base, dilation, fill):
    """The windows of x: an array of their places, then of the axes of a window."""
    low, high = zip(*padding, strict=True)
    if any(low) or any(high) or any(b != 1 for b in base):
        x = pad(x, fill, low, high, [b - 1 for b in base])
    reach = [(k - 1) * d + 1 for k, d in zip(sizes, dilation, strict=True)]
    if any(n < r for n, r in zip(x.shape, reach, strict=True)):
        places = [max(0, n - r + 1) for n, r in zip(x.shape, reach, strict=True)]
        return np.empty(
            [-(-n // s) for n, s in zip(places, strides, strict=True)] + list(sizes), x.dtype
        )
    view = sliding_window_view(x, reach)
    steps = [slice(None, None, s) for s in strides] + [slice(None, None, d) for d in dilation]
    return view[tuple(steps)]


def reduce_window(ufunc, x, fill, sizes, strides, padding, base, dilation):
    """ufunc over each window; what is beyond the array is `fill`."""
    view = windows(x, sizes, strides, padding, base, dilation, fill)
    wide = tuple(range(x.ndim, 2 * x.ndim))
    return ufunc.reduce(view, wide, dtype=x.dtype, initial=fill)


def convolve(x, kernel, strides, padding, base, dilation, groups):
    """Sums of products over windows: (n, c, *places), (o, c/groups, *window) -> (n, o, *places)."""
    n, channels, *_ = x.shape
    rank = x.ndim - 2
    view = windows(
        x,
        (1, 1, *kernel.shape[2:]),
        (1, 1, *strides),
        ((0, 0), (0, 0), *padding),
        (1, 1, *base),
        (1, 1, *dilation),
        0,
    )
    places = view.shape[2 : 2 + rank]
    view = view.reshape((n, groups, channels // groups, *places, *kernel.shape[2:]))
    each = kernel.shape[0] // groups
    kernels = kernel.reshape(groups, each, *kernel.shape[1:])
    summed = list(range(3 + rank, 3 + 2 * rank))
    length = math.prod(kernel.shape[1:])
    order = [1, 0, *range(3, 3 + rank), 2, *summed]
    left = view.transpose(order).reshape(groups, n * math.prod(places), length)
    right = kernels.reshape(groups, each, length)
    out = np.matmul(left, right.transpose(0, 2, 1)).reshape(groups, n, *places, each)
    out = np.moveaxis(np.moveaxis(out, -1, 1), 2, 0)  # (n, groups, each, *places)
    return out.reshape(n, groups * each, *places)
