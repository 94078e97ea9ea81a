"""Model families: the only place that knows diffusers."""
