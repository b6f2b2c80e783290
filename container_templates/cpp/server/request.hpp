// Reads the JSON of a request with the texts of its numbers: a decimal may have more digits than a double.
#pragma once

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
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

inline double double_of(const json &number) { return is_number_text(number) ? std::strtod(text_of(number).c_str(), nullptr) : number.get<double>(); }

/// Builds a value of what the parser finds.
class RequestReader : public nlohmann::json_sax<json> {
public:
  json root;

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t, const string_t &text) override { return put(number_text(text)); }
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
};

/// The request's members; numbers that are no 64-bit integers have their texts in `columns` only.
inline json read_request(const std::string &body) {
  RequestReader reader;
  json::sax_parse(body, &reader);
  json &request = reader.root;
  if (request.is_object()) {
    for (auto &[name, member] : request.items()) {
      if (is_number_text(member)) member = double_of(member);
    }
  }
  return request;
}
