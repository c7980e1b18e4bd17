"""Real numbers as integers modulo 2^32 or 2^64, whose sums are exact."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FINE = 2.0**-18
"""The largest step with which a mean is off by at most 1.9e-6: half a step a client, by rounding to the nearest."""


@dataclass(frozen=True)
class FixedPoint:
    """Numbers in [-bound, bound] as multiples of ``step``, modulo 2^bits; a sum of so many ``clients`` cannot wrap.

    Args:
        bits: 32 or 64.
        step: the value of 1.
        bound: to which numbers are clipped.

    >>> numbers = FixedPoint.of_sums(clients=20, bound=10.0)
    >>> total = sum(numbers.encoded(np.array([x])) for x in (0.5, -1.25, -7.0))
    >>> numbers.bits, np.round(numbers.decoded(total), 6).tolist()
    (32, [-7.75])
    """

    bits: int
    step: float
    bound: float

    @staticmethod
    def of_sums(clients: int, bound: float, integers: int = 0) -> "FixedPoint":
        """The form for sums of ``clients`` numbers in [-bound, bound], and of integers up to ``integers`` beside them.

        32 bits where they are fine and wide enough, else 64.
        """
        for bits in (32, 64):
            # A thousandth is left for rounding, also that of floating point.
            step = clients * bound / (0.999 * 2.0 ** (bits - 1))
            if bits == 64 or (step <= _FINE and clients * integers < 2**31):
                break
        return FixedPoint(bits, step, bound)

    @property
    def dtype(self) -> np.dtype:
        """The type of encoded numbers, little-endian."""
        return np.dtype(f"<u{self.bits // 8}")

    def encoded(self, values: NDArray[np.float64], *, clipped: bool = True) -> NDArray:
        """The ``values``, ``clipped`` or not, as multiples of the step, rounded to the nearest.

        Numbers that are not clipped may be beyond the bound. Their sum is still exact modulo 2^bits.
        """
        bound = self.bound if clipped else 2.0**62 * self.step
        units = np.rint(np.clip(values, -bound, bound) / self.step)
        return units.astype(np.int64).astype(self.dtype)

    def decoded(self, total: NDArray) -> NDArray[np.float64]:
        """The sum that ``total`` stands for."""
        return total.astype(self.dtype).view(f"<i{self.bits // 8}") * self.step
