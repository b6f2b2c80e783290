// Types and values: between the JSON form of docs/types.md and transship_value.
#pragma once

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <list>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "request.hpp"
#include "transship.h"

constexpr int64_t max_safe_integer = int64_t{1} << 53;

/// A call that failed; kind is one of docs/protocol.md §5, row counts from zero within the batch, below zero is none.
struct CallError {
  std::string kind;
  std::string message;
  int64_t row = -1;
  std::string traceback;

  json to_wire() const {
    json wire = {{"kind", kind}, {"message", message}};
    if (row >= 0) wire["row"] = row;
    if (!traceback.empty()) wire["traceback"] = traceback;
    return {{"error", wire}};
  }
};

inline CallError violation(const std::string &message) { return {"protocol_violation", message, -1, ""}; }

/// A type of docs/types.md, as functions.json describes it.
struct Type {
  std::string type;
  std::string text;
  /// Of an array its element; of a composite type its attributes, of a range its parts.
  std::vector<std::pair<std::string, Type>> parts;

  explicit Type(const json &node) : type(node["type"]), text(node["text"]) {
    if (node.contains("element")) {
      const Type element(node["element"]);
      if (type == "array") parts.emplace_back("item", element);
      if (type == "range") parts = {{"lower", element}, {"upper", element}, {"lower_inc", "bool"}, {"upper_inc", "bool"}, {"empty", "bool"}};
    }
    if (node.contains("attributes")) {
      for (const json &attribute : node["attributes"]) parts.emplace_back(attribute["name"], Type(attribute));
    }
  }
  Type(const char *name) : type(name), text(name) {}

  bool is_integer() const { return type == "int2" || type == "int4" || type == "int8"; }
  bool is_real() const { return type == "float4" || type == "float8"; }
  /// Whether values travel as bytes: bytea, and what is text in memory.
  bool is_bytes() const {
    return type == "bytea" || type == "text" || type == "numeric" || type == "json" || type == "timetz" || type == "inet" || type == "cidr" ||
           type == "macaddr" || type == "datetime2";
  }
  /// Whether the handler's values are those in memory.
  bool is_plain() const { return type == "bool" || is_integer() || is_real() || is_bytes(); }
  /// Whether values are JSON's arrays and objects, which a handler takes as text.
  bool is_nested() const { return type == "array" || type == "range" || type == "composite" || type == "interval"; }
};

using Values = std::vector<transship_value>;
using Columns = std::vector<Values>;

/// What the values of a batch point to.
class Memory {
public:
  char *allocate(std::size_t size) {
    blocks_.push_back(std::make_unique<char[]>(size + 1));
    return blocks_.back().get();
  }

  void keep(transship_value &value, std::string_view text) {
    char *copy = allocate(text.size());
    text.copy(copy, text.size());
    copy[text.size()] = 0;
    value.data = copy;
    value.size = text.size();
  }

private:
  std::list<std::unique_ptr<char[]>> blocks_;
};

inline const std::string base64_digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

inline std::string encode_base64(const std::string &bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    unsigned bits = 0;
    for (std::size_t i = 0; i < 3; i++) bits = bits << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0);
    for (std::size_t i = 0; i < 4; i++) text += at + i > bytes.size() ? '=' : base64_digits[bits >> (18 - 6 * i) & 63];
  }
  return text;
}

inline std::string decode_base64(const std::string &text) {
  std::string bytes;
  unsigned bits = 0;
  int count = 0;
  for (char c : text) {
    if (std::isspace(static_cast<unsigned char>(c))) continue;
    if (c == '=') break;
    const auto digit = base64_digits.find(c);
    if (digit == std::string::npos) throw std::invalid_argument("it is not base64");
    bits = bits << 6 | static_cast<unsigned>(digit);
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 0xff);
  }
  return bytes;
}

/// An integer that is written with a point or an exponent.
inline int64_t whole_number(const json &number) {
  std::string digits = digits_of(text_of(number));
  const std::size_t point = std::min(digits.find('.'), digits.size());
  const bool is_whole = digits.find_first_not_of('0', point + (point < digits.size())) == std::string::npos;
  digits.resize(point);
  errno = 0;
  const int64_t value = std::strtoll(digits.c_str(), nullptr, 10);
  if (!is_whole || errno != 0) throw std::invalid_argument(text_of(number).substr(0, 60) + ", which is no integer of 64 bits");
  return value;
}

