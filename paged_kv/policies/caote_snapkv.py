"""CAOTE (Goel et al., arXiv 2504.14051) over SnapKV: the attention of a row, weighed by its value."""

from paged_kv.policies.snapkv import POLICY as BASE
from paged_kv.value_weighting import ValueWeighted

POLICY = ValueWeighted(BASE)
