"""What form an answer must have: OpenAI's response_format and vLLM's structured_outputs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import from_json

from server.protocol.fields import Ignored, Refused, RequestModel
from server.protocol.json_schema import checked_schema

MAX_GRAMMAR_LENGTH = 64 * 1024
MAX_REGEX_LENGTH = 8 * 1024


def _as_schema(value: Any) -> Any:
    """JSON schemas come as objects, and as texts of objects."""
    if not isinstance(value, str):
        return value
    try:
        return from_json(value)
    except ValueError as error:
        raise ValueError(f"is a text, but no JSON: {error}") from None


Schema = Annotated[
    dict[str, Any] | bool,
    BeforeValidator(_as_schema, json_schema_input_type=dict[str, Any] | bool | str),
    AfterValidator(checked_schema),
]
Choices = Annotated[list[Annotated[str, Field(min_length=1, max_length=1024)]], Field(min_length=1, max_length=1024)]


class StructuredOutputs(RequestModel):
    """Exactly one form. `regex` and `choice` stand for the whole answer, `grammar` is Lark's notation or GBNF."""

    json_: Schema | None = Field(default=None, alias="json")
    json_object: bool = False
    regex: Annotated[str, Field(min_length=1, max_length=MAX_REGEX_LENGTH)] | None = None
    choice: Choices | None = None
    grammar: Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_LENGTH)] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: Refused = None
    structural_tag: Refused = None
    whitespace_pattern: Refused = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        forms = [self.json_, self.json_object or None, self.regex, self.choice, self.grammar]
        if sum(form is not None for form in forms) != 1:
            raise ValueError("must hold exactly one of json, json_object, regex, choice and grammar")
        return self


class NamedSchema(RequestModel):
    """A JSON schema with what OpenAI wants beside it. It is always enforced, `strict` or not."""

    name: Annotated[str, Field(max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
    schema_: Schema = Field(default_factory=dict, alias="schema")
    description: Ignored = None
    strict: Ignored = None


class ResponseFormat(RequestModel):
    """Free text, any JSON object, or JSON that a schema describes."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("type json_schema needs the field json_schema beside it")
        return self


class OutputFields(RequestModel):
    """The form of the answer; at most one of both may ask for any."""

    response_format: ResponseFormat = Field(default_factory=lambda: ResponseFormat(type="text"))
    structured_outputs: StructuredOutputs | None = None

    @field_validator("structured_outputs")
    @classmethod
    def _not_twice(cls, value: StructuredOutputs, info: ValidationInfo) -> StructuredOutputs:
        asked = info.data.get("response_format")
        if asked is not None and asked.type != "text":
            raise ValueError("response_format says already what form the answer has; remove one of both")
        return value

    @property
    def has_form(self) -> bool:
        """Whether the answer must be something else than free text."""
        return self.response_format.type != "text" or self.structured_outputs is not None
