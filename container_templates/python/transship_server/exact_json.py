"""JSON whose numbers stay what they are written as, where a float would round them.

A Number is a float that knows its text: json_values.decode reads decimals and integers from the text. No text takes more memory
than its length, whatever its exponent says.
"""

import decimal
import json

# Digits of PostgreSQL's numeric before and after the decimal point.
_MAX_WHOLE_DIGITS = 131_072
_MAX_FRACTION_DIGITS = 16_383
# Zeros that an exponent may stand for where digits are written out.
_MAX_WRITTEN_ZEROS = 64
_MAX_INT8_DIGITS = 19


class Number(float):
    """A number with a fraction or an exponent, and its text."""

    __slots__ = ("text",)

    def __new__(cls, text):
        number = super().__new__(cls, text)
        number.text = text
        return number


def loads(text):
    """The value of a JSON text; ValueError if it is none."""
    try:
        return json.loads(text, parse_float=Number, parse_constant=Number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def dumps(value):
    """The JSON text of a value, its Numbers as they were written. ValueError for NaN and infinite values."""
    try:
        return _dumps(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _dumps(value):
    if isinstance(value, Number):
        return _finite(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {_dumps(member)}" for name, member in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_dumps, value)) + "]"
    return json.dumps(value, allow_nan=False)


def decimal_text(text):
    """The digits of a decimal, without an exponent where that takes little memory. ValueError if it is no decimal, or more
    than PostgreSQL's numeric has room for."""
    if "e" not in text and "E" not in text:
        return text
    try:
        value = decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise ValueError(f"{text[:40]} is not a decimal") from None
    exponent = value.as_tuple().exponent
    if not value:
        return "0"
    if value.adjusted() >= _MAX_WHOLE_DIGITS or -exponent > _MAX_FRACTION_DIGITS:
        raise ValueError(f"{text[:40]} has more digits than a decimal can have")
    return format(value, "f") if abs(exponent) <= _MAX_WRITTEN_ZEROS + len(text) else text


def plain_digits(text):
    """A decimal's text without an exponent. ValueError if it is no decimal, or more than PostgreSQL's numeric has room for."""
    if "E" not in text and "e" not in text:
        return text
    plain = decimal_text(text)
    value = decimal.Decimal(text)
    # A zero keeps its digits too, as far as there is room for them.
    is_short = not value and 0 >= value.as_tuple().exponent >= -_MAX_FRACTION_DIGITS
    return format(value, "f") if is_short or "E" in plain or "e" in plain else plain


def integer(text):
    """The integer that a number's text stands for, to the last digit. ValueError if it has a fraction or too many digits."""
    value = decimal.Decimal(decimal_text(text))
    if value.adjusted() >= _MAX_INT8_DIGITS or value != int(value):
        raise ValueError(f"{text[:40]} is not an integer")
    return int(value)


def _finite(number):
    if number.text.endswith(("N", "y")):
        raise ValueError(f"JSON has no {number.text}")
    return number.text
