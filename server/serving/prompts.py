"""Turns prompts into ids, off the event loop, and refuses what cannot fit before any work is spent on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from server.choice_text import Echo, Piece, TokenBytes
from server.detokenizer import Detokenizer
from server.errors import ApiError
from server.ports import Tokenizer
from server.protocol.chat import ChatMessage, TemplateFields
from server.protocol.completions import Prompt
from server.serving.off_loop import off_loop
from server.tools.events import CallForm
from server.tools.parsers import hermes
from server.tools.prompt import knows_tools, with_tools

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools that a conversation offers, as templates expect them, and how calls are written."""

    tools: tuple[Mapping[str, Any], ...]
    form: CallForm


@dataclass(frozen=True, slots=True)
class Truncation:
    """Which tokens of a long prompt are kept: `length` of them, without those on `side`."""

    length: int
    side: Side = "left"

    def cut(self, tokens: Sequence[int]) -> Sequence[int]:
        """What is left of `tokens`."""
        return tokens[-self.length :] if self.side == "left" else tokens[: self.length]

    def cut_text(self, text: str, most: int) -> str:
        """`text` without what cannot be among the tokens that are kept; `most`: characters that they can have."""
        return text[-most:] if self.side == "left" else text[:most]


class PromptReader:
    """Reads prompts for a context of `max_model_len` tokens."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        longest_token = max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))
        self._max_characters = max_model_len * longest_token

    async def completion(
        self, prompts: Sequence[Prompt], *, add_special_tokens: bool, truncation: Truncation | None = None
    ) -> list[tuple[int, ...]]:
        """The ids of each prompt."""
        if truncation is not None:
            prompts = [self._without_excess(prompt, truncation) for prompt in prompts]
        for prompt in prompts:
            self._refuse_doomed(prompt)
        size = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
        tokens = await off_loop(size, lambda: [self._ids(prompt, add_special_tokens) for prompt in prompts])
        if truncation is not None:
            tokens = [tuple(truncation.cut(ids)) for ids in tokens]
        for ids in tokens:
            self._check_length(len(ids), "prompt")
        return tokens

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        fields: TemplateFields,
        offer: ToolOffer | None = None,
        truncation: Truncation | None = None,
    ) -> tuple[int, ...]:
        """The ids of a conversation in which tools may be on offer."""
        texts = [part.text for message in messages for part in message.content]
        size = sum(map(len, texts))
        if size > self._max_characters:
            raise self._too_long("messages")
        work = size + 100 * len(messages) + (0 if offer is None else 200 * len(offer.tools))  # each costs some text
        ids = await off_loop(work, lambda: render(self._tokenizer, messages, fields, offer))
        if truncation is not None:
            ids = list(truncation.cut(ids))
        self._check_length(len(ids), "messages")
        return tuple(ids)

    async def echo(self, prompt: Prompt, ids: Sequence[int]) -> Echo:
        """`prompt` as text."""
        return await off_loop(len(ids), lambda: echo_of(self._tokenizer, prompt, ids))

    def _ids(self, prompt: Prompt, add_special_tokens: bool) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self._tokenizer.encode(prompt, add_special_tokens=add_special_tokens))
        return tuple(prompt)

    async def bad_words(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """The id sequences that write `words`, at the beginning of a text and after a blank."""

        def encode() -> list[tuple[int, ...]]:
            texts = [prefix + word for word in words for prefix in ("", " ")]
            encoded = [tuple(self._tokenizer.encode(text, add_special_tokens=False)) for text in texts]
            return sorted({ids for ids in encoded if ids})

        return await off_loop(sum(map(len, words)), encode)

    def truncation(self, length: int | None, side: Side, max_tokens: int | None) -> Truncation | None:
        """How to shorten prompts: to `length`, where -1 stands for what leaves room for `max_tokens`."""
        if length != -1:
            return None if length is None else Truncation(length, side)
        return Truncation(self._max_model_len - min(max(1, max_tokens or 1), self._max_model_len - 1), side)

    def _without_excess(self, prompt: Prompt, truncation: Truncation) -> Prompt:
        if isinstance(prompt, str):
            return truncation.cut_text(prompt, self._max_characters)
        return list(truncation.cut(prompt))

    def _refuse_doomed(self, prompt: Prompt) -> None:
        if isinstance(prompt, str):
            if len(prompt) > self._max_characters:
                raise self._too_long("prompt")
        else:
            self._check_length(len(prompt), "prompt")
            if min(prompt) < 0 or max(prompt) >= self._tokenizer.vocab_size:
                vocabulary = self._tokenizer.vocab_size
                raise ApiError(f"prompt: token ids run from 0 to {vocabulary - 1} for this model", param="prompt")

    def _check_length(self, num_tokens: int, param: str) -> None:
        if num_tokens == 0:
            raise ApiError(f"{param}: there is nothing to continue; send at least one token", param=param)
        if num_tokens >= self._max_model_len:
            raise self._too_long(param, num_tokens)

    def _too_long(self, param: str, num_tokens: int | None = None) -> ApiError:
        length = self._max_model_len
        has = f"has {num_tokens}" if num_tokens is not None else f"has more than {length}"
        return ApiError(
            f"This model's maximum context length is {length} tokens, but the prompt {has} tokens; "
            f"shorten it to at most {length - 1} tokens.",
            param=param,
            code="context_length_exceeded",
        )


def render(
    tokenizer: Tokenizer, messages: Sequence[ChatMessage], fields: TemplateFields, offer: ToolOffer | None = None
) -> list[int]:
    """Ids of a conversation, as the chat template writes it; tools stand in the text if the template knows of none."""
    rendered = [message.for_template() for message in messages]
    tools = () if offer is None else offer.tools
    form = hermes.FORM if offer is None else offer.form
    if (tools or any(message.tool_calls for message in messages)) and not knows_tools(tokenizer.chat_template):
        rendered, tools = with_tools(rendered, tools, form), ()
    return tokenizer.render_chat(
        rendered,
        add_generation_prompt=fields.opens_a_turn,
        continue_final_message=fields.continue_final_message,
        template_kwargs=fields.template_variables,
        tools=tools,
    )


def echo_of(tokenizer: Tokenizer, prompt: Prompt, ids: Sequence[int]) -> Echo:
    """The text of `ids`, special tokens included. What the tokenizer put in front of a text prompt is left out."""
    token_bytes = TokenBytes(tokenizer, skip_special=False)
    detokenizer = Detokenizer()
    pieces: list[Piece] = []
    for token in ids:
        data = token_bytes[token]
        pieces.append(Piece(token, detokenizer.push(data), data, detokenizer.num_pending, is_prompt=True))
    text = "".join(piece.text for piece in pieces)
    if isinstance(prompt, str) and text.endswith(prompt):
        pieces = _without_start(pieces, len(text) - len(prompt))
    num_open = detokenizer.num_pending
    return Echo(tuple(pieces), b"".join(piece.data for piece in pieces)[-num_open:] if num_open else b"")


def _without_start(pieces: Sequence[Piece], num_characters: int) -> list[Piece]:
    kept = []
    for piece in pieces:
        hidden = piece.text[:num_characters]
        num_characters -= len(hidden)
        kept.append(replace(piece, text=piece.text[len(hidden) :], data=piece.data[len(hidden.encode()) :]))
    return kept
