"""Files of weights: base models, saved policies, and adapters of other programs. Each weight is used, or is refused."""
