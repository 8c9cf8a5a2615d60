"""Rows in 4 bits, with a scale and a zero for each vector; keys are rotated, as few of their channels are large."""

from paged_kv.format import QuantizedFormat

FORMAT = QuantizedFormat(4, rotates_keys=True)
