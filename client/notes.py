"""What a reader must know before trusting the numbers."""

from __future__ import annotations

import numpy as np

from client.metrics import samples
from client.summary import LATE_SEND_S, Summary

LAG_LIMIT_S, LAG_INVALID_S = 0.01, 0.02
"""How late the client's loop may wake up (p99) before its figures are doubtful, and before they are worthless..."""

LAG_SHARE, LAG_INVALID_SHARE = 0.02, 0.05
"""... if that is also more than this share of the time per token: 20 ms are nothing beside a second."""

CPU_LIMIT = 0.95
"""Of one core; a client that uses more would send more if it could."""


def notes(summary: Summary) -> list[str]:
    """One sentence or two each, the gravest first."""
    return [note for note in (*_about_client(summary), *_about_load(summary), *_about_tokens(summary)) if note]


def _about_client(summary: Summary) -> list[str]:
    lag, cpu, gap = summary.client.lag_p99, summary.client.cpu_share, _typical_gap(summary)
    if lag <= max(LAG_LIMIT_S, LAG_SHARE * gap) and cpu <= CPU_LIMIT:
        return []
    was = f"the client itself was late (p99 {lag * 1000:.0f} ms) and used {cpu:.0%} of a core"
    if lag > max(LAG_INVALID_S, LAG_INVALID_SHARE * gap):
        return [f"INVALID: {was}: lower the load or give the client a free core."]
    return [f"Careful: {was}: latencies may be too long, and the load too low."]


def _typical_gap(summary: Summary) -> float:
    """The median time per token in seconds, or to the first token if there is no other."""
    for metric in ("tpot", "ttft"):
        values = samples(summary.measured, metric)
        if values.size:
            return float(np.median(values))
    return 0.0


def _about_load(summary: Summary) -> list[str]:
    found = []
    finished = summary.completed + summary.failed
    if summary.interrupted:
        found.append(f"Interrupted: {finished} of {summary.planned} requests had finished; the rest is not counted.")
    if summary.unsent:
        found.append(f"Time limit: {finished} of {summary.planned} requests were sent.")
    if summary.late_sends:
        found.append(
            f"{summary.late_sends} of {finished} requests were sent more than {LATE_SEND_S * 1000:g} ms after they "
            f"were due (worst {summary.max_late_send * 1000:.0f} ms); latencies include that wait."
        )
    return found


def _about_tokens(summary: Summary) -> list[str]:
    found = []
    answers = f"{summary.completed} answers"
    sources = [one.timeline.counted_by for one in summary.measured]
    if by_events := sources.count("events"):
        found.append(
            f"{by_events} of {answers} had no usage: each event counts as one token (--tokenizer counts exactly)."
        )
    if by_tokenizer := sources.count("tokenizer"):
        found.append(f"{by_tokenizer} of {answers} had no usage: their text was counted with the tokenizer.")
    if hiding := sum(one.timeline.hides for one in summary.measured):
        found.append(
            f"{hiding} of {answers} counted tokens before the first text: TTFT and TPOT are upper bounds. "
            "If the server can count in every event, ask it to: "
            '--extra-body \'{"stream_options": {"continuous_usage_stats": true}}\'.'
        )
    return found
