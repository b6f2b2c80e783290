"""What the model sees of a flight. Training and handler share it, so that they cannot disagree."""

import numpy

CARRIERS = ["9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV"]


def features(distance, dep_delay, carrier, month, hour):
    """A matrix with one row per flight; a carrier that the model was not trained on is -1."""
    codes = {name: code for code, name in enumerate(CARRIERS)}
    carrier_codes = [codes.get(name, -1) for name in carrier]
    return numpy.column_stack([distance, dep_delay, carrier_codes, month, hour]).astype(float)
