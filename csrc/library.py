"""Finds, loads and types the C++ kernels. The structs mirror those of `calls.h`, field by field."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, ClassVar

import torch  # comes first, and with it the OpenMP library, whose number of threads the kernels follow
from torch import Tensor

Address = ctypes.c_void_p
_INT = ctypes.c_int64


class KernelsMissing(Exception):
    """The kernels were not built, or none of them run on this CPU; the message says what to do."""


class PagedCall(ctypes.Structure):
    """The pool and one step's view of the tables, for kernels that read or write rows."""

    _fields_: ClassVar = [
        *[(name, Address) for name in ("keys", "values", "state")],
        *[(name, _INT) for name in ("format", "page_size", "head_dim", "key_bytes", "value_bytes", "state_bytes")],
        *[(name, Address) for name in ("tables", "slots", "kept", "starts", "positions", "new_slots", "observed")],
        *[(name, Address) for name in ("key_basis", "query_basis", "value_basis", "output_basis")],
        *[(name, _INT) for name in ("basis_lanes", "uneven")],
        *[(name, Address) for name in ("fresh_keys", "fresh_values", "new_keys", "new_values")],
        *[(name, _INT) for name in ("fresh_rows", "fresh_bytes")],
        *[(name, _INT) for name in ("sequences", "lanes", "table_width", "kv_heads", "group")],
        *[(name, _INT) for name in ("measure", "window", "sums")],
        ("decay", ctypes.c_float),
        *[(name, Address) for name in ("score_weights", "score_bias")],
        ("scores", _INT),
    ]


class RotaryCall(ctypes.Structure):
    """Cosines and sines of one step's positions, float32 [T, head_dim / 2] each; null for a model without RoPE."""

    _fields_: ClassVar = [("cosine", Address), ("sine", Address)]


class LinearCall(ctypes.Structure):
    """A linear layer with packed weights, and what is done before and after it."""

    _fields_: ClassVar = [
        *[(name, Address) for name in ("weights", "bias", "norm")],
        *[(name, _INT) for name in ("n", "k", "bits", "gated", "accumulate", "rows")],
        ("eps", ctypes.c_float),
    ]


class Kernels:
    """The kernels of one instruction set: "amx", "avx512", "avx2" or "portable"; by default the best that runs here.

    Tensors must be contiguous, on the CPU, and of the shape and dtype that a method states; only the first is checked.
    They compute in as many threads as torch does, and may be called from several. Raises KernelsMissing.
    """

    def __init__(self, variant: str | None = None) -> None:
        library = _library()
        self._table = library.kernels_find(None if variant is None else variant.encode())
        if not self._table:
            raise KernelsMissing(f"this CPU does not run the {variant} kernels")
        self.variant: str = library.kernels_name(self._table).decode()
        self._append = library.kernels_append
        self._attend = library.kernels_attend
        self._linear = library.kernels_linear
        self._argmax = library.kernels_argmax

    def append(self, call: PagedCall, layer: int, rotary: RotaryCall, fused: Tensor, queries: Tensor) -> None:
        """Rotate and store new rows of `layer` from float32 `fused` [T, (heads + 2 * kv_heads) * head_dim].

        `queries` float32 [T, heads, head_dim] receives the rotated queries.
        """
        self._append(self._table, ctypes.byref(call), layer, ctypes.byref(rotary), address(fused), address(queries))

    def attend(self, call: PagedCall, layer: int, queries: Tensor, output: Tensor) -> None:
        """Attention of float32 `queries` [T, heads, head_dim] over the rows of `layer`, into `output` of that shape."""
        self._attend(self._table, ctypes.byref(call), layer, address(queries), address(output))

    def linear(self, call: LinearCall, x: Tensor, out: Tensor) -> None:
        """`call` on float32 `x` [rows, k], or [rows, 2 * k] if it is gated, into float32 `out` [rows, n]."""
        self._linear(self._table, ctypes.byref(call), address(x), address(out))

    def argmax(self, x: Tensor) -> Tensor:
        """Of float32 rows [N, n], each row without gaps: the index of the largest number, int64 [N].

        The first of equals; NaN counts as the least. -1 where nothing is above minus infinity.
        """
        best = torch.empty(x.shape[0], dtype=torch.int64)
        assert x.stride(1) == 1, "kernels read rows without gaps"
        self._argmax(self._table, x.data_ptr(), x.shape[0], x.stride(0), x.shape[1], address(best))
        return best


def pack(weight: Tensor) -> tuple[Tensor, int]:
    """Float32 weights [n, k], k a multiple of 32, as uint8 in the tiles that `Kernels.linear` reads, and their bits.

    4 bits if the weights lie on 16 levels in every group of 32 along k, as those of a GGUF file in Q4 do; else 8, with
    each group's largest on level 127. Raises KernelsMissing.
    """
    library = _library()
    n, k = weight.shape
    packed = torch.empty(library.kernels_packed_bytes(n, k, 4), dtype=torch.uint8)
    if library.kernels_pack_exactly(address(weight), n, k, address(packed)):
        return packed, 4
    packed = torch.empty(library.kernels_packed_bytes(n, k, 8), dtype=torch.uint8)
    library.kernels_pack_rounded(address(weight), n, k, address(packed))
    return packed, 8


def move_rows(plane: Tensor, sources: Tensor, targets: Tensor, counts: Tensor) -> None:
    """Copy rows of `plane` [rows, width] from `sources` to `targets`, int64 [n], those of a lane in their order.

    `counts` int64 [lanes]: how many of the n are each lane's; lanes have no rows in common. Raises KernelsMissing.
    """
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    width = plane.shape[1] * plane.element_size()
    _library().kernels_move_rows(
        address(plane), width, address(sources), address(targets), address(starts), counts.numel()
    )


def available_variants() -> list[str]:
    """Variants that run here, the best first. Raises KernelsMissing if none is built."""
    return [name for name in ("amx", "avx512", "avx2", "portable") if _library().kernels_find(name.encode())]


def address(tensor: Tensor) -> int:
    """Where the numbers of a contiguous tensor lie."""
    assert tensor.is_contiguous(), "kernels read contiguous tensors only"
    return tensor.data_ptr()


@cache
def _library() -> ctypes.CDLL:
    folder = Path(__file__).parent
    found = [path for suffix in EXTENSION_SUFFIXES if (path := folder / f"kernels{suffix}").exists()]
    if not found:
        raise KernelsMissing("the C++ kernels are not built: install a C++ compiler, then run `make` again")
    library = ctypes.CDLL(str(found[0]))
    paged: list[Any] = [Address, ctypes.POINTER(PagedCall), _INT]
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "kernels_find": (Address, [ctypes.c_char_p]),
        "kernels_name": (ctypes.c_char_p, [Address]),
        "kernels_append": (None, [*paged, ctypes.POINTER(RotaryCall), Address, Address]),
        "kernels_attend": (None, [*paged, Address, Address]),
        "kernels_linear": (None, [Address, ctypes.POINTER(LinearCall), Address, Address]),
        "kernels_argmax": (None, [Address, Address, _INT, _INT, _INT, Address]),
        "kernels_move_rows": (None, [Address, _INT, Address, Address, Address, _INT]),
        "kernels_packed_bytes": (_INT, [_INT, _INT, _INT]),
        "kernels_pack_exactly": (_INT, [Address, _INT, _INT, Address]),
        "kernels_pack_rounded": (None, [Address, _INT, _INT, Address]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
