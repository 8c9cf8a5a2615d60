"""Rows in float32."""

import torch

from paged_kv.format import PlainFormat

FORMAT = PlainFormat(torch.float32)
