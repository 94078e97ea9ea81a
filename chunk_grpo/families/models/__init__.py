"""Model families, a module each. Its `FAMILY` is the class; the module's name is `model.family`."""
