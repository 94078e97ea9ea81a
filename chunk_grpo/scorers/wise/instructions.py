"""Instructions for WISE's judge.

The wording is this package's own. It defines the criteria and scales of PKU-YuanGroup/WISE, whose text has no licence
and is not shipped. Scores depend on the wording, so they compare only among runs with the same protocol, judge and
wording. To compare with published scores, provide a copy of the original evaluator; `read_evaluator` extracts its
question.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from chunk_grpo.config.templates import Slot, Template
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.judging.wording import literal_pieces, parsed_python
from chunk_grpo.scorers.wise.protocols import PROTOCOLS, ProtocolName


@dataclass(frozen=True)
class Instructions:
    """Text of a question; the image follows it."""

    system: str
    """The system message."""
    question: Template
    """The user message, with the fields Prompt and Explanation."""

    def fill(self, prompt: str, explanation: str) -> str:
        """User message for an image."""
        return self.question.fill({"Prompt": prompt, "Explanation": explanation})


_SYSTEM = (
    "You judge pictures that a text-to-image program has made. Keep to the scale you are given and answer in the form "
    "you are asked for, with nothing else."
)

_TASK: tuple[str | Slot, ...] = (
    "The attached picture was made from the prompt below. The prompt names its subject in a roundabout way: to draw it "
    "one must know something about culture, nature, time or space. The explanation says what a right picture "
    'shows.\n\nPrompt: "',
    Slot("Prompt"),
    '"\nExplanation: "',
    Slot("Explanation"),
    '"\n\n',
)

OWN: dict[ProtocolName, Instructions] = {
    "legacy": Instructions(
        _SYSTEM,
        Template(
            (
                *_TASK,
                """Give the picture three whole numbers, each 0, 1 or 2.

Consistency - does it show what the prompt means?
0: something essential is absent, or says the opposite.
1: some of it is shown, or it is shown with clear errors.
2: all of it is shown, down to the details, and no one could take it for anything else.

Realism - could it be a photograph?
0: impossible in the real world, or plainly synthetic.
1: believable at first sight, with faults on a closer look.
2: nothing gives it away: light, materials, space and physics are all right.

Aesthetic Quality - is it good to look at?
0: ugly or carelessly composed.
1: sound composition and colours, and no more than that.
2: a masterly picture that one would hang on a wall.

Be severe: 2 is rare, for pictures without a flaw in that respect. Between two numbers take the lower one.

Answer with these three lines alone, with a number for each N:
Consistency: N
Realism: N
Aesthetic Quality: N""",
            )
        ),
    ),
    "verified": Instructions(
        _SYSTEM,
        Template(
            (
                *_TASK,
                """Decide whether the picture is right, 1, or wrong, 0.

It is right if two things hold. Its content: the objects, their states and their relations are those that prompt and
explanation ask for, and the answer that the prompt only hints at can be seen. Its making: the main objects are clear
and whole, so that the content can be checked.

It is wrong if the hinted answer is absent, if only the prompt's literal words were drawn, if something important is
missing, wrong or contradictory, or if broken, distorted or unclear shapes stand in the way.

Beauty, style and composition play no part: a plain drawing may be right. If you are not sure, it is wrong.

Answer with one line alone, with 0 or 1 for N:
Score: N""",
            )
        ),
    ),
}
"""This package's wording."""


def find_instructions(key: str, protocol: ProtocolName, path: str | None) -> Instructions:
    """Wording of the user's copy of the evaluator, gpt_eval.py or vllm_eval.py; without a path, this package's.

    DataError if the file cannot be read, or belongs to the other protocol.
    """
    if path is None:
        return OWN[protocol]
    try:
        found = read_evaluator(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{key}.instructions: {path}: {error}. Give gpt_eval.py (legacy) or vllm_eval.py (verified) of a clone of "
            "github.com/PKU-YuanGroup/WISE, or null for this package's wording."
        ) from error
    text = "".join(piece for piece in found.question.pieces if isinstance(piece, str)).lower()
    for label in PROTOCOLS[protocol].labels:
        if f"{label}: " not in text:
            raise DataError(
                f"{key}.instructions: {path} does not request a line `{label.title()}:`, so it is not for the protocol "
                f"{protocol}. Give {'gpt_eval.py' if protocol == 'legacy' else 'vllm_eval.py'}."
            )
    return found


def read_evaluator(source: str) -> Instructions:
    """Extract the question from the source of WISE's evaluator, without running it.

    Both evaluators have a function build_evaluation_messages that returns the messages as one literal. The system text
    is a constant. The user text is an f-string with prompt_data['Prompt'] and prompt_data['Explanation']. ValueError
    for a source of another form.
    """
    texts = [
        value
        for function in ast.walk(parsed_python(source))
        if isinstance(function, ast.FunctionDef) and function.name == "build_evaluation_messages"
        for entry in ast.walk(function)
        if isinstance(entry, ast.Dict)
        for name, value in zip(entry.keys, entry.values, strict=True)
        if isinstance(name, ast.Constant) and name.value == "text"
    ]
    if len(texts) != 2:
        raise ValueError(f"needs two texts in build_evaluation_messages, the system's and the user's; has {len(texts)}")
    system, question = (literal_pieces(text, _key, ("Prompt", "Explanation")) for text in texts)
    slots = sorted(piece.name for piece in question if isinstance(piece, Slot))
    if len(system) != 1 or not isinstance(system[0], str) or slots != ["Explanation", "Prompt"]:
        raise ValueError("the user's text, and only that, must have Prompt and Explanation filled in, once each")
    return Instructions(system[0], Template(question))


def _key(value: ast.expr) -> object:
    """Key of prompt_data[key]."""
    match value:
        case ast.Subscript(slice=ast.Constant(value=key)):
            return key
    return None
