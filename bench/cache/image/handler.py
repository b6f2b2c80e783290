import time


def slow(x):
    time.sleep(0.005)
    return x + 1


def slow_of_many(*inputs):
    time.sleep(0.005)
    return inputs[0] + 1
