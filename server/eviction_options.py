"""From flags to what evicts: the policies that requests may name, and how each is driven."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace

from models.calibration_file import find_calibration
from models.checkpoint import Checkpoint
from models.source import default_cache_dir
from paged_kv.calibration import Calibration
from paged_kv.eviction import EvictionDriver
from paged_kv.plugins import names
from paged_kv.policy import CalibratedPolicy, Policy, load_policy
from scheduler.budget import EvictionRules
from server.engine_options import EngineOptions
from server.launch_error import LaunchError

_INSTEAD = "scissorhands"  # where the model has no calibration

logger = logging.getLogger(__name__)


def with_policy(options: EngineOptions, checkpoint: Checkpoint) -> tuple[EngineOptions, Calibration | None]:
    """`options` with a policy chosen if that was left open, and the model's calibration, if something asks for it.

    Raises LaunchError, ModelError.
    """
    policy = options.kv_policy
    if policy not in ("auto", "calibrated") and options.kv_lanes != "profile":
        if options.kv_calibration is not None:
            logger.warning(
                "--kv-calibration %s is not used: --kv-policy %s asks for one only with --kv-lanes profile",
                options.kv_calibration,
                policy,
            )
        return options, None
    cache_dir = options.cache_dir or default_cache_dir()
    calibration = find_calibration(checkpoint, cache_dir, options.kv_calibration)
    if calibration is not None:
        return replace(options, kv_policy="calibrated" if policy == "auto" else policy), calibration
    command = f"`scissorserve calibrate{' ' + options.model if options.model else ''}`"
    if policy == "calibrated" or options.kv_lanes == "profile":
        flag = "--kv-policy calibrated" if policy == "calibrated" else "--kv-lanes profile"
        raise LaunchError(
            f"{flag} needs a calibration of this model, and there is none: make one with {command}, or choose another"
        )
    logger.info("No calibration of this model is known, so rows are judged by %s: %s makes one", _INSTEAD, command)
    return replace(options, kv_policy=_INSTEAD, kv_lanes=options.kv_lanes or "global"), None


def offered_policies(default: str, calibration: Calibration | None) -> Mapping[str, Policy]:
    """The policies that requests may name: the server's, and those that need nothing noted about rows.

    Raises LaunchError.
    """
    loaded: dict[str, Policy] = {name: load_policy(name) for name in names("paged_kv.policies")}
    if default not in loaded:
        raise LaunchError(f"--kv-policy {default} is not known; choose one of: {', '.join(loaded)}")
    offered: dict[str, Policy] = {}
    for name, policy in loaded.items():
        if isinstance(policy, CalibratedPolicy):
            if name == default and calibration is not None:
                offered[name] = policy.calibrated(calibration)
        elif name == default or policy.observation is None:
            offered[name] = policy
    return offered


def drivers_of(
    policies: Mapping[str, Policy],
    asked: EngineOptions,
    chosen: EngineOptions,
    kv_heads: int,
    calibration: Calibration | None,
    block: int = 1,
) -> dict[str, EvictionDriver]:
    """What evicts for each of `policies`. Lanes that `with_policy` chose are those of its policy alone."""
    return {
        name: driver_of(policy, chosen if name == chosen.kv_policy else asked, kv_heads, calibration, block)
        for name, policy in policies.items()
    }


def driver_of(
    policy: Policy, options: EngineOptions, kv_heads: int, calibration: Calibration | None = None, block: int = 1
) -> EvictionDriver:
    """What evicts for `policy`, as the flags or else its own defaults say."""
    defaults = policy.defaults
    return EvictionDriver(
        policy=policy,
        sinks=defaults.sinks if options.kv_sinks is None else options.kv_sinks,
        recent=defaults.recent if options.kv_window is None else options.kv_window,
        lanes=options.kv_lanes or defaults.lanes,
        kv_heads=kv_heads,
        pool=defaults.pool if options.kv_pool is None else options.kv_pool,
        profile=calibration.profile if calibration else None,
        block=block,
    )


def rules_of(driver: EvictionDriver) -> EvictionRules | None:
    """What the scheduler must know of `driver`; None if it never evicts."""
    if not driver.policy.evicts:
        return None
    defaults = driver.policy.defaults
    least = driver.sinks + max(driver.recent, driver.block - 1) + 1
    if defaults.ceiling:  # what a drop leaves of the smallest budget must hold the protected rows, too
        least = math.ceil(least / (1 - defaults.drop))
    return EvictionRules(least, defaults.drop, defaults.ceiling, defaults.streaming)
