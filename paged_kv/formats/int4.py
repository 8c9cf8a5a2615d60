"""Rows in 4 bits, each half of a vector with a scale and a zero, in a basis that the pool turns them into."""

from __future__ import annotations

import torch
from torch import Tensor

from paged_kv.format import PageFormat

_HALF_STEP = 32  # numbers of the two halves whose codes are packed together
_NOTCHES = 4  # scales that are tried, from the one that spans all numbers downwards
_LARGEST_SCALE = 254  # 255 is no number
_EXPONENT = 110  # of the smallest scale, as in float32
_ZEROS = ((-128, 127), (-64, 63))  # bounds of the zeros of the halves, in halves of a step
_FARTHEST = 31.0  # steps that either half's zero reaches


class HalvesFormat(PageFormat):
    """Number j of a vector in the low bits of byte j, number j + head_dim / 2 in its high bits: 4 and 4, or 5 and 3.

    Then come the scales of both halves, with 5 bits of exponent and 3 of mantissa, and their zeros in halves of a step:
    number = (code + zero / 2) * scale. The highest bit of the last byte tells that codes have 5 and 3 bits. Scale and
    zero are those of a few whose sum of squared errors is least; it is summed in whole numbers, so that every order of
    summing finds the same.
    """

    dtype = torch.uint8
    head_dim_step = _HALF_STEP
    turns_rows = True
    fresh_rows = 32

    def width(self, head_dim: int) -> int:
        """See `PageFormat.width`."""
        return head_dim // 2 + 4

    def encode(self, vectors: Tensor) -> Tensor:
        """See `PageFormat.encode`."""
        return self._encode(vectors, 4)

    def encode_uneven(self, vectors: Tensor) -> Tensor:
        """See `PageFormat.encode_uneven`."""
        return self._encode(vectors, 5)

    def _encode(self, vectors: Tensor, low_bits: int) -> Tensor:
        halves = vectors.float().chunk(2, dim=-1)
        codes, scales, zeros = zip(
            *(
                _round(half, 2**bits - 1, *ends)
                for half, bits, ends in zip(halves, (low_bits, 8 - low_bits), _ZEROS, strict=True)
            ),
            strict=True,
        )
        packed = codes[0] | codes[1] << low_bits
        marked = zeros[1] & 127 | (128 if low_bits == 5 else 0)
        return torch.cat((packed, *scales, zeros[0], marked), dim=-1).to(torch.uint8)

    def decode(self, stored: Tensor) -> Tensor:
        """See `PageFormat.decode`."""
        packed, scales, first, last = stored.int().split((stored.shape[-1] - 4, 2, 1, 1), dim=-1)
        low_bits = torch.where(last < 128, 4, 5).int()
        zeros = (_signed(first, 8), _signed(last & 127, 7))
        codes = (packed & (1 << low_bits) - 1, packed >> low_bits)
        numbers = []
        for code, scale, zero in zip(codes, _scale(scales).split(1, dim=-1), zeros, strict=True):
            numbers.append(code * scale + zero * 0.5 * scale)
        return torch.cat(numbers, dim=-1)


def _round(numbers: Tensor, levels: int, lowest: int, highest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes int32 [..., n], scale and zero int32 [..., 1] of `numbers` float32 [..., n]."""
    low, high = numbers.amin(dim=-1, keepdim=True), numbers.amax(dim=-1, keepdim=True)
    needed = torch.maximum((high - low) / levels, torch.maximum(high, -low) / _FARTHEST)
    widest = _scale_above(needed)
    best: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    for notch in range(_NOTCHES):
        place = (widest - notch).clamp(min=0)
        scale = _scale(place)
        steps = numbers / scale
        for edge in (low / scale, high / scale - levels):
            zero = (edge * 2).round().clamp(lowest, highest)
            offset = steps - zero * 0.5
            code = offset.round().clamp(0, levels)
            missed = (offset - code) * (scale / _scale(widest) * 64)
            error = (missed * missed).clamp(max=2.0**17).round().sum(dim=-1, keepdim=True)
            found = (code.int(), place, zero.int(), error)
            if best is not None:
                found = _better(best, found)
            best = found
    assert best is not None
    return best[:3]


def _better(
    best: tuple[Tensor, Tensor, Tensor, Tensor], found: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Row by row, what has the smaller error; `best` if both have the same."""
    is_less = found[3] < best[3]
    code, place, zero, error = (torch.where(is_less, new, old) for new, old in zip(found, best, strict=True))
    return code, place, zero, error


def _scale(places: Tensor) -> Tensor:
    """Scales float32 that int32 places stand for."""
    scales = ((places << 20) + (_EXPONENT << 23)).view(torch.float32)
    return torch.where(places > _LARGEST_SCALE, torch.nan, scales)


def _scale_above(numbers: Tensor) -> Tensor:
    """Places of the smallest scales that are no less than float32 `numbers`, or of the largest."""
    bits = numbers.clamp(0, 2.0**15).contiguous().view(torch.int32)
    return ((bits + 0xFFFFF >> 20) - (_EXPONENT << 3)).clamp(0, _LARGEST_SCALE)


def _signed(numbers: Tensor, bits: int) -> Tensor:
    return torch.where(numbers >= 1 << bits - 1, numbers - (1 << bits), numbers)


FORMAT = HalvesFormat()
