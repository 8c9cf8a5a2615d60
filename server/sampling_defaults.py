"""How tokens are drawn where a request does not say: as the model's makers recommend, or without any restriction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from pydantic import ValidationError

from server.protocol.sampling import GenerationFields


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Values of parameters, named as requests name them."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def recommended(cls, generation_config: Mapping[str, Any]) -> Self:
        """Those in the content of a generation_config.json. Raises ValueError for what no request could ask for."""
        named = {name: generation_config[name] for name in asdict(cls()) if name in generation_config}
        try:
            checked = GenerationFields.model_validate(named)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        return cls(**{name: getattr(checked, name) for name in checked.model_fields_set})

    def of(self, body: GenerationFields) -> dict[str, Any]:
        """The values that count for `body`: its own, and these where it brings none."""
        asked = body.model_fields_set
        return {name: getattr(body, name) if name in asked else value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        usual = asdict(SamplingDefaults())
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items() if value != usual[name])
