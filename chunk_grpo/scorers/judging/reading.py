"""Answers of a judge in the bodies of chat completions."""

from __future__ import annotations

import json


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
