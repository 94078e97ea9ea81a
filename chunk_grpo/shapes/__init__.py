"""The synthetic world of the default preset: coloured shapes with exact detectors."""
