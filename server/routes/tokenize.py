"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Response
from pydantic_core import to_json

from server.errors import ApiError
from server.json_route import JSONRoute
from server.ports import Tokenizer
from server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from server.services import CurrentServices
from server.serving.models import served_name
from server.serving.prompts import render

router = APIRouter(route_class=JSONRoute)


@router.post("/tokenize", response_class=Response)
async def tokenize(body: TokenizeRequest, services: CurrentServices) -> Response:
    """Ids of a text or of a conversation."""
    served_name(body.model, services.settings)

    def work() -> bytes:
        return to_json(_tokenized(body, services.tokenizer) | {"max_model_len": services.engine.max_model_len})

    return Response(await asyncio.to_thread(work), media_type="application/json")


@router.post("/detokenize", response_class=Response)
async def detokenize(body: DetokenizeRequest, services: CurrentServices) -> Response:
    """The text of ids, special tokens included."""
    served_name(body.model, services.settings)
    vocab_size = services.tokenizer.vocab_size
    if max(body.tokens, default=0) >= vocab_size:
        raise ApiError(f"tokens: token ids run from 0 to {vocab_size - 1} for this model", param="tokens")

    def work() -> bytes:
        return to_json({"prompt": services.tokenizer.decode(body.tokens, skip_special_tokens=False)})

    return Response(await asyncio.to_thread(work), media_type="application/json")


def _tokenized(body: TokenizeRequest, tokenizer: Tokenizer) -> dict[str, Any]:
    if body.prompt is not None:
        ids = tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens)
    else:
        ids = render(tokenizer, body.messages, body)
    names = [tokenizer.token_string(token) for token in ids] if body.return_token_strs else None
    return {"count": len(ids), "tokens": ids, "token_strs": names}
