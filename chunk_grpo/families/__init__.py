"""Model families. Only this package imports diffusers."""

import logging


def _is_news(record: logging.LogRecord) -> bool:
    return "requires torchvision" not in record.getMessage()


# In every process, importing a diffusers pipeline warns about two image processors that no family uses.
logging.getLogger("transformers.utils.import_utils").addFilter(_is_news)
