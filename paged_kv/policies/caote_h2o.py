"""CAOTE (Goel et al., arXiv 2504.14051) over H2O: the attention of a row, weighed by its value."""

from paged_kv.policies.h2o import POLICY as BASE
from paged_kv.value_weighting import ValueWeighted

POLICY = ValueWeighted(BASE)
