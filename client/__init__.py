"""The load tester: streams against any OpenAI-compatible URL and reports latency and throughput."""
