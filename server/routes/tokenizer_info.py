"""GET /tokenizer_info, for clients that count and cut by themselves."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from server.services import CurrentServices

router = APIRouter()


@router.get("/tokenizer_info")
async def tokenizer_info(services: CurrentServices) -> dict[str, Any]:
    """What the tokenizer is, without its vocabulary."""
    tokenizer = services.tokenizer
    special = {"bos_token": tokenizer.bos_token_id, "eos_token": tokenizer.eos_token_id}
    return {
        **{name: None if token is None else tokenizer.token_string(token) for name, token in special.items()},
        **{f"{name}_id": token for name, token in special.items()},
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": services.engine.max_model_len,
        "chat_template": tokenizer.chat_template,
    }
