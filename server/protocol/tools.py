"""Functions that a model may call: what clients offer, and calls that come back to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator
from pydantic_core import from_json

from server.protocol.fields import Ignored, RequestModel
from server.protocol.json_schema import checked_schema

MAX_TOOLS = 128
FunctionName = Annotated[str, Field(max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]


def _checked_parameters(value: dict[str, Any]) -> dict[str, Any]:
    checked_schema(value)
    if value.get("type", "object") != "object":
        raise ValueError('schema.type must be "object": a function takes its arguments by name')
    return value


class Function(RequestModel):
    """A function: its arguments are the properties of the object that `parameters` describes."""

    name: FunctionName
    description: Annotated[str, Field(max_length=16 * 1024)] = ""
    parameters: Annotated[dict[str, Any], AfterValidator(_checked_parameters)] = Field(default_factory=dict)
    strict: Ignored = None

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """A JSON schema; without parameters, the empty object."""
        return {"type": "object"} | (self.parameters or {"properties": {}, "additionalProperties": False})

    def for_template(self) -> dict[str, Any]:
        """What chat templates expect."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.schema_of_arguments},
        }


class Tool(RequestModel):
    """A function that the model may call."""

    type: Literal["function"]
    function: Function


class FunctionChoice(RequestModel):
    """The name of the one to call."""

    name: FunctionName


class ToolChoice(RequestModel):
    """Whether a call may come, must come, or must be of one function."""

    type: Literal["none", "auto", "required", "function"]
    function: FunctionChoice | None = None

    @model_validator(mode="after")
    def _has_its_name(self) -> Self:
        if self.type == "function" and self.function is None:
            raise ValueError("type function needs the field function beside it")
        return self


def _as_object(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


AnyToolChoice = Annotated[
    ToolChoice,
    BeforeValidator(_as_object, json_schema_input_type=Literal["none", "auto", "required"] | ToolChoice),
]


class CalledFunction(RequestModel):
    """What an earlier turn called. `arguments`: a JSON object as text, as it came."""

    name: FunctionName
    arguments: str = "{}"

    @field_validator("arguments")
    @classmethod
    def _an_object(cls, value: str) -> str:
        try:
            parsed = from_json(value or "{}", allow_inf_nan=False)
        except ValueError as error:
            raise ValueError(f"must be a JSON object as text: {error}") from None
        if not isinstance(parsed, dict):
            raise ValueError("must be a JSON object as text")
        return value or "{}"


class MadeCall(RequestModel):
    """A call in the history of a conversation."""

    type: Literal["function"] = "function"
    id: Annotated[str, Field(max_length=256)] = ""
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """What chat templates expect: they write the arguments themselves."""
        function = {"name": self.function.name, "arguments": from_json(self.function.arguments)}
        return {"id": self.id, "type": self.type, "function": function}


def check_names(tools: Sequence[Tool], choice: ToolChoice | None) -> None:
    """Raises ValueError if two tools share a name, or `choice` asks for one that is not there."""
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise ValueError("two tools have the same name")
    if choice is None:
        return
    if choice.type not in ("none", "auto") and not tools:
        raise ValueError("asks for a call, but there are no tools")
    if choice.function is not None and choice.function.name not in names:
        raise ValueError(f"no tool is called {choice.function.name!r}")
