"""Why a model cannot be loaded, or a chat cannot be rendered, in a sentence the reader can act on."""

from __future__ import annotations


class ModelError(Exception):
    """The MODEL argument or what it points to cannot be served. The message says what to change."""


class ChatTemplateError(ValueError):
    """The messages do not fit the chat template, or there is none. The message is fit for the client."""
