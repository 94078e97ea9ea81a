"""Model families: the only place that knows diffusers."""

import logging


def _is_news(record: logging.LogRecord) -> bool:
    return "requires torchvision" not in record.getMessage()


# Importing a diffusers pipeline warns of two image processors that no family uses, in every process.
logging.getLogger("transformers.utils.import_utils").addFilter(_is_news)
