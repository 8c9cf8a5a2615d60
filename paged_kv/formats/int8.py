"""Rows in 8 bits, with a scale and a zero for each vector."""

from paged_kv.format import QuantizedFormat

FORMAT = QuantizedFormat()
