"""Measures a machine through `streaming_core`, searches its settings, proves the winner and writes a profile."""
