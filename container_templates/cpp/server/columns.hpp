// Columns as they lie in memory (docs/protocol.md §7): the buffers of the Arrow columnar format, and a header in JSON that
// says where each begins. Numbers, text and bytes are read as they are; other values through their JSON form.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <span>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

#include "values.hpp"

constexpr const char *columns_type = "application/vnd.transship.columns";

namespace columns {

constexpr std::size_t alignment = 64;
/// Every buffer begins at a multiple of this.
constexpr std::size_t read_alignment = 8;
constexpr int64_t day = 86'400'000'000;

inline std::size_t padded(std::size_t size, std::size_t unit) { return (size + unit - 1) / unit * unit; }

// Dates of any year: the proleptic Gregorian calendar in eras of 400 years (Howard Hinnant, "chrono-Compatible Low-Level
// Date Algorithms").

inline std::string civil(int64_t days) {
  const int64_t shifted = days + 719'468;
  const int64_t era = (shifted >= 0 ? shifted : shifted - 146'096) / 146'097;
  const int64_t day_of_era = shifted - era * 146'097;
  const int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36'524 - day_of_era / 146'096) / 365;
  const int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const int64_t month = (5 * day_of_year + 2) / 153;
  const int64_t year = year_of_era + era * 400 + (month >= 10 ? 1 : 0);
  char text[96];
  std::snprintf(text, sizeof text, "%s%04lld-%02lld-%02lld", year < 0 ? "-" : year > 9999 ? "+" : "", static_cast<long long>(std::abs(year)),
                static_cast<long long>(month < 10 ? month + 3 : month - 9), static_cast<long long>(day_of_year - (153 * month + 2) / 5 + 1));
  return text;
}

inline int64_t days_of(int64_t year, int64_t month, int64_t of_month) {
  const int64_t shifted = month <= 2 ? year - 1 : year;
  const int64_t era = (shifted >= 0 ? shifted : shifted - 399) / 400;
  const int64_t year_of_era = shifted - era * 400;
  const int64_t day_of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + of_month - 1;
  return era * 146'097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719'468;
}

inline std::string time_text(int64_t micros) {
  char text[96];
  const int64_t seconds = micros / 1'000'000;
  std::snprintf(text, sizeof text, "%02lld:%02lld:%02lld.%06lld", static_cast<long long>(seconds / 3600), static_cast<long long>(seconds / 60 % 60),
                static_cast<long long>(seconds % 60), static_cast<long long>(micros % 1'000'000));
  return text;
}

template <class T> std::string infinite(T value) {
  return value == std::numeric_limits<T>::max() ? "infinity" : value == std::numeric_limits<T>::min() ? "-infinity" : "";
}

inline std::string moment_text(int64_t micros, const char *zone) {
  if (const std::string text = infinite(micros); !text.empty()) return text;
  const int64_t in_day = (micros % day + day) % day;
  return civil((micros - in_day) / day) + "T" + time_text(in_day) + zone;
}

[[noreturn]] inline void refuse_text(const std::string &text) { throw std::invalid_argument("\"" + text.substr(0, 60) + "\""); }

inline int64_t read_date(const std::string &text) {
  long long year = 0, month = 0, of_month = 0;
  int end = 0;
  if (std::sscanf(text.c_str(), "%lld-%2lld-%2lld%n", &year, &month, &of_month, &end) != 3 || end != static_cast<int>(text.size()) || month < 1 ||
      month > 12 || of_month < 1 || of_month > 31 || std::abs(year) > 10'000'000 || civil(days_of(year, month, of_month)).ends_with(text.substr(1)) == false) {
    refuse_text(text);
  }
  return days_of(year, month, of_month);
}

inline int64_t read_time(const std::string &text) {
  long long hours = 0, minutes = 0, seconds = 0;
  int end = 0;
  if (std::sscanf(text.c_str(), "%2lld:%2lld:%2lld%n", &hours, &minutes, &seconds, &end) != 3 || hours < 0 || minutes < 0 || minutes > 59 || seconds < 0 || seconds > 60) refuse_text(text);
  std::string fraction = text.substr(end);
  if (!fraction.empty()) {
    if (fraction[0] != '.' || fraction.size() < 2 || fraction.size() > 7 || !std::all_of(fraction.begin() + 1, fraction.end(), ::isdigit)) refuse_text(text);
    fraction.erase(0, 1);
  }
  fraction.resize(6, '0');
  const int64_t micros = ((hours * 60 + minutes) * 60 + seconds) * 1'000'000 + std::stoll(fraction);
  if (micros > day) refuse_text(text);
  return micros;
}

inline int64_t read_moment(const std::string &text, bool has_zone) {
  if (text == "infinity") return std::numeric_limits<int64_t>::max();
  if (text == "-infinity") return std::numeric_limits<int64_t>::min();
  const auto middle = text.find('T');
  if (middle == std::string::npos) refuse_text(text);
  std::string time = text.substr(middle + 1);
  int64_t offset = 0;
  if (has_zone) {
    if (time.ends_with('Z')) {
      time.pop_back();
    } else {
      int hours = 0, minutes = 0, end = 0;
      const auto sign = time.find_first_of("+-");
      if (sign == std::string::npos || std::sscanf(time.c_str() + sign + 1, "%2d:%2d%n", &hours, &minutes, &end) != 2 || sign + 1 + end != time.size()) refuse_text(text);
      offset = (hours * 60 + minutes) * 60'000'000LL * (time[sign] == '-' ? -1 : 1);
      time.resize(sign);
    }
  }
  return read_date(text.substr(0, middle)) * day + read_time(time) - offset;
}

inline bool is_utf8(std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const auto byte = [&](std::size_t i) { return at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u; };
    const unsigned first = byte(0);
    const std::size_t size = first < 0x80 ? 1 : first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
    if (size == 0) return false;
    for (std::size_t i = 1; i < size; i++) if ((byte(i) & 0xc0) != 0x80) return false;
    // Forms that are longer than need be, half surrogates, and what is above the last character.
    if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) || (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) return false;
    at += size;
  }
  return true;
}

