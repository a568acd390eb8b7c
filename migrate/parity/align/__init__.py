"""Which layer, tensor and weight of a side is which of the truth's."""
