"""Densities of sequences of codes by transformers: left to right, or in any order; and an energy to tilt them by."""

from ctem.densities.sequences.causal import CausalDensity
from ctem.densities.sequences.energy import SequenceNet
from ctem.densities.sequences.masked import MaskedDensity
from ctem.densities.sequences.transformer import Transformer, sequence_loss

__all__ = ["CausalDensity", "MaskedDensity", "SequenceNet", "Transformer", "sequence_loss"]
