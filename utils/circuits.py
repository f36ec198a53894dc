"""What the weights alone say, before any token is read."""

from transformer_lens import FactoredMatrix

from utils.model import AttentionOnly


def direct_path(model: AttentionOnly) -> FactoredMatrix:
    """W_E W_U [token, out]: what a token adds to the logits of the next one without any head's help."""
    return FactoredMatrix(model.W_E, model.W_U)
