"""The engine put together so that several policies, each with lanes of its choice, read the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.forced import Forced
from benchmarks.quality_record import FULL
from models.calibration_file import find_calibration
from models.causal_lm import CausalLM
from models.checkpoint import Checkpoint
from models.key_statistics import usual_statistics
from models.loader import load_model
from models.runner import ModelRunner
from models.source import default_cache_dir, prepare_model
from models.tokenizer import Tokenizer
from paged_kv.backend import load_backend
from paged_kv.batch import TableMirror
from paged_kv.calibration import Calibration
from paged_kv.eviction import EvictionDriver
from paged_kv.format import load_format
from paged_kv.fresh import FreshRows
from paged_kv.policy import CalibratedPolicy, LaneMode, Policy, load_policy
from paged_kv.pool import KVPool
from scheduler.config import SchedulerConfig
from scheduler.scheduler import Scheduler
from server.engine_options import EngineOptions
from server.eviction_options import driver_of, rules_of

SLOTS = 16  # sequences at once
_PAGE_SIZE = 16


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy, with lanes other than its own where `lanes` is given."""

    policy: str
    lanes: LaneMode | None = None

    def __str__(self) -> str:
        return self.policy if self.lanes is None else f"{self.policy}, {self.lanes}"


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """The model that is measured, and what was measured on it before."""

    checkpoint: Checkpoint
    model: CausalLM
    calibration: Calibration | None

    @classmethod
    def load(cls, model: str | None, *, quantize: bool = False) -> Subject:
        """`model` as on the server's command line, with float32 weights unless `quantize`. Raises ModelError."""
        checkpoint = Checkpoint(prepare_model(model, default_cache_dir()))
        calibration = find_calibration(checkpoint, default_cache_dir())
        return cls(checkpoint, load_model(checkpoint, torch.float32, quantize=quantize), calibration)

    def tokenizer(self) -> Tokenizer:
        """The model's."""
        return Tokenizer.from_folder(self.checkpoint.folder)

    def driver(self, variant: Variant) -> EvictionDriver:
        """What evicts for `variant`. Raises ValueError if that needs a calibration and there is none."""
        policy = load_policy(variant.policy)
        if isinstance(policy, CalibratedPolicy):
            if self.calibration is None:
                raise ValueError(f"{variant} needs a calibration of this model: run `scissorserve calibrate`")
            policy = policy.calibrated(self.calibration)
        options = EngineOptions(kv_lanes=variant.lanes)
        return driver_of(policy, options, self.model.config.num_kv_heads, self.calibration)


class Engine:
    """Scheduler, runner and pool for variants whose notes beside the rows are alike; full is always among them.

    `forced` feeds given tokens, `scheduler` serves requests under `kv_evict="always"`; both draw on the same pages.
    `rows`: the pool's format. `tokens`: that the pool holds.
    """

    def __init__(self, subject: Subject, variants: Sequence[Variant], rows: str, tokens: int) -> None:
        model = subject.model
        config = model.config
        page_format = load_format(rows)
        block = page_format.fresh_rows or 1
        chosen = {str(variant): subject.driver(variant) for variant in (Variant(FULL), *variants)}
        drivers = {name: replace(driver, block=block) for name, driver in chosen.items()}
        self.num_lanes = config.num_lanes
        self.rows = rows
        self.variants = tuple(variants)
        noted = subject.driver(variants[0]).policy
        pages = 1 + config.num_lanes * -(-tokens // _PAGE_SIZE)
        statistics = usual_statistics(model, subject.tokenizer()) if page_format.turns_rows else None
        fresh = FreshRows(2 * SLOTS, config.num_lanes, config.head_dim, block) if page_format.fresh_rows else None
        pool = KVPool(
            pages, _PAGE_SIZE, config.head_dim, page_format, noted.observation, noted.scorer, statistics, fresh
        )
        mirror = TableMirror(2 * SLOTS, config.num_layers, config.num_kv_heads, _PAGE_SIZE)
        self.runner = ModelRunner(model, pool, mirror, load_backend("auto", config.head_dim), drivers)
        self.rules = {name: rules_of(driver) for name, driver in drivers.items()}
        settings = SchedulerConfig(
            num_lanes=config.num_lanes,
            num_pages=pages,
            page_size=_PAGE_SIZE,
            max_model_len=config.max_position,
            max_num_seqs=SLOTS,
            max_num_batched_tokens=512,
            policies=self.rules,
            default_policy=FULL,
            default_budget=1.0,
            evict="always",
            eos_token_ids=subject.checkpoint.eos_token_ids,
        )
        self.scheduler = Scheduler(settings)
        allocator = self.scheduler.memory.allocator
        self.forced = Forced(self.runner, pool, mirror, allocator, self.rules, range(SLOTS, 2 * SLOTS))


def alike(subject: Subject, variants: Sequence[Variant]) -> Iterator[tuple[Variant, ...]]:
    """The variants in groups that note the same beside each row, so that they can share what was read.

    Full, which reads no notes, comes last in the first group.
    """
    groups: dict[object, list[Variant]] = {}
    for variant in variants:
        if variant.policy != FULL:
            groups.setdefault(_notes(subject.driver(variant).policy), []).append(variant)
    first, *others = groups.values() or [[]]
    if Variant(FULL) in variants:
        first.append(Variant(FULL))
    yield from (tuple(group) for group in (first, *others) if group)


def _notes(policy: Policy) -> object:
    return policy.observation if policy.scorer is None else id(policy.scorer)
