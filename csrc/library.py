"""Finds, loads and types the C++ kernels. The structs mirror those of `calls.h`, field by field."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import ClassVar

from torch import Tensor  # loads torch, and with it the OpenMP threads that the kernels share

Address = ctypes.c_void_p
_INT = ctypes.c_int64


class KernelsMissing(Exception):
    """The kernels were not built, or none of them run on this CPU; the message says what to do."""


class PagedCall(ctypes.Structure):
    """The pool and one step's view of the tables, for kernels that read or write rows."""

    _fields_: ClassVar = [
        *[(name, Address) for name in ("keys", "values", "state")],
        *[(name, _INT) for name in ("format", "page_size", "head_dim", "key_bytes", "value_bytes", "state_bytes")],
        *[(name, Address) for name in ("tables", "kept", "starts", "positions", "new_slots", "observed")],
        *[(name, _INT) for name in ("sequences", "lanes", "table_width", "kv_heads", "group", "measure", "window")],
        ("decay", ctypes.c_float),
    ]


class Kernels:
    """The kernels of one instruction set: "avx512", "avx2" or "portable"; by default the best that runs here.

    Tensors must be contiguous, on the CPU, and of the shape and dtype that a method states; only the first is checked.
    They compute in torch's own threads. Raises KernelsMissing.
    """

    def __init__(self, variant: str | None = None) -> None:
        library = _library()
        self._table = library.kernels_find(None if variant is None else variant.encode())
        if not self._table:
            raise KernelsMissing(f"this CPU does not run the {variant} kernels")
        self.variant: str = library.kernels_name(self._table).decode()
        self._attend = library.kernels_attend

    def attend(self, call: PagedCall, layer: int, queries: Tensor, output: Tensor) -> None:
        """Attention of float32 `queries` [T, heads, head_dim] over the rows of `layer`, into `output` of that shape."""
        self._attend(self._table, ctypes.byref(call), layer, address(queries), address(output))


def available_variants() -> list[str]:
    """Variants that run here, the best first. Raises KernelsMissing if none is built."""
    return [name for name in ("avx512", "avx2", "portable") if _library().kernels_find(name.encode())]


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
    signatures = {
        "kernels_find": (Address, [ctypes.c_char_p]),
        "kernels_name": (ctypes.c_char_p, [Address]),
        "kernels_attend": (None, [Address, ctypes.POINTER(PagedCall), _INT, Address, Address]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
