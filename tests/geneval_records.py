"""Two of GenEval's records, of our own making, in the official keys and order."""

import json
from typing import Any

COUNTING = {
    "tag": "counting",
    "include": [{"class": "cow", "count": 3}],
    "exclude": [{"class": "cow", "count": 4}],
    "prompt": "three cows in a field",
}
POSITION = {
    "tag": "position",
    "include": [
        {"class": "tv remote", "count": 1},
        {"class": "cup", "count": 2, "color": "red", "position": ["left of", 0]},
    ],
    "prompt": "two red cups to the left of a tv remote",
}


def changed(record: dict[str, Any], **changes: object) -> dict[str, Any]:
    """A copy with other values; None removes a key."""
    copy = {**json.loads(json.dumps(record)), **changes}
    return {key: value for key, value in copy.items() if value is not None}
