"""What is measured about a model once, so that its rows can be judged without looking at attention."""

from __future__ import annotations

from dataclasses import dataclass

from paged_kv.lanes import LaneProfile
from paged_kv.scoring import LinearScorer


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """`scorer` gives a row two scores: logarithms of the weight by which the model would find it again if it had to
    repeat its text, and of the weight that the text after it gives it. `profile`: the rows that each lane needs.
    """

    scorer: LinearScorer
    profile: LaneProfile
