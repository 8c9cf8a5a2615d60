"""Turns prompts into ids, off the event loop, and refuses what cannot fit before any work is spent on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from server.choice_text import Echo, Piece, TokenBytes
from server.detokenizer import Detokenizer
from server.errors import ApiError
from server.ports import Tokenizer
from server.protocol.chat import ChatMessage, TemplateFields
from server.protocol.completions import Prompt
from server.serving.off_loop import off_loop


class PromptReader:
    """Reads prompts for a context of `max_model_len` tokens."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        longest_token = max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))
        self._max_characters = max_model_len * longest_token

    async def completion(self, prompts: Sequence[Prompt], *, add_special_tokens: bool) -> list[tuple[int, ...]]:
        """The ids of each prompt."""
        for prompt in prompts:
            self._refuse_doomed(prompt)
        size = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
        tokens = await off_loop(size, lambda: [self._ids(prompt, add_special_tokens) for prompt in prompts])
        for ids in tokens:
            self._check_length(len(ids), "prompt")
        return tokens

    async def chat(self, messages: Sequence[ChatMessage], fields: TemplateFields) -> tuple[int, ...]:
        """The ids of a conversation."""
        texts = [part.text for message in messages for part in message.content]
        size = sum(map(len, texts))
        if size > self._max_characters:
            raise self._too_long("messages")
        work = size + 100 * len(messages)  # each costs what some text does
        ids = await off_loop(work, lambda: render(self._tokenizer, messages, fields))
        self._check_length(len(ids), "messages")
        return tuple(ids)

    async def echo(self, prompt: Prompt, ids: Sequence[int]) -> Echo:
        """`prompt` as text."""
        return await off_loop(len(ids), lambda: echo_of(self._tokenizer, prompt, ids))

    def _ids(self, prompt: Prompt, add_special_tokens: bool) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self._tokenizer.encode(prompt, add_special_tokens=add_special_tokens))
        return tuple(prompt)

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


def render(tokenizer: Tokenizer, messages: Sequence[ChatMessage], fields: TemplateFields) -> list[int]:
    """Ids of a conversation, as the chat template writes it."""
    return tokenizer.render_chat(
        [message.for_template() for message in messages],
        add_generation_prompt=fields.opens_a_turn,
        continue_final_message=fields.continue_final_message,
        template_kwargs=fields.chat_template_kwargs,
    )


def echo_of(tokenizer: Tokenizer, prompt: Prompt, ids: Sequence[int]) -> Echo:
    """The text of `ids`, special tokens included. What the tokenizer put in front of a text prompt is left out."""
    token_bytes = TokenBytes(tokenizer, skip_special=False)
    detokenizer = Detokenizer()
    pieces: list[Piece] = []
    for token in ids:
        data = token_bytes[token]
        pieces.append(Piece(token, detokenizer.push(data), data, detokenizer.num_pending))
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
