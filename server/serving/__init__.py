"""From a checked body to an answer: prompts, parameters, generation, and the wire's two dialects."""