/// A file, closed when it goes.
class File {
public:
  File(const json &name, int flags) {
    const char *folder = std::getenv("TRANSSHIP_SEGMENT_DIR");
    const std::string text = name.is_string() ? name.get<std::string>() : "";
    const bool is_name = text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!folder || !is_name) throw violation("there is no segment " + name.dump());
    descriptor_ = open((std::string(folder) + "/" + text).c_str(), flags | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor_ < 0) throw violation("segment " + text + " cannot be opened: " + std::strerror(errno));
  }
  ~File() { close(descriptor_); }
  File(const File &) = delete;
  File &operator=(const File &) = delete;

  std::string read(std::size_t size) const {
    struct stat found;
    // A size that is not there must not cost its memory.
    if (fstat(descriptor_, &found) != 0 || static_cast<std::size_t>(found.st_size) < size) throw violation("a segment has less than " + std::to_string(size) + " bytes");
    std::string bytes(size, 0);
    for (std::size_t at = 0; at < size;) {
      const ssize_t read = pread(descriptor_, bytes.data() + at, size - at, static_cast<off_t>(at));
      if (read <= 0) throw violation("a segment has less than " + std::to_string(size) + " bytes");
      at += static_cast<std::size_t>(read);
    }
    return bytes;
  }

  void write(const std::string &bytes) const {
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t written = pwrite(descriptor_, bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
      if (written <= 0) throw std::runtime_error(std::string("a segment cannot be written: ") + std::strerror(errno));
      at += static_cast<std::size_t>(written);
    }
  }

private:
  int descriptor_;
};

/// Reads columns out of bytes that nobody has checked.
class Reader {
public:
  Reader(std::string_view data, const json &places) : data_(data) {
    if (!places.is_array() || places.size() % 2 != 0) throw violation("the request cannot be read: it has no buffers");
    for (const json &place : places) {
      if (!place.is_number_unsigned()) throw violation("the request cannot be read: a buffer has no place");
      places_.push_back(place.get<uint64_t>());
    }
  }

