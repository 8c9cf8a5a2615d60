"""Building blocks of request models: strictness, bounded types, and how parameters that do not exist here are met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    model_validator,
)

INT32_MAX = 2**31 - 1
MAX_LOGIT_BIAS = 1024
MAX_TEMPLATE_KWARGS = 16
MAX_TEMPLATE_STRING = 1024


class RequestModel(BaseModel):
    """No type is guessed from another, unknown fields are ignored, null means "not given"."""

    model_config = ConfigDict(strict=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data


@dataclass(frozen=True, slots=True)
class Refusal:
    """Marks a field that would change the answer but cannot be served: values that ask for something are a mistake."""

    advice: str = "remove it"

    def __call__(self, value: Any) -> Any:
        """`value` if it asks for nothing. Raises ValueError."""
        if value not in (None, False, "", [], {}):
            raise ValueError(f"this server does not support this field; {self.advice}")
        return value


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Marks a field that is taken and changes nothing."""


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _token_ids_as_keys(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_LOGIT_BIAS:
        raise ValueError(f"at most {MAX_LOGIT_BIAS} tokens can be biased")
    if not all(key.isascii() and key.isdecimal() and len(key) <= 10 for key in value):
        raise ValueError("the keys must be token ids")
    return {int(key): bias for key, bias in value.items()}


def _kv_budget(value: Any) -> float | int:
    if (type(value) is int and 1 <= value <= INT32_MAX) or (type(value) is float and 0 < value <= 1):
        return value
    raise ValueError("must be the share of rows to keep, above 0.0 and up to 1.0, or a whole number of rows per lane")


def _template_kwargs(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > MAX_TEMPLATE_KWARGS:
        raise ValueError(f"must be an object of at most {MAX_TEMPLATE_KWARGS} template variables")
    for name, item in value.items():
        if not name.isidentifier():
            raise ValueError(f"{name[:40]!r} is no name of a template variable")
        if not isinstance(item, str | bool | int | float | None) or len(str(item)) > MAX_TEMPLATE_STRING:
            raise ValueError(f"{name[:40]!r} must be a short string, a number, true, false or null")
    return value


Count = Annotated[int, Field(ge=0, le=INT32_MAX)]
_REFUSAL = Refusal()
_MOVED = Refusal("send structured_outputs instead")
Refused = Annotated[Any, AfterValidator(_REFUSAL), _REFUSAL]
Moved = Annotated[Any, AfterValidator(_MOVED), _MOVED]
Ignored = Annotated[Any, NoEffect()]
TokenIds = Annotated[list[Count], FailFast()]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
StopStrings = Annotated[
    list[StopString], Field(max_length=16), BeforeValidator(_one_or_many, json_schema_input_type=str | list[str])
]
Bias = Annotated[float, Field(ge=-100, le=100)]
LogitBias = Annotated[dict[int, Bias], BeforeValidator(_token_ids_as_keys, json_schema_input_type=dict[str, float])]
KVBudget = Annotated[float | int, PlainValidator(_kv_budget, json_schema_input_type=float | int)]
TemplateKwargs = Annotated[
    dict[str, Any], PlainValidator(_template_kwargs, json_schema_input_type=dict[str, str | float | bool | None])
]
