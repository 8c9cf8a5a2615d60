"""From sessions to requests."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from client.prompts import Content, Prompt, Session
from client.request import Call
from client.wire import BodyTemplate


def first_calls(sessions: Iterable[Session], template: BodyTemplate, prefix: str = "bench-") -> list[Call]:
    """The request that each session begins with; those after it hang on to it.

    Their ids begin with `prefix`, and no other run has them.
    """
    run = f"{prefix}{secrets.token_hex(8)}"
    return [_call(template, f"{run}-{i}", session.prompts, (), 0) for i, session in enumerate(sessions)]


def _call(
    template: BodyTemplate, request_id: str, prompts: Sequence[Prompt], said: tuple[Content, ...], tokens_said: int
) -> Call:
    """The request for the first of `prompts`, after `said`, which has about `tokens_said` tokens."""
    prompt, *later = prompts
    said = (*said, prompt.content)
    tokens = tokens_said + prompt.input_len

    def follow(answer: str) -> Call:
        return _call(template, f"{request_id}+", later, (*said, answer), tokens + prompt.output_len)

    return Call(
        request_id=request_id,
        body=template.render(said, prompt.output_len),
        prompt_len=tokens,
        expects=prompt.expects,
        pause=prompt.pause,
        then=follow if later else None,
    )
