"""OpenAI's wire format over the engine: routes, detokenising, stop strings, metrics, the command line."""
