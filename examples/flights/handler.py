"""Predicts a flight's arrival delay, in minutes. Called with whole columns as NumPy arrays."""

import pathlib
import pickle

from features import features

# Loaded once per container, not once per call.
_model = pickle.loads((pathlib.Path(__file__).parent / "model.pkl").read_bytes())


def arrival_delay(distance, dep_delay, carrier, month, hour):
    return _model.predict(features(distance, dep_delay, carrier, month, hour))
