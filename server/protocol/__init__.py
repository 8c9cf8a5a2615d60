"""OpenAI's wire format: what clients send, as strict models, and what they get, as typed dictionaries."""
