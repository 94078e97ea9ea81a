"""Answers of a judge: their text or first token in a chat completion, and the number that they stand for."""

from __future__ import annotations

import json
import math
import re

from chunk_grpo.config.judges import NumberReading

_NUMBER = re.compile(r"(?:(?<!\w)[-+−–])?(?:\d+(?:[.,]\d+)*|\.\d+)(?:[eE][-+]?\d+)?")
"""A number in a text with all its digits and its sign; the dash of `1-5` is none."""

_SPACES = " \t\n▁ĠĊ"
"""Spaces and line breaks around a token, also as SentencePiece and GPT-2 write them."""


TOKEN_FIELDS = {"max_tokens": 1, "logprobs": True, "top_logprobs": 20}
"""Request fields that `first_tokens` depends on."""


def number_in(answer: str, reading: NumberReading) -> float:
    """The number that the pattern finds. If the pattern matches several times, the numbers must be equal.

    Raises:
        ValueError: The answer has no number, or one out of range; numbers are never clipped.
    """
    low, high = reading.lowest, reading.highest
    numbers = {_number(answer, found) for found in re.finditer(reading.pattern, answer)}
    if not numbers:
        raise ValueError(f"nothing matches the pattern {reading.pattern!r}")
    if len(numbers) > 1:
        raise ValueError(f"the pattern finds several numbers: {', '.join(map(str, sorted(numbers)))}")
    number = numbers.pop()
    if not low <= number <= high:
        raise ValueError(f"must be {low:g} to {high:g}, got {number:g}")
    return (number - low) / (high - low) if reading.scale == "unit" else number


def _number(answer: str, found: re.Match[str]) -> float:
    """Number of a match; refuses a part of a longer number, such as the 1 of 10."""
    first, last = found.span(1)
    for number in _NUMBER.finditer(answer):
        if number.start() < last and first < number.end() and not first <= number.start() < number.end() <= last:
            raise ValueError(f"the pattern finds {found[1]!r}, a part of {number[0]!r}")
    try:
        number_found = float(found[1])
    except (TypeError, ValueError) as error:
        raise ValueError(f"the pattern finds {found[1]!r}, which is no number") from error
    if not math.isfinite(number_found):
        raise ValueError(f"the pattern finds {found[1]!r}, which is not finite")
    return number_found


def first_tokens(reply: bytes) -> str:
    """JSON array of [token, natural logarithm of its probability] for the answer's first token, most probable first.

    Raises:
        ValueError: The body of the chat completion has none.
    """
    try:
        first = json.loads(reply)["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        listed = [[str(token["token"]), float(token["logprob"])] for token in first]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"the reply has no log probabilities of its first token ({type(error).__name__}), which "
            "yes-probability needs; does the endpoint offer `logprobs` and `top_logprobs`?"
        ) from error
    return json.dumps(listed, ensure_ascii=False)


def yes_probability(answer: str) -> float:
    """P(yes) / (P(yes) + P(no)) among the tokens of `first_tokens`, in [0, 1]; ValueError if there is none.

    A word's probability is the sum over its spellings: upper and lower case, with and without a space. A word that is
    not listed is less probable than every listed token and counts as 0.

    Source: VQAScore (arXiv 2404.01291), Sec. 3, whose P("Yes" | image, text) is that of the answer Yes alone.
    """
    chances = {"yes": 0.0, "no": 0.0}
    try:
        tokens = [(str(token), float(logarithm)) for token, logarithm in json.loads(answer)]
    except (ValueError, TypeError) as error:
        raise ValueError(f"is no list of tokens ({type(error).__name__})") from error
    for token, logarithm in tokens:
        word = token.strip(_SPACES).lower()
        if not logarithm <= 0.01:  # above 0 by rounding only; NaN
            raise ValueError(f"token {token!r}: a log probability must be at most 0, got {logarithm}")
        if word in chances:
            chances[word] += math.exp(logarithm)
    total = sum(chances.values())
    if not total > 0:
        listed = ", ".join(repr(token) for token, _ in tokens)
        raise ValueError(f"neither yes nor no is among the first tokens: {listed}")
    return chances["yes"] / total


def answer_text(reply: bytes) -> str:
    """Text of the judge's answer in a chat completion.

    Raises:
        ValueError: There is no text; the message gives the server's finish_reason.
    """
    try:
        choice = json.loads(reply)["choices"][0]
        content, reason = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"the reply is no chat completion ({type(error).__name__})") from error
    if not isinstance(content, str) or not content.strip():
        raise ValueError(f"the answer is empty (finish_reason {reason!r})")
    return content


def without_thoughts(answer: str) -> str:
    """Answer without the reasoning up to </think>."""
    return answer.rpartition("</think>")[2].strip()
