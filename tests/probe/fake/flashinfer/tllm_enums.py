"""The enum members SGLang passes, with FlashInfer's numbers."""

from enum import IntEnum


class ActivationType(IntEnum):
    Swiglu = 3
    Situ = 10


class RoutingMethodType(IntEnum):
    DeepSeekV3 = 2
    TopK = 5


class SfLayout(IntEnum):
    layout_128x4 = 0
    layout_8x4 = 1
    layout_linear = 2
