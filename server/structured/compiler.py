"""Compiles grammars away from the event loop, within limits of size and time, and remembers the latest."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from server.errors import ApiError
from server.ports import Tokenizer
from server.structured.constraint import MatcherGrammar, mask_of, problem_of
from server.structured.forms import Form

_MOST_SECONDS = 1.0
_REMEMBERED = 32


class GrammarCompiler:
    """Owns the latest grammars, and two threads: one compiles, the other works masks out. For the event loop."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = tuple(eos_token_ids)
        self._vocabulary: LLTokenizer | None = None
        self._known: OrderedDict[str, MatcherGrammar] = OrderedDict()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        self._masks = ThreadPoolExecutor(max_workers=1, thread_name_prefix="masks")

    @property
    def num_remembered(self) -> int:
        """Grammars that need not be compiled again."""
        return len(self._known)

    async def compile(self, form: Form) -> MatcherGrammar:
        """Raises ApiError, naming the field, for a grammar that is wrong, unsupported or too complex."""
        if form.grammar in self._known:
            self._known.move_to_end(form.grammar)
            return self._known[form.grammar]
        grammar = await asyncio.get_running_loop().run_in_executor(self._thread, self._compiled, form)
        self._known[form.grammar] = grammar
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return grammar

    def close(self) -> None:
        """Let the threads end, once no constraint is in use. What is being compiled is not waited for."""
        for thread in (self._thread, self._masks):
            thread.shutdown(wait=False, cancel_futures=True)

    def _compiled(self, form: Form) -> MatcherGrammar:
        if not self._eos_token_ids:
            raise ApiError(f"{form.param}: this model has no end token, so no form can be required", param=form.param)
        if self._vocabulary is None:
            self._vocabulary = _vocabulary(self._tokenizer, self._eos_token_ids)
        began = time.monotonic()
        matcher = LLMatcher(self._vocabulary, form.grammar, log_level=0, limits=_limits())
        problem = problem_of(matcher)
        if not problem:
            matcher.deep_copy().compute_bitmask()  # warms what copies share
            first = matcher.deep_copy()
            first_mask = mask_of(first)
            problem = problem_of(first)
        if not problem and time.monotonic() - began > _MOST_SECONDS:
            problem = "this is too complex"
        if problem:
            raise ApiError(f"{form.param}: {problem}", param=form.param, code="unsupported_grammar")
        return MatcherGrammar(matcher, self._masks, first_mask)


def _limits() -> LLParserLimits:
    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


class _Spellings:
    """The tokenizer as llguidance wants to see it."""

    def __init__(self, tokenizer: Tokenizer, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        decoded = text if isinstance(text, str) else text.decode(errors="replace")
        return self._tokenizer.encode(decoded, add_special_tokens=False)


def _vocabulary(tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> LLTokenizer:
    spellings = TokenizerWrapper(_Spellings(tokenizer, eos_token_ids[0]))
    return LLTokenizer(spellings, n_vocab=tokenizer.vocab_size, eos_token=list(eos_token_ids))
