"""The one place where the parts are put together."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from csrc.library import Kernels, KernelsMissing
from models.causal_lm import CausalLM
from models.checkpoint import Checkpoint
from models.config import ModelConfig
from models.key_statistics import usual_statistics
from models.loader import load_model
from models.runner import ModelRunner
from models.source import default_cache_dir, prepare_model
from models.tokenizer import Tokenizer
from paged_kv.backend import AttentionBackend, load_backend
from paged_kv.batch import TableMirror
from paged_kv.eviction import EvictionDriver
from paged_kv.format import load_format
from paged_kv.fresh import FreshRows
from paged_kv.policy import Policy, load_policy
from paged_kv.pool import KVPool
from scheduler.config import SchedulerConfig
from scheduler.engine import AsyncEngine
from scheduler.scheduler import Scheduler
from scheduler.stats import EngineObserver
from server.engine_options import EngineOptions, default_pool_bytes
from server.eviction_options import drivers_of, offered_policies, rules_of, with_policy
from server.launch_error import LaunchError
from server.memory_plan import MemoryPlan, memory_limit, plan_memory
from server.sampling_defaults import SamplingDefaults

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assembly:
    """All that serving needs. `options`: with the choices made that were left to the model or the machine.

    `sampling`: how tokens are drawn where a request does not say. `summary`: lines that tell an operator what will run.
    """

    scheduler: Scheduler
    runner: ModelRunner
    tokenizer: Tokenizer
    options: EngineOptions
    plan: MemoryPlan
    sampling: SamplingDefaults
    summary: tuple[str, ...]

    def engine(self, observer: EngineObserver | None = None, executor: ThreadPoolExecutor | None = None) -> AsyncEngine:
        """An engine over the parts; call it once. `executor`: the thread that assembled them."""
        return AsyncEngine(self.scheduler, self.runner, observer, executor=executor)


def assemble(options: EngineOptions) -> Assembly:
    """Load the model, allocate the pool, and join them. Raises LaunchError, ModelError."""
    checkpoint = Checkpoint(prepare_model(options.model, options.cache_dir or default_cache_dir(), logger.info))
    asked = options
    options, calibration = with_policy(asked, checkpoint)
    policies = offered_policies(options.kv_policy, calibration)
    dtype = torch.bfloat16 if options.dtype == "bfloat16" else torch.float32
    quantize = _quantizes(options)
    model = load_model(checkpoint, dtype, quantize=quantize)
    tokenizer = Tokenizer.from_folder(checkpoint.folder, _chat_template(options))
    backend = _backend(options, model.config)
    options = _settled(options, model.config, backend, policies[options.kv_policy], quantize=quantize)
    pool = _pool(options, model, tokenizer, policies[options.kv_policy])
    drivers = drivers_of(policies, asked, options, model.config.num_kv_heads, calibration, pool.block)
    config = _scheduler_config(options, model.config, checkpoint, pool, drivers)
    mirror = TableMirror(options.max_num_seqs, model.config.num_layers, model.config.num_kv_heads, options.page_size)
    runner = ModelRunner(model, pool, mirror, backend, drivers, tokenizer.vocab_size)
    scheduler = Scheduler(config)
    computes = "8-bit weights and activations" if quantize else options.dtype.replace("auto", "float32")
    more = _summary(options, model.config, scheduler, pool, drivers[options.kv_policy].lanes)
    summary = (f"Linear layers: {computes}; attention: {backend}", *more)
    sampling = _sampling(options, checkpoint)
    if sampling != SamplingDefaults():
        summary = (*summary, f"Requests that do not say: {sampling} (generation_config.json)")
    plan = plan_memory(model, scheduler, _page_bytes(pool))
    return Assembly(scheduler, runner, tokenizer, options, plan, sampling, summary)


def _chat_template(options: EngineOptions) -> str | None:
    if options.chat_template is None:
        return None
    try:
        return options.chat_template.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise LaunchError(f"--chat-template {options.chat_template} cannot be read: {error}") from error


def _sampling(options: EngineOptions, checkpoint: Checkpoint) -> SamplingDefaults:
    if options.generation_config == "none":
        return SamplingDefaults()
    try:
        return SamplingDefaults.recommended(checkpoint.generation_config)
    except ValueError as error:
        raise LaunchError(
            f"generation_config.json of the model: {error}; mend it, or start with --generation-config none"
        ) from error


def _quantizes(options: EngineOptions) -> bool:
    if options.quantization == "none":
        return False
    try:
        Kernels()
    except KernelsMissing as missing:
        if options.quantization == "int8":
            raise LaunchError(f"--quantization int8: {missing}") from missing
        return False
    return True


def _backend(options: EngineOptions, model: ModelConfig) -> AttentionBackend:
    try:
        return load_backend(options.attention_backend, model.head_dim)
    except ValueError as error:
        raise LaunchError(f"--attention-backend: {error}; auto takes one that can") from error


def _settled(
    options: EngineOptions, model: ModelConfig, backend: AttentionBackend, policy: Policy, *, quantize: bool
) -> EngineOptions:
    """With the choices made that are left to model and machine; requests may change policies, so theirs stay open."""
    rows = _row_format(options, model, backend) if options.kv_cache_dtype == "auto" else options.kv_cache_dtype
    return replace(
        options,
        cache_dir=options.cache_dir or default_cache_dir(),
        dtype="bfloat16" if options.dtype == "bfloat16" else "float32",
        quantization="int8" if quantize else "none",
        max_model_len=options.max_model_len or model.max_position,
        kv_cache_memory_bytes=options.kv_cache_memory_bytes or default_pool_bytes(),
        kv_cache_dtype=rows,
        attention_backend=type(backend).__module__.rpartition(".")[2],
        # What attention notes about a row depends on who reads it, so sequences cannot share such rows.
        enable_prefix_caching=options.enable_prefix_caching and policy.observation is None,
    )


def _row_format(options: EngineOptions, model: ModelConfig, backend: AttentionBackend) -> str:
    if options.dtype == "bfloat16":
        return "bfloat16"
    fits = model.head_dim % load_format("int8").head_dim_step == 0
    return "int8" if fits and backend.reads_in_place else "float32"


def _pool(options: EngineOptions, lm: CausalLM, tokenizer: Tokenizer, policy: Policy) -> KVPool:
    name, model = options.kv_cache_dtype, lm.config
    try:
        page_format = load_format(name)
    except ValueError as error:
        raise LaunchError(f"--kv-cache-dtype: {error}") from error
    if model.head_dim % page_format.head_dim_step:
        raise LaunchError(
            f"--kv-cache-dtype {name} needs a head_dim that is a multiple of {page_format.head_dim_step}, and this "
            f"model's is {model.head_dim}; choose float32 or bfloat16"
        )
    memory = options.kv_cache_memory_bytes or 0
    page = KVPool.bytes_per_page(options.page_size, model.head_dim, page_format, policy.state_bytes)
    least = 2 * model.num_lanes + 1
    if memory // page < least:
        raise LaunchError(
            f"--kv-cache-memory-bytes {memory} holds {memory // page} pages of {page} bytes, but one sequence needs "
            f"{least}; give at least {least * page // 2**20 + 1}MiB"
        )
    statistics = usual_statistics(lm, tokenizer) if page_format.turns_rows else None
    rows = page_format.fresh_rows
    try:
        return KVPool(
            memory // page,
            options.page_size,
            model.head_dim,
            page_format,
            policy.observation,
            policy.scorer,
            statistics,
            FreshRows(options.max_num_seqs, model.num_lanes, model.head_dim, rows) if rows else None,
        )
    except MemoryError as error:
        raise LaunchError(
            f"--kv-cache-memory-bytes {memory} is more than this machine gives to a process; it has "
            f"{memory_limit() // 2**20}MiB in all"
        ) from error


def _scheduler_config(
    options: EngineOptions,
    model: ModelConfig,
    checkpoint: Checkpoint,
    pool: KVPool,
    drivers: Mapping[str, EvictionDriver],
) -> SchedulerConfig:
    if options.max_model_len is not None and options.max_model_len > model.max_position:
        raise LaunchError(
            f"--max-model-len {options.max_model_len} exceeds the {model.max_position} tokens the model was made for"
        )
    try:
        return SchedulerConfig(
            num_lanes=model.num_lanes,
            num_pages=pool.keys.shape[0],
            page_size=options.page_size,
            max_model_len=options.max_model_len or model.max_position,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            policies={name: rules_of(driver) for name, driver in drivers.items()},
            default_policy=options.kv_policy,
            default_budget=options.kv_budget,
            evict=options.kv_evict,
            order=options.scheduling_policy,
            max_num_queued=options.max_num_queued_reqs,
            eos_token_ids=checkpoint.eos_token_ids,
            debug_pages=options.debug_pages,
            prefix_caching=options.enable_prefix_caching,
            block=pool.block,
        )
    except ValueError as error:
        raise LaunchError(str(error)) from error


def _page_bytes(pool: KVPool) -> int:
    return pool.bytes_per_page(pool.page_size, pool.head_dim, pool.format, pool.state.shape[2])


def _summary(
    options: EngineOptions,
    model: ModelConfig,
    scheduler: Scheduler,
    pool: KVPool,
    lanes: str,
) -> tuple[str, ...]:
    num_pages = pool.keys.shape[0]
    page = _page_bytes(pool)
    whole = scheduler.memory.allocator.num_usable // model.num_lanes * pool.page_size
    lines = [
        f"Model: {model.num_layers} layers, {model.num_heads} heads, {model.num_kv_heads} KV heads of "
        f"{model.head_dim}, context {scheduler.config.max_model_len:,} tokens",
        f"KV memory: {num_pages * page / 2**20:,.0f} MiB in {num_pages:,} pages of {pool.page_size} rows; "
        f"a token takes {page // pool.page_size * model.num_lanes:,} bytes, so {whole:,} fit whole",
    ]
    if pool.fresh is not None:
        beside = pool.fresh.bytes_per_sequence(model.num_lanes, pool.head_dim, pool.fresh.rows)
        lines.append(
            f"Beside them, each running sequence holds up to {pool.fresh.rows} of its newest rows per lane in 8 bits, "
            f"in {beside // 1024:,} KiB"
        )
    driver = scheduler.config.policies[options.kv_policy]
    if driver is None:
        lines.append("Eviction: none (--kv-policy full)")
    else:
        size = options.kv_budget
        budget = f"{size:,} rows per lane" if isinstance(size, int) else f"{size:.0%} of the tokens seen"
        when = (
            "from the first token on"
            if driver.streaming
            else {"pressure": "only when memory runs short", "always": "from the end of the prompt on"}[
                options.kv_evict
            ]
        )
        lines.append(f"Eviction: {options.kv_policy}, lanes {lanes}, budget {budget}, {when}")
    lines.append(_prefix_line(options))
    if whole < scheduler.config.max_model_len:
        lines.append(
            f"The KV memory holds {whole:,} tokens, less than the context of {scheduler.config.max_model_len:,}: "
            + ("longer prompts are refused" if driver is None else "longer prompts are compressed while they are read")
            + "; a larger --kv-cache-memory-bytes holds them whole"
        )
    return tuple(lines)


def _prefix_line(options: EngineOptions) -> str:
    if options.enable_prefix_caching:
        return "Prefix cache: on; it takes the pages that no sequence needs"
    if load_policy(options.kv_policy).observation is not None:
        return f"Prefix cache: off, because {options.kv_policy} notes beside each row what attention gave it"
    return "Prefix cache: off"
