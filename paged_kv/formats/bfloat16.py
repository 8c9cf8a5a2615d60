"""Rows in bfloat16."""

import torch

from paged_kv.format import PlainFormat

FORMAT = PlainFormat(torch.bfloat16)
