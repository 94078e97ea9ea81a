"""Drills: do to a served repository what goes wrong in real use, and measure what happens. See docs/faults.md."""
