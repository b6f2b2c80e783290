// Reads the JSON of a request with the texts of its numbers: a decimal may have more digits than a double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

using json = nlohmann::json;

/// The text of a number that is no 64-bit integer. JSON itself has no values of this kind.
inline json number_text(const std::string &text) { return json::binary({text.begin(), text.end()}); }

inline bool is_number_text(const json &value) { return value.is_binary(); }

/// Whether a value is a number that nobody has rounded.
inline bool has_all_digits(const json &value) { return value.is_number_integer() || is_number_text(value); }

inline std::string text_of(const json &number) {
  if (!is_number_text(number)) return number.dump();
  const auto &bytes = number.get_binary();
  return {bytes.begin(), bytes.end()};
}

/// std::invalid_argument if no double can hold the number.
inline double double_of(const json &number) {
  if (!is_number_text(number)) return number.get<double>();
  const std::string text = text_of(number);
  const double value = std::strtod(text.c_str(), nullptr);
  if (!std::isfinite(value)) throw std::invalid_argument(text.substr(0, 60) + ", which no double can hold");
  return value;
}

/// Digits before and behind the point that a decimal of PostgreSQL has at most.
constexpr long max_whole_digits = 131072, max_fraction_digits = 16383;

/// A decimal's digits without an exponent, as docs/types.md has them; std::invalid_argument if numeric has no room for them.
inline std::string digits_of(const std::string &number) {
  const std::size_t exponent_at = number.find_first_of("eE");
  if (exponent_at == std::string::npos) return number;
  const std::string sign = number.starts_with('-') ? "-" : "";
  const std::string mantissa = number.substr(sign.size(), exponent_at - sign.size());
  const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
  std::string digits = mantissa.substr(0, point);
  if (point < mantissa.size()) digits += mantissa.substr(point + 1);
  // strtol takes what is too long for the largest exponent that it has.
  const long exponent = std::clamp(std::strtol(number.c_str() + exponent_at + 1, nullptr, 10), -1'000'000'000L, 1'000'000'000L);
  const long whole = static_cast<long>(point) + exponent, count = static_cast<long>(digits.size());
  if (digits.find_first_not_of('0') == std::string::npos) return sign + "0";
  if (whole > max_whole_digits || count - whole > max_fraction_digits) {
    throw std::invalid_argument(number.substr(0, 60) + ", which is too large or too small for numeric");
  }
  if (whole <= 0) return sign + "0." + std::string(static_cast<std::size_t>(-whole), '0') + digits;
  if (whole > count) digits.append(static_cast<std::size_t>(whole - count), '0');
  if (whole < count) digits.insert(static_cast<std::size_t>(whole), ".");
  const std::size_t zeros = digits.find_first_not_of('0');
  return sign + digits.substr(digits[zeros] == '.' ? zeros - 1 : zeros);
}

/// Whether a text is a number of JSON, and nothing else.
inline bool is_number(std::string_view text) {
  std::size_t at = text.starts_with('-') ? 1 : 0;
  const auto digits = [&] {
    const std::size_t start = at;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9') at++;
    return at - start;
  };
  const bool is_zero = at < text.size() && text[at] == '0';
  const std::size_t whole = digits();
  if (whole == 0 || (is_zero && whole > 1)) return false;
  if (at < text.size() && text[at] == '.' && (at++, digits() == 0)) return false;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    at++;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) at++;
    if (digits() == 0) return false;
  }
  return at == text.size();
}

/// Every number of so many characters is a double's, unless it has an exponent.
constexpr std::size_t max_double_digits = 308;

/// Numbers by their place among all numbers of a body.
using LargeNumbers = std::map<std::size_t, std::string>;

/// The parser refuses numbers that no double can hold. A zero stands for each in the text that this returns, and `large` gets theirs.
inline std::string without_large_numbers(const std::string &body, LargeNumbers &large) {
  std::string text;
  std::size_t copied = 0, numbers = 0;
  for (std::size_t at = 0; (at = body.find_first_of("\"-0123456789", at)) != std::string::npos;) {
    if (body[at] == '"') {
      for (at++; at < body.size() && body[at] != '"'; at++) {
        if (body[at] == '\\') at++;
      }
      at++;
      continue;
    }
    const std::size_t end = std::min(body.find_first_not_of("+-.0123456789eE", at), body.size());
    const std::string_view number(body.data() + at, end - at);
    // What is no number is left to the parser, which refuses all of the body.
    if (is_number(number)) {
      const bool may_be_large = number.size() > max_double_digits || number.find_first_of("eE") != std::string_view::npos;
      if (may_be_large && !std::isfinite(std::strtod(std::string(number).c_str(), nullptr))) {
        text.append(body, copied, at - copied).append("0");
        copied = end;
        large.emplace(numbers, number);
      }
      numbers++;
    }
    at = end;
  }
  if (large.empty()) return body;
  return text.append(body, copied);
}

/// Builds a value of what the parser finds.
class RequestReader : public nlohmann::json_sax<json> {
public:
  json root;

  explicit RequestReader(LargeNumbers large) : large_(std::move(large)) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put_number(value); }
  bool number_unsigned(number_unsigned_t value) override { return put_number(value); }
  bool number_float(number_float_t, const string_t &text) override { return put_number(number_text(text)); }
  bool string(string_t &value) override { return put(std::move(value)); }
  bool binary(binary_t &) override { return false; }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t &name) override {
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string &, const json::exception &error) override { throw std::invalid_argument(error.what()); }

private:
  json &place(json value) {
    if (open_.empty()) return root = std::move(value);
    if (open_.back()->is_object()) return (*open_.back())[key_] = std::move(value);
    open_.back()->push_back(std::move(value));
    return open_.back()->back();
  }
  bool put(json value) {
    place(std::move(value));
    return true;
  }
  bool put_number(json value) {
    const auto found = large_.find(numbers_++);
    return put(found == large_.end() ? std::move(value) : number_text(found->second));
  }
  bool open(json value) {
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  /// The arrays and objects that have not ended. None of them moves, since only the innermost grows.
  std::vector<json *> open_;
  std::string key_;
  LargeNumbers large_;
  std::size_t numbers_ = 0;
};

/// The request's members; numbers that are no 64-bit integers have their texts in `columns` only.
inline json read_request(const std::string &body) {
  LargeNumbers large;
  const std::string text = without_large_numbers(body, large);
  RequestReader reader(std::move(large));
  json::sax_parse(text, &reader);
  json &request = reader.root;
  if (request.is_object()) {
    for (auto &[name, member] : request.items()) {
      if (is_number_text(member)) member = double_of(member);
    }
  }
  return request;
}
