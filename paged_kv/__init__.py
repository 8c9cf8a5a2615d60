"""Paged KV memory: pages, tables, allocator (integers); pool, formats, attention, policies, eviction (tensors)."""
