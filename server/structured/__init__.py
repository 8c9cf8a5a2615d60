"""Answers that must have a form: what was asked for, as a grammar, and the grammar as masks over tokens."""
