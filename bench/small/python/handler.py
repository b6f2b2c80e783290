def add_one(x: float) -> float:
    return x + 1
