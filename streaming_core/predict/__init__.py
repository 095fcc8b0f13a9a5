"""Guesses of which experts a layer will ask for, made before it asks."""

from streaming_core.predict.guess import Guess, ScoredGuess, best_per_expert
from streaming_core.predict.predictors import (
    CascadePredictor,
    FrequencyPredictor,
    GatePredictor,
    NoPrediction,
    OraclePredictor,
    Predictor,
)

__all__ = [
    "CascadePredictor",
    "FrequencyPredictor",
    "GatePredictor",
    "Guess",
    "NoPrediction",
    "OraclePredictor",
    "Predictor",
    "ScoredGuess",
    "best_per_expert",
]
