"""Conversations: each prompt brings along all that was said before, as chat programs do."""

from __future__ import annotations

from dataclasses import dataclass

from client.flags import flag
from client.lengths import Sized
from client.material import Material
from client.prompts import Prompt, Session
from client.values import real, whole


@dataclass(frozen=True, kw_only=True)
class MultiTurn(Sized):
    """See the module. `--input-len` is the length of what the user says each time."""

    num_turns: int = flag(
        "--num-turns",
        parse=whole(1),
        default=4,
        metavar="N",
        shown="",
        help="prompts in a conversation, of recorded ones at most; default: 4, with sharegpt 1",
    )
    think_time: float = flag(
        "--multi-turn-think-time",
        parse=real(0),
        default=0.0,
        metavar="S",
        shown="0",
        help="mean seconds between an answer and the next prompt, exponential",
    )

    def sessions(self, count: int, material: Material) -> list[Session]:
        """See `Dataset`."""
        return [self._session(material) for _ in range(count)]

    def _session(self, material: Material) -> Session:
        inputs, outputs = self.input_lens(material.rng, self.num_turns), self.output_lens(material.rng, self.num_turns)
        pauses = [0.0, *material.rng.exponential(self.think_time, self.num_turns - 1)]
        turns = zip(inputs, outputs, pauses, strict=True)
        return Session(tuple(Prompt(material.words(i), i, o, pause=float(pause)) for i, o, pause in turns))


DATASET = MultiTurn
