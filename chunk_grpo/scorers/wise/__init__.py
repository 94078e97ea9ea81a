"""WISE: a vision-language model behind an OpenAI-compatible endpoint judges images."""
