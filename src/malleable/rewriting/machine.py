"""What the machine can do, in numbers: all that rewriting and `jit` know of hardware, and of XLA.

    stream(machine=replace(Machine.current(), block=1 << 22))     # with a number of your own

Each number has a unit, the benchmark that it is from, and the month in which that ran. Those from
`rewriting` and `selective_form` are by hand, until no row of the benchmark gained more.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, get_type_hints

import jax

# (unit, `python -m benchmarks.` what, when): on an AMD EPYC of two cores, float32
Bytes = Annotated[int, "bytes", "rewriting", "2026-11"]
Elements = Annotated[float, "elements", "rewriting", "2026-11"]
Rows = Annotated[int, "rows", "rewriting", "2026-11"]
Steps = Annotated[int, "steps", "rewriting", "2026-11"]
Equations = Annotated[int, "equations", "rewriting", "2026-11"]
Starts = Annotated[int, "kernel starts", "rewriting", "2026-11"]
Fact = Annotated[bool, "yes or no", "rewriting", "2026-11"]
CacheBytes = Annotated[int, "bytes", "machine", "2026-11"]
Seconds = Annotated[float, "s", "machine", "2026-11"]
Bandwidth = Annotated[float, "bytes per s", "machine", "2026-11"]
CallSeconds = Annotated[float, "s", "dispatch", "2026-11"]
PadSeconds = Annotated[float, "s", "selective_fits", "2026-11"]
PadTimes = Annotated[float, "times", "selective_fits", "2026-11"]
RegionSeconds = Annotated[float, "s", "selective_form", "2026-11"]


@dataclass(frozen=True)
class Price:
    """Of an equation on one core: of a call of NumPy, then per unit of work in NumPy and in XLA."""

    call: RegionSeconds
    numpy: RegionSeconds
    xla: RegionSeconds


@dataclass(frozen=True)
class Engines:
    """What a call of XLA and of NumPy takes on the CPU, for `jit`."""

    call: CallSeconds = 15e-6  # of XLA
    bucket: PadSeconds = 2e-4  # to pad, and to cut the result
    padded: PadTimes = 1.25  # what a masked program does more
    small: RegionSeconds = 1e-4  # of NumPy: compiling takes 0.1 s, never won back in 1,000 calls
    step: Price = Price(0, 1e-6, 1e-6)  # of a loop
    view: Price = Price(4e-7, 0, 0)
    cheap: Price = Price(1e-6, 4e-10, 2e-10)  # per number it makes
    transcendental: Price = Price(1.5e-6, 4e-9, 1.5e-9)  # per number
    reduction: Price = Price(4e-6, 4e-10, 3e-10)  # per number it reads
    scanned: Price = Price(4e-6, 2e-9, 3e-9)  # a running sum, per number
    sort: Price = Price(4e-6, 3e-9, 8e-9)  # per comparison, n * log2(n)
    read: Price = Price(8e-6, 4e-9, 2e-9)  # a gather, per number
    write: Price = Price(2e-5, 2e-8, 5e-9)  # a scatter, per number of the updates
    dot: Price = Price(3e-6, 5e-11, 3e-11)  # per operation
    solve: Price = Price(2e-5, 5e-10, 5e-10)  # a factorization, per operation
    window: Price = Price(3e-5, 1e-9, 2e-10)  # a convolution or a sliding window, per operation
    bits: Price = Price(1.5e-4, 2e-8, 5e-9)  # random bits, per number


@dataclass(frozen=True)
class Machine:
    """The numbers by which push, stream and `jit` decide; those of the CPU by default.

    >>> with decided_for(Machine(block_rows=7)), decided_for(None):
    ...     print(Machine.current().block_rows, Machine.current().table()[0])
    7 core_cache: 1048576 bytes (benchmarks.machine, 2026-11)
    """

    core_cache: CacheBytes = 1 << 20  # of one core: to stack what fits is free
    shared_cache: CacheBytes = 1 << 24  # of all cores, about
    bandwidth: Bandwidth = 1e10  # of one core
    kernel_start: Seconds = 2.5e-7  # of one kernel in a loop

    # values and blocks of them
    large: Bytes = 1 << 22  # a value from here on is worth streaming
    stacked: Bytes = 12 << 20  # worth pushing, where steps take no time and stack short slices
    moments: Bytes = 1 << 23  # stacked, up to which the gradient of moments is as written
    block: Bytes = 1 << 21  # of its widest value: a gradient has two or three at a time
    block_rows: Rows = 128  # up to here a block may be twice as large: few are shared out badly
    shared_block: Bytes = 1 << 17  # from here on each thread gets a part of a block
    product_rows: Rows = 256  # that a product with the largest matrices needs for full speed
    product_matrix: Elements = 1 << 14  # from here on a product wants more rows

    # slices: what a step of a scan stacks or reduces
    vector_slice: Bytes = 1 << 8  # up to here to add it takes longer than to stack it
    wide_slice: Bytes = 1 << 10  # from here on what makes it should not run twice
    narrow_slice: Bytes = 1 << 11  # too small to do more with in each step than to add it
    short_slice: Bytes = 1 << 12  # up to here a kernel of its own takes longer than the work
    deferred_slice: Bytes = 1 << 14  # up to here it is added as it is, and reduced after the loop
    inner_steps: Steps = 8  # that a loop within a step is worth
    chunks: Steps = 40  # that a scan is left with, at least
    slow_pace: Steps = 4  # where a reduction should take more at once, it is not pushed alone
    scaled_starts: Starts = 8  # to correct a provisional softmax
    power_starts: Starts = 16  # to correct a provisional variance

    # what XLA makes one kernel of, and compiles in no time
    fused_equations: Equations = 64  # and operands
    fused_row: Elements = 64  # of a row that is reduced, at least
    fused_left: Elements = 1 << 10  # of a row that is left, at most
    product_flop: Steps = 16  # multiplications, which take longer than to write a number
    # XLA:CPU of 0.10 sums leading dims 4 to 40 times as slowly where that leaves more
    summed_columns: Elements = 1 << 14 if jax.__version_info__ < (0, 12) else math.inf
    terms: Elements = 32  # of a short dim that become terms; half where each is a reduction
    term_equations: Equations = 256  # that they may take: more take XLA seconds to compile
    tail_equations: Equations = 32  # that follow a block and are taken into it
    slow_places: Elements = 8  # from here on `argmax` is slower than a `max` and a search
    shares_caches: Fact = True  # the devices of a mesh do, as those of one CPU
    repeats_cotangents: Fact = True  # XLA works out what one is made of for each of its uses

    engines: Engines = Engines()

    @classmethod
    def current(cls) -> "Machine":
        """The machine to decide for: the one asked for, else that of JAX's default backend."""
        asked = _asked.get()
        return BACKENDS.get(jax.default_backend(), GPU) if asked is None else asked

    def shared_by(self, devices: int) -> "Machine":
        """What one of several devices of a mesh has of it: of the caches, and of two cores.

        >>> Machine().shared_by(8).block
        524288
        """
        if not self.shares_caches or devices < 2:
            return self
        cache = max(self.core_cache, self.shared_cache // devices)
        return replace(
            self,
            shared_cache=cache,
            block=min(self.block, cache // 4),  # a gradient has two or three at a time
            moments=self.moments // devices,
            product_rows=self.product_rows // 2,
        )

    def table(self) -> list[str]:
        """Each number in a line: its value, its unit, the benchmark, and when that ran."""
        return [
            f"{name}: {getattr(part, name)} {unit[0]} (benchmarks.{unit[1]}, {unit[2]})"
            for part in (self, self.engines)
            for name, hint in get_type_hints(type(part), include_extras=True).items()
            if (unit := getattr(hint, "__metadata__", None))
        ]


CPU = Machine()
# What is known of XLA:CPU only; no other number was measured there: they are those of the CPU.
GPU = TPU = replace(
    CPU,
    slow_places=math.inf,
    summed_columns=math.inf,
    repeats_cotangents=False,
    shares_caches=False,
)
BACKENDS = {"cpu": CPU, "gpu": GPU, "tpu": TPU}

_asked: contextvars.ContextVar[Machine | None] = contextvars.ContextVar("machine", default=None)


@contextlib.contextmanager
def decided_for(machine: Machine | None) -> Iterator[None]:
    """Decide for this machine in here; None: for the one that it was."""
    token = _asked.set(_asked.get() if machine is None else machine)
    try:
        yield
    finally:
        _asked.reset(token)
