"""Paged KV memory: pages, tables and allocator (integers); pool, formats, attention, policies and eviction (tensors)."""
