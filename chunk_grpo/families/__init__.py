"""Model families. Only this package imports diffusers."""

import logging

_NO_NEWS = {
    "transformers.utils.import_utils": "requires torchvision",  # of two image processors that no family uses
    "torchao": "Failed to load",  # kernels for one Python or one GPU, which no family uses
    "torch.utils._pytree": "is an Enum subclass",  # of torchao's enumerations
    "diffusers.quantizers.torchao.torchao_quantizer": "Unable to import `torchao`",  # of files in its format
}
"""By logger: what importing a diffusers pipeline warns about in every process."""


def _hide(logger: str, text: str) -> None:
    logging.getLogger(logger).addFilter(lambda record: text not in record.getMessage())


for _logger, _text in _NO_NEWS.items():
    _hide(_logger, _text)
