"""Finished analyses, which README.md in this folder lists."""
