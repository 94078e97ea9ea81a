"""Scorers that ask a vision-language model at an OpenAI-compatible endpoint: client, stored answers, questions."""
