"""What clients get, to the key."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic, which describes these to clients, needs it below Python 3.12

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]


class ErrorObject(TypedDict):
    """What went wrong, and where in the body."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(TypedDict):
    """The body of every answer that is no success."""

    error: ErrorObject


class AnthropicErrorObject(TypedDict):
    """What went wrong."""

    type: str
    message: str


class AnthropicError(TypedDict):
    """The same on the routes of Anthropic's API."""

    type: Literal["error"]
    error: AnthropicErrorObject
    request_id: str | None


class KVCacheUsage(TypedDict):
    """What the request's sequences held at their end, summed over all choices; rows are a mean over lanes."""

    rows_kept: float
    rows_evicted: float
    preemptions: int


class PromptTokensDetails(TypedDict):
    """`cached_tokens` of the prompt were found in the prefix cache and not computed again."""

    cached_tokens: int


class Usage(TypedDict):
    """Tokens as the text has them, whatever was evicted: each prompt counts once, every choice's tokens count."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    kv_cache: KVCacheUsage


class CompletionLogprobs(TypedDict):
    """One entry per token. Joined, `tokens` give the text; a token that adds no text of its own is empty there."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(TypedDict):
    """A token at one place of a prompt; `rank` 1 is the likeliest."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = dict[str, PromptLogprob]


class CompletionChoice(TypedDict):
    """A choice, or what is new of it in a stream. `stop_reason`: the stop string or stop token id that ended it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    prompt_token_ids: NotRequired[list[int]]
    token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[list[PromptLogprobs | None] | None]


class Completion(TypedDict):
    """The answer, or one chunk of it."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class TopLogprob(TypedDict):
    """A token at one place. `bytes`: what it adds to the text, a part of a character maybe, nothing if hidden."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TopLogprob):
    """A drawn token and its rivals, best first."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """One entry per token."""

    content: list[ChatTokenLogprob]
    refusal: None


class FunctionCall(TypedDict):
    """`arguments`: the text of a JSON object."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call that the model asks for."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(TypedDict):
    """The whole answer of a choice; `content` is null if there are calls and nothing else."""

    role: str
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    """A finished choice. `stop_reason`: the stop string or stop token id that ended it."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: str | int | None
    token_ids: NotRequired[list[int]]


class ChatCompletion(TypedDict):
    """The answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[list[PromptLogprobs | None] | None]


class ChatDelta(TypedDict, total=False):
    """What is new: the role once, then text and calls: their ids and names once, then more of their arguments."""

    role: str
    content: str
    tool_calls: list[dict[str, Any]]


class ChatChunkChoice(TypedDict):
    """What is new of a choice. The finish reason is on its last chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]


class ChatChunk(TypedDict):
    """One chunk of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]
    prompt_token_ids: NotRequired[list[int]]