  Values column(const Type &type, std::size_t rows, Memory &memory) {
    if (!type.is_plain()) {
      const std::vector<json> texts = json_column(type, rows);
      Values values;
      for (const json &text : texts) values.push_back(read_value(type, text, memory));
      return values;
    }
    const std::string_view validity = next_validity(rows);
    Values values(rows);
    for (std::size_t row = 0; row < rows; row++) values[row].is_null = !is_valid(validity, row);
    if (type.type == "bool") {
      const std::string_view bits = next((rows + 7) / 8);
      for (std::size_t row = 0; row < rows; row++) values[row].integer = bit(bits, row);
    } else if (type.type == "int2") {
      fill<int16_t>(values, &transship_value::integer);
    } else if (type.type == "int4") {
      fill<int32_t>(values, &transship_value::integer);
    } else if (type.type == "int8") {
      fill<int64_t>(values, &transship_value::integer);
    } else if (type.type == "float4") {
      fill<float>(values, &transship_value::real);
    } else if (type.type == "float8") {
      fill<double>(values, &transship_value::real);
    } else {
      each_text(type, rows, [&](std::size_t row, std::string_view text) {
        if (!values[row].is_null) memory.keep(values[row], text);
      });
    }
    return values;
  }

  void finish() const {
    if (position_ != places_.size()) throw violation("the request cannot be read: it has more buffers than columns");
  }

private:
  /// The values of the JSON form.
  std::vector<json> json_column(const Type &type, std::size_t rows) {
    const std::string_view validity = next_validity(rows);
    std::vector<json> values(rows);
    const auto each = [&](auto value) {
      for (std::size_t row = 0; row < rows; row++) if (is_valid(validity, row)) values[row] = value(row);
    };
    if (type.type == "array") {
      const std::vector<int32_t> offsets = next_offsets(rows);
      const std::vector<json> elements = json_column(type.parts[0].second, static_cast<std::size_t>(offsets.back()));
      each([&](std::size_t row) { return json(std::vector<json>(elements.begin() + offsets[row], elements.begin() + offsets[row + 1])); });
    } else if (type.type == "range" || type.type == "composite") {
      std::vector<std::vector<json>> parts;
      for (const auto &part : type.parts) parts.push_back(json_column(part.second, rows));
      each([&](std::size_t row) {
        json object = json::object();
        for (std::size_t i = 0; i < parts.size(); i++) object[type.parts[i].first] = parts[i][row];
        return object;
      });
    } else if (type.type == "bool") {
      const std::string_view bits = next((rows + 7) / 8);
      each([&](std::size_t row) { return json(bit(bits, row)); });
    } else if (type.type == "uuid") {
      const std::string_view bytes = next(checked(rows, 16));
      each([&](std::size_t row) {
        std::string text;
        for (std::size_t i = 0; i < 16; i++) {
          char digits[3];
          std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(bytes[row * 16 + i]));
          if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
          text += digits;
        }
        return json(text);
      });
    } else if (type.type == "interval") {
      const std::string_view bytes = next(checked(rows, 16));
      each([&](std::size_t row) {
        const auto nanoseconds = at<int64_t>(bytes, row * 2 + 1);
        json value = {{"months", at<int32_t>(bytes, row * 4)}, {"days", at<int32_t>(bytes, row * 4 + 1)}, {"microseconds", nanoseconds / 1000}};
        if (nanoseconds % 1000 != 0) value["nanoseconds"] = nanoseconds % 1000;
        return value;
      });
    } else if (type.type == "date") {
      const std::string_view bytes = next(checked(rows, 4));
      each([&](std::size_t row) {
        const auto days = at<int32_t>(bytes, row);
        return json(infinite(days).empty() ? civil(days) : infinite(days));
      });
    } else if (type.type == "int2" || type.type == "int4" || type.type == "int8" || type.type == "time" || type.type.starts_with("timestamp")) {
      const std::size_t width = type.type == "int2" ? 2 : type.type == "int4" ? 4 : 8;
      const std::string_view bytes = next(checked(rows, width));
      each([&](std::size_t row) {
        if (width == 2) return json(at<int16_t>(bytes, row));
        if (width == 4) return json(at<int32_t>(bytes, row));
        const auto value = at<int64_t>(bytes, row);
        if (type.type == "time") return json(time_text(value));
        if (type.type == "int8") return std::abs(value) <= max_safe_integer ? json(value) : json(std::to_string(value));
        return json(moment_text(value, type.type == "timestamptz" ? "Z" : ""));
      });
    } else if (type.is_real()) {
      const bool is_double = type.type == "float8";
      const std::string_view bytes = next(checked(rows, is_double ? 8 : 4));
      each([&](std::size_t row) {
        transship_value value{};
        value.real = is_double ? at<double>(bytes, row) : static_cast<double>(at<float>(bytes, row));
        return write_value(type, value);
      });
    } else {
      each_text(type, rows, [&](std::size_t row, std::string_view text) {
        if (is_valid(validity, row)) values[row] = type.type == "bytea" ? encode_base64(std::string(text)) : std::string(text);
      });
    }
    return values;
  }

  template <class T, class M> void fill(Values &values, M transship_value::*member) {
    const std::string_view bytes = next(checked(values.size(), sizeof(T)));
    for (std::size_t row = 0; row < values.size(); row++) values[row].*member = static_cast<M>(at<T>(bytes, row));
  }

  template <class Take> void each_text(const Type &type, std::size_t rows, Take take) {
    const std::vector<int32_t> offsets = next_offsets(rows);
    const std::string_view bytes = next(static_cast<std::size_t>(offsets.back()));
    for (std::size_t row = 0; row < rows; row++) {
      const std::string_view text = bytes.substr(static_cast<std::size_t>(offsets[row]), static_cast<std::size_t>(offsets[row + 1] - offsets[row]));
      if (type.type != "bytea" && !is_utf8(text)) throw violation("the request cannot be read: a text is not UTF-8");
      take(row, text);
    }
  }

  static std::size_t checked(std::size_t rows, std::size_t width) {
    if (rows > std::numeric_limits<int32_t>::max()) throw violation("the request cannot be read: it has too many rows");
    return rows * width;
  }

  std::string_view next(std::size_t least) {
    if (position_ == places_.size()) throw violation("the request cannot be read: it has fewer buffers than columns");
    const uint64_t offset = places_[position_], length = places_[position_ + 1];
    position_ += 2;
    if (offset % read_alignment != 0 || offset > data_.size() || length > data_.size() - offset) {
      throw violation("the request cannot be read: no buffer of " + std::to_string(length) + " bytes can be at " + std::to_string(offset));
    }
    if (length < least) throw violation("the request cannot be read: a buffer has " + std::to_string(length) + " bytes, not " + std::to_string(least));
    return data_.substr(offset, length);
  }

  std::string_view next_validity(std::size_t rows) {
    (void)checked(rows, 1);
    const std::string_view bits = next(0);
    if (!bits.empty() && bits.size() < (rows + 7) / 8) throw violation("the request cannot be read: a validity buffer is too short");
    return bits;
  }

  std::vector<int32_t> next_offsets(std::size_t rows) {
    const std::string_view bytes = next(rows == 0 ? 0 : checked(rows + 1, 4));
    std::vector<int32_t> offsets(rows + 1);
    if (rows > 0) std::memcpy(offsets.data(), bytes.data(), (rows + 1) * 4);
    if (offsets[0] < 0 || !std::is_sorted(offsets.begin(), offsets.end())) throw violation("the request cannot be read: offsets descend");
    return offsets;
  }

  static bool bit(std::string_view bits, std::size_t row) { return static_cast<unsigned char>(bits[row / 8]) >> row % 8 & 1; }
  static bool is_valid(std::string_view validity, std::size_t row) { return validity.empty() || bit(validity, row); }

  template <class T> static T at(std::string_view bytes, std::size_t index) {
    T value;
    std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
    return value;
  }

  std::string_view data_;
  std::vector<uint64_t> places_;
  std::size_t position_ = 0;
};

