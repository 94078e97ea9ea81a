"""What all stages with scorers need: a scorer made, placed and identified, and called with retries and time limits."""
