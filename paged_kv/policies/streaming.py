"""StreamingLLM (Xiao et al., arXiv 2309.17453): attention sinks and the newest rows, nothing between."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paged_kv.policy import Policy, ScoreView


@dataclass(frozen=True, slots=True)
class Streaming(Policy):
    """The newer, the better; the driver protects the sinks."""

    def score(self, view: ScoreView) -> Tensor:
        """See `Policy.score`."""
        return -view.age.float()


POLICY = Streaming()