/// A value of a nested type in the JSON form of docs/types.md, whose decimals are strings.
inline json strict_value(const Type &type, const json &value) {
  if (type.type == "numeric" && has_all_digits(value)) return digits_of(text_of(value));
  if (type.is_integer() && is_number_text(value)) return whole_number(value);
  if (is_number_text(value)) return double_of(value);
  json strict = value;
  if (value.is_array()) {
    for (json &element : strict) element = strict_value(type.type == "array" ? type.parts[0].second : type, element);
  } else if (value.is_object()) {
    for (auto &[name, member] : strict.items()) {
      const Type *part = &type;
      for (const auto &[known, its] : type.parts) {
        if (known == name) part = &its;
      }
      member = strict_value(*part, member);
    }
  }
  return strict;
}

inline transship_value read_value(const Type &type, const json &value, Memory &memory) {
  transship_value read{};
  const auto refuse = [&] { throw std::invalid_argument((is_number_text(value) ? text_of(value) : value.dump()).substr(0, 60) + ", which is not of type " + type.text); };
  if (value.is_null()) {
    read.is_null = 1;
  } else if (type.type == "bool") {
    if (!value.is_boolean()) refuse();
    read.integer = value.get<bool>();
  } else if (type.is_integer()) {
    const int bits = type.type == "int2" ? 16 : type.type == "int4" ? 32 : 64;
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) refuse();
    if (value.is_number_integer()) {
      read.integer = value.get<int64_t>();
    } else if (is_number_text(value)) {
      read.integer = whole_number(value);
    } else if (value.is_string()) {
      const std::string text = value;
      char *end = nullptr;
      errno = 0;
      read.integer = std::strtoll(text.c_str(), &end, 10);
      if (text.empty() || *end != 0 || errno != 0) refuse();
    } else {
      refuse();
    }
    if (bits < 64 && (read.integer < -(int64_t{1} << (bits - 1)) || read.integer >= int64_t{1} << (bits - 1))) refuse();
  } else if (type.is_real()) {
    if (value.is_number() || is_number_text(value)) {
      read.real = double_of(value);
    } else if (value.is_string()) {
      const std::string text = value;
      char *end = nullptr;
      read.real = std::strtod(text.c_str(), &end);
      if (text.empty() || *end != 0) refuse();
    } else {
      refuse();
    }
  } else if (type.is_nested()) {
    if (!value.is_structured()) refuse();
    memory.keep(read, value.dump());
  } else if (type.type == "numeric" && has_all_digits(value)) {
    memory.keep(read, digits_of(text_of(value)));
  } else {
    if (!value.is_string()) refuse();
    memory.keep(read, type.type == "bytea" ? decode_base64(value) : value.get<std::string>());
  }
  return read;
}

/// The JSON value of a result; std::exception if it does not fit its type.
inline json write_value(const Type &type, const transship_value &value) {
  if (value.is_null) return nullptr;
  if (type.type == "bool") return value.integer != 0;
  if (type.is_integer()) {
    const int bits = type.type == "int2" ? 16 : type.type == "int4" ? 32 : 64;
    if (bits < 64 && (value.integer < -(int64_t{1} << (bits - 1)) || value.integer >= int64_t{1} << (bits - 1))) {
      throw std::out_of_range(std::to_string(value.integer));
    }
    if (value.integer > max_safe_integer || value.integer < -max_safe_integer) return std::to_string(value.integer);
    return value.integer;
  }
  if (type.is_real()) {
    if (std::isnan(value.real)) return "NaN";
    if (std::isinf(value.real)) return value.real > 0 ? "Infinity" : "-Infinity";
    if (type.type == "float4" && std::isinf(static_cast<float>(value.real))) throw std::out_of_range(std::to_string(value.real));
    return value.real;
  }
  if (!value.data && value.size > 0) throw std::invalid_argument("a text without bytes");
  const std::string text(value.data ? value.data : "", value.size);
  if (type.type == "bytea") return encode_base64(text);
  if (type.is_nested()) return json::parse(text);
  // Refuses what is not UTF-8.
  (void)json(text).dump();
  return text;
}