/// Lays columns out.
class Writer {
public:
  std::string data;
  std::vector<std::size_t> places;

  /// A result that does not fit is a std::exception, and `row` says which.
  void column(const Type &type, std::span<const transship_value> values, std::size_t &row) {
    const auto check = [&](auto write) {
      for (row = 0; row < values.size(); row++) write(write_value(type, values[row]), values[row]);
    };
    if (type.is_integer() || type.is_real() || type.type == "bool") {
      add_validity(values.size(), [&](std::size_t i) { return values[i].is_null == 0; });
      const std::size_t width = type.type == "int2" ? 2 : type.type == "int4" || type.type == "float4" ? 4 : 8;
      std::string bytes(type.type == "bool" ? (values.size() + 7) / 8 : values.size() * width, 0);
      for (row = 0; row < values.size(); row++) {
        const transship_value &value = values[row];
        if (value.is_null) continue;
        // What fits is told without its JSON.
        if (type.type != "int8" && type.type != "float8") (void)write_value(type, value);
        if (type.type == "bool") bytes[row / 8] = static_cast<char>(bytes[row / 8] | (value.integer != 0) << row % 8);
        else if (type.type == "int2") put(bytes, row, static_cast<int16_t>(value.integer));
        else if (type.type == "int4") put(bytes, row, static_cast<int32_t>(value.integer));
        else if (type.type == "int8") put(bytes, row, value.integer);
        else if (type.type == "float4") put(bytes, row, static_cast<float>(value.real));
        else put(bytes, row, value.real);
      }
      add(bytes);
    } else if (type.is_plain()) {
      std::string bytes;
      std::vector<int32_t> offsets = {0};
      for (row = 0; row < values.size(); row++) {
        const transship_value &value = values[row];
        if (!value.is_null) {
          if (!value.data && value.size > 0) throw std::invalid_argument("a text without bytes");
          const std::string_view text(value.data ? value.data : "", value.size);
          if (type.type != "bytea" && !is_utf8(text)) throw std::invalid_argument("a text that is not UTF-8");
          bytes += text;
        }
        offsets.push_back(checked_size(bytes.size()));
      }
      add_validity(values.size(), [&](std::size_t i) { return values[i].is_null == 0; });
      add_offsets(offsets);
      add(bytes);
    } else {
      std::vector<json> texts;
      check([&](json text, const transship_value &) { texts.push_back(std::move(text)); });
      json_column(type, texts, &row);
    }
  }

private:
  /// Values of the JSON form. `at` says which is at fault, where it is a column of results.
  void json_column(const Type &type, const std::vector<json> &values, std::size_t *at = nullptr) {
    add_validity(values.size(), [&](std::size_t i) { return !values[i].is_null(); });
    std::size_t ignored = 0;
    std::size_t &row = at ? *at : ignored;
    if (type.type == "array") {
      std::vector<json> elements;
      std::vector<int32_t> offsets = {0};
      for (row = 0; row < values.size(); row++) {
        if (!values[row].is_null() && !values[row].is_array()) throw std::invalid_argument(values[row].dump().substr(0, 60));
        for (const json &element : values[row]) elements.push_back(element);
        offsets.push_back(checked_size(elements.size()));
      }
      add_offsets(offsets);
      json_column(type.parts[0].second, elements);
      return;
    }
    if (type.type == "range" || type.type == "composite") {
      for (const auto &[name, part] : type.parts) {
        std::vector<json> column;
        for (row = 0; row < values.size(); row++) {
          if (!values[row].is_null() && !values[row].contains(name)) throw std::invalid_argument(values[row].dump().substr(0, 60));
          column.push_back(values[row].is_null() ? json() : values[row][name]);
        }
        json_column(part, column);
      }
      return;
    }
    if (type.is_plain()) {
      // As a handler's values.
      Memory memory;
      Values read;
      for (row = 0; row < values.size(); row++) read.push_back(read_value(type, values[row], memory));
      places.resize(places.size() - 2);
      column(type, read, row);
      return;
    }
    const std::size_t width = type.type == "date" ? 4 : type.type == "uuid" || type.type == "interval" ? 16 : 8;
    std::string bytes(values.size() * width, 0);
    for (row = 0; row < values.size(); row++) {
      const json &value = values[row];
      if (value.is_null()) continue;
      if (type.type == "interval") {
        put(bytes, row * 4, value.value("months", int32_t{0}));
        put(bytes, row * 4 + 1, value.value("days", int32_t{0}));
        put(bytes, row * 2 + 1, value.value("microseconds", int64_t{0}) * 1000 + value.value("nanoseconds", int64_t{0}));
        continue;
      }
      const std::string text = value.get<std::string>();
      if (type.type == "uuid") {
        std::string digits = text;
        std::erase(digits, '-');
        if (text.size() != 36 || digits.size() != 32 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) refuse_text(text);
        for (std::size_t i = 0; i < 16; i++) bytes[row * 16 + i] = static_cast<char>(std::stoi(digits.substr(i * 2, 2), nullptr, 16));
      } else if (type.type == "date") {
        const int32_t limit = text == "infinity" ? std::numeric_limits<int32_t>::max() : text == "-infinity" ? std::numeric_limits<int32_t>::min() : 0;
        put(bytes, row, limit != 0 ? limit : static_cast<int32_t>(read_date(text)));
      } else {
        put(bytes, row, type.type == "time" ? read_time(text) : read_moment(text, type.type == "timestamptz"));
      }
    }
    add(bytes);
  }

