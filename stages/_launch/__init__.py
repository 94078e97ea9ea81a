"""A stage in several processes, on one machine or several."""
