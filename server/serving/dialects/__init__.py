"""How deltas are written for each API: whole answers and streams."""