  static int32_t checked_size(std::size_t size) {
    if (size > std::numeric_limits<int32_t>::max()) throw std::length_error("more than 2 GiB");
    return static_cast<int32_t>(size);
  }

  template <class T> static void put(std::string &bytes, std::size_t index, T value) { std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T)); }

  void add(std::string_view bytes) {
    if (bytes.empty()) {
      places.insert(places.end(), {0, 0});
      return;
    }
    data.resize(padded(data.size(), alignment), 0);
    places.insert(places.end(), {data.size(), bytes.size()});
    data += bytes;
  }

  void add_offsets(const std::vector<int32_t> &offsets) { add({reinterpret_cast<const char *>(offsets.data()), offsets.size() * 4}); }

  template <class IsThere> void add_validity(std::size_t rows, IsThere is_there) {
    std::string bits((rows + 7) / 8, 0);
    bool has_null = false;
    for (std::size_t row = 0; row < rows; row++) {
      if (is_there(row)) bits[row / 8] = static_cast<char>(bits[row / 8] | 1 << row % 8);
      else has_null = true;
    }
    add(has_null ? bits : std::string());
  }
};

/// A batch of calls in this form.
class Request {
public:
  json header;

  explicit Request(const std::string &body) {
    uint32_t length = 0;
    if (body.size() < 4) throw violation("the request cannot be read: it has no header");
    std::memcpy(&length, body.data(), 4);
    if (length > body.size() - 4) throw violation("the request cannot be read: its header is cut off");
    header = json::parse(body.begin() + 4, body.begin() + 4 + length, nullptr, false);
    if (!header.is_object() || !header.contains("rows") || !header["rows"].is_number_unsigned()) throw violation("the request cannot be read: its header has no rows");
    const json places = header.value("buffers", json());
    if (header.contains("segment")) {
      uint64_t size = 0;
      for (std::size_t i = 0; places.is_array() && i + 1 < places.size(); i += 2) {
        if (places[i].is_number_unsigned() && places[i + 1].is_number_unsigned()) size = std::max(size, places[i].get<uint64_t>() + places[i + 1].get<uint64_t>());
      }
      data_ = File(header["segment"], O_RDONLY).read(size);
    } else {
      data_ = body.substr(std::min(body.size(), padded(4 + length, read_alignment)));
    }
  }

  Columns columns(const std::vector<Type> &types, Memory &memory) const {
    Reader reader(data_, header.value("buffers", json()));
    const std::size_t rows = header["rows"];
    Columns columns;
    for (const Type &type : types) columns.push_back(reader.column(type, rows, memory));
    reader.finish();
    return columns;
  }

  /// The body of the reply with what was laid out.
  std::string reply(const Writer &writer, std::size_t rows, int64_t micros) const {
    json reply = {{"batch", header.value("batch", 0)}, {"rows", rows}, {"micros", micros}, {"buffers", writer.places}};
    const bool has_segment = header.contains("reply_segment");
    if (has_segment) {
      File(header["reply_segment"], O_RDWR).write(writer.data);
      reply["segment"] = header["reply_segment"];
    }
    const std::string text = reply.dump();
    const auto length = static_cast<uint32_t>(text.size());
    std::string body(reinterpret_cast<const char *>(&length), 4);
    body += text;
    body.resize(padded(body.size(), read_alignment), 0);
    return has_segment ? body : body + writer.data;
  }

private:
  std::string data_;
};

} // namespace columns
