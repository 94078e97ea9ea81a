"""Code that all stages with scorers share: make, place and identify a scorer, call it with retries and time limits."""
