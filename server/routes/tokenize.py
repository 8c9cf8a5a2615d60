"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter

from server.errors import ApiError
from server.json_route import JSONRoute
from server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from server.services import CurrentServices
from server.serving.models import served_name
from server.serving.prompts import render

router = APIRouter(route_class=JSONRoute)


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, services: CurrentServices) -> dict[str, Any]:
    """Ids of a text or of a conversation."""
    served_name(body.model, services.settings)
    tokenizer = services.tokenizer
    if body.prompt is not None:
        ids = await asyncio.to_thread(tokenizer.encode, body.prompt, add_special_tokens=body.add_special_tokens)
    else:
        ids = await asyncio.to_thread(render, tokenizer, body.messages, body)
    return {
        "count": len(ids),
        "max_model_len": services.engine.max_model_len,
        "tokens": ids,
        "token_strs": [tokenizer.token_string(token) for token in ids] if body.return_token_strs else None,
    }


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, services: CurrentServices) -> dict[str, str]:
    """The text of ids, special tokens included."""
    served_name(body.model, services.settings)
    vocab_size = services.tokenizer.vocab_size
    if max(body.tokens, default=0) >= vocab_size:
        raise ApiError(f"tokens: token ids run from 0 to {vocab_size - 1} for this model", param="tokens")
    text = await asyncio.to_thread(services.tokenizer.decode, body.tokens, skip_special_tokens=False)
    return {"prompt": text}
