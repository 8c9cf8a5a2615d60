"""Text to token ids and back, and chats to token ids."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from models.chat_guard import BREAK, ChatGuard
from models.errors import ChatTemplateError, ModelError
from models.token_bytes import TokenBytes

# Tokenizer classes that are their tokenizer.json and nothing else.
_PLAIN_CLASSES = frozenset({"PreTrainedTokenizerFast", "TokenizersBackend"})

_RESERVED = frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) | {
    "messages",
    *PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES,
}

# What a template, which is a program, can end with beside its own errors.
_TEMPLATE_FAILURES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Tokenizer:
    """A model's tokenizer and chat template. All methods may be called from several threads at once.

    `vocab_size`: ids from 0 up to it are valid. `special_ids`: ids left out by `decode`. `strips_leading_space`:
    a space before the first byte of a whole text belongs to the tokenizer, not to the text (SentencePiece).
    """

    @classmethod
    def from_folder(cls, folder: Path, chat_template: str | None = None) -> Tokenizer:
        """Read the tokenizer files of a model folder; `chat_template` replaces the model's. Raises ModelError."""
        return cls(_load(folder), chat_template)

    def __init__(self, pretrained: PreTrainedTokenizerBase, chat_template: str | None = None) -> None:
        self._pretrained = pretrained
        self._chat_template = chat_template
        self._backend = pretrained.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._bytes = TokenBytes(self._backend)
        added = self._backend.get_added_tokens_decoder()
        self.vocab_size: int = self._bytes.size
        self.eos_token_id: int | None = pretrained.eos_token_id
        self.bos_token_id: int | None = pretrained.bos_token_id
        self.special_ids: frozenset[int] = frozenset(index for index, token in added.items() if token.special)
        self.strips_leading_space: bool = self._bytes.strips_leading_space
        # Some vocabularies forget to flag their control tokens, but all spell them alike.
        self._guard = ChatGuard(
            token.content
            for token in added.values()
            if token.special or (token.content.startswith("<|") and token.content.endswith("|>"))
        )

    @property
    def chat_template(self) -> str | None:
        """The template that chats are rendered with; of several that a model has, the one named `default`."""
        if self._chat_template is not None:
            return self._chat_template
        template: str | Mapping[str, str] | None = self._pretrained.chat_template
        return template.get("default") if isinstance(template, Mapping) else template

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text; special tokens spelled in it become themselves. A lone surrogate counts as U+FFFD."""
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids: their joined bytes as UTF-8, with U+FFFD for what is not, no spaces cleaned up."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        text = b"".join(self._bytes[token] for token in ids if token not in skipped).decode(errors="replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; a part of a character in some. Added tokens give their spelling."""
        return self._bytes[token]

    def token_string(self, token: int) -> str:
        """The token as its vocabulary spells it."""
        return self._bytes.piece(token)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Ids of a chat. All special tokens in it, BOS too, are the template's: those in messages are plain text.

        `tools`: JSON schemas of functions, for templates that know of them. Templates run in transformers' immutable
        sandbox. Raises ChatTemplateError with the template's own sentence.
        """
        template = chat_template or self.chat_template
        if template is None:
            raise ChatTemplateError("this model has no chat template: start the server with --chat-template")
        extra = dict(template_kwargs or {})
        if reserved := sorted(_RESERVED & extra.keys()):
            raise ChatTemplateError(f"template arguments may not be named {', '.join(reserved)}")
        try:
            chat: str = self._pretrained.apply_chat_template(
                self._guard.guard(messages),
                chat_template=template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tokenize=False,
                tools=self._guard.guard(tools) or None,
                **self._guard.guard(extra),
            )
        except TemplateSyntaxError as error:
            raise ChatTemplateError(f"chat template, line {error.lineno}: {error.message}") from error
        except TemplateError as error:
            raise ChatTemplateError(str(error)) from error
        except _TEMPLATE_FAILURES as error:
            raise ChatTemplateError(f"the chat cannot be rendered: {error}") from error
        first, *rest = chat.split(BREAK)
        return self.encode(first, add_special_tokens=False) + [i for text in rest for i in self._encode_next(text)]

    def _encode_next(self, text: str) -> list[int]:
        """Ids of a text that follows other text, hence without the space that some tokenizers put in front."""
        if self.strips_leading_space:
            lead = self.encode("\n", add_special_tokens=False)
            ids = self.encode("\n" + text, add_special_tokens=False)
            if ids[: len(lead)] == lead:
                return ids[len(lead) :]
        return self.encode(text, add_special_tokens=False)


def _load(folder: Path) -> PreTrainedTokenizerBase:
    try:
        loader = _loader(folder)
        tokenizer = loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise ModelError(f"{folder} has no tokenizer that can be read: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(f"{folder} has a {type(tokenizer).__name__}, which has no fast form (tokenizer.json)")
    return tokenizer


def _loader(folder: Path) -> Any:
    config = folder / "tokenizer_config.json"
    described = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    if (folder / "tokenizer.json").is_file() and described.get("tokenizer_class") in _PLAIN_CLASSES:
        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer  # knows every class there is, and takes seconds to import them

    return AutoTokenizer
