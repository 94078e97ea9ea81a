"""Prompts: read from users' files and benchmarks and checked, or generated.

Nothing is dropped or changed silently: problems are refused together with their line numbers, or reported. What reads
raises DataError if a file is missing or has another format, and TransientError if an object store does not answer.
"""
