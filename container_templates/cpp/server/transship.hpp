// Handlers in C++: TRANSSHIP_FUNCTION makes a function with C++ types a function of transship.h.
#pragma once

#include <cmath>
#include <concepts>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <ranges>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "transship.h"

namespace transship {

template <class T> struct is_optional : std::false_type {};
template <class T> struct is_optional<std::optional<T>> : std::true_type {};

/// A value that a type cannot hold; kind is one of docs/protocol.md §5.
struct Misfit : std::out_of_range {
  const char *kind;
  Misfit(const char *kind, const std::string &message) : std::out_of_range(message), kind(kind) {}
};

/// Whether T has an integer. std::in_range knows nothing of bool and of characters.
template <std::integral T> constexpr bool holds(int64_t value) {
  using Limits = std::numeric_limits<T>;
  return value < 0 ? value >= static_cast<int64_t>(Limits::min()) : static_cast<uint64_t>(value) <= static_cast<uint64_t>(Limits::max());
}

/// Whether a float lies within T's range.
template <std::floating_point T> bool holds(double value) {
  return !std::isfinite(value) || std::abs(value) <= std::numeric_limits<T>::max();
}

/// A value as T.
template <class T, class V> T narrowed(V value) {
  if (!holds<T>(value)) {
    std::ostringstream shown;
    shown << "the C++ type cannot hold " << value;
    throw Misfit("out_of_range", shown.str());
  }
  return static_cast<T>(value);
}

/// The C++ value of an argument: bool, an integer, a float, std::string or std::string_view, or an optional of one.
template <class T> T read(const transship_value &value) {
  if constexpr (is_optional<T>::value) {
    if (value.is_null) return std::nullopt;
    return read<typename T::value_type>(value);
  } else {
    if (value.is_null) throw std::invalid_argument("an argument is NULL, which takes a std::optional");
    if constexpr (std::floating_point<T>) return narrowed<T>(value.real);
    else if constexpr (std::integral<T>) return narrowed<T>(value.integer);
    else return T(value.data, value.size);
  }
}

/// Makes a C++ value a result, which refers to the text of the value.
template <class T> void lend(transship_value &result, const T &value) {
  if constexpr (is_optional<T>::value) {
    result.is_null = !value.has_value();
    if (value) lend(result, *value);
  } else if constexpr (std::floating_point<T>) {
    result.real = value;
  } else if constexpr (std::integral<T>) {
    if (value > 0 && static_cast<uint64_t>(value) > static_cast<uint64_t>(INT64_MAX)) {
      throw Misfit("bad_result", "It returned " + std::to_string(value) + ", which no integer of SQL can hold.");
    }
    result.integer = static_cast<int64_t>(value);
  } else {
    const std::string_view text = value;
    result.data = text.data();
    result.size = text.size();
  }
}

/// The same with a copy of the text, which lives until the batch is answered.
template <class T> void write(transship_call *call, transship_value &result, const T &value) {
  lend(result, value);
  if (result.is_null || result.size == 0) return;
  char *copy = static_cast<char *>(call->allocate(call, result.size));
  std::memcpy(copy, result.data, result.size);
  result.data = copy;
}

/// What becomes of a range of results one by one, and of any other result at once.
template <class T> constexpr bool is_table = std::ranges::range<T> && !std::convertible_to<T, std::string_view>;

/// How the server, which compares it with the declared type, calls a C++ type: i for an integer or bool, f for a float, s for a text.
template <class T> constexpr char letter_of() {
  if constexpr (is_optional<T>::value) return letter_of<typename T::value_type>();
  else return std::floating_point<T> ? 'f' : std::integral<T> ? 'i' : 's';
}

/// The letters of a function's types, as of "f(is)" for a result and two arguments; a range of results has a star.
template <class R, class... A> const char *types_of(R (*)(A...)) {
  using Answer = std::remove_cvref_t<R>;
  if constexpr (is_table<Answer>) {
    using Result = std::remove_cvref_t<std::ranges::range_reference_t<Answer>>;
    static constexpr char types[] = {'*', letter_of<Result>(), '(', letter_of<std::remove_cvref_t<A>>()..., ')', 0};
    return types;
  } else {
    static constexpr char types[] = {letter_of<Answer>(), '(', letter_of<std::remove_cvref_t<A>>()..., ')', 0};
    return types;
  }
}

/// The call that this thread runs a function of TRANSSHIP_FUNCTION for.
inline thread_local transship_call *current_call = nullptr;

/// The call has failed, and knows why.
struct Failed {};

/// What letter_of says of a column's type.
inline char letter_of(std::string_view type) {
  if (type == "bool" || type == "int2" || type == "int4" || type == "int8") return 'i';
  return type == "float4" || type == "float8" ? 'f' : 's';
}

/// A row of a shared table, to be read before the function returns.
class Row {
public:
  Row(const transship_shared_table *table, const transship_found *found, std::size_t row) : table_(table), found_(found), row_(row) {}

  /// The value of a column: bool, an integer, a float, std::string or std::string_view, or a std::optional of one where it may be NULL.
  template <class T> T get(const char *column) const {
    const transship_value &value = found_->column(found_, column)[row_];
    if (current_call->is_failed(current_call)) throw Failed();
    for (std::size_t i = 0; i < table_->columns; i++) {
      if (std::string_view(table_->names[i]) == column && letter_of(table_->types[i]) != letter_of<T>()) refuse(column, std::string("of type ") + table_->types[i]);
    }
    if (!is_optional<T>::value && value.is_null) refuse(column, "NULL, which takes a std::optional");
    return read<T>(value);
  }

private:
  [[noreturn]] static void refuse(const char *column, const std::string &fact) {
    throw std::invalid_argument(std::string("column \"") + column + "\" is " + fact);
  }

  const transship_shared_table *table_;
  const transship_found *found_;
  std::size_t row_;
};

/// A shared table of the call, to be used by the thread that runs the function. A key is a value for each column of the table's key.
class Table {
public:
  explicit Table(const transship_shared_table *table) : table_(table) {}

  std::size_t rows() const { return table_->rows; }

  /// The row of a key. An error if the key has several.
  template <class... K> std::optional<Row> get(const K &...key) const {
    const transship_found *found = with_key([&](const transship_value *values) { return table_->get(table_, values); }, key...);
    return found ? std::optional<Row>(Row(table_, found, 0)) : std::nullopt;
  }

  /// All rows of a key.
  template <class... K> std::vector<Row> matches(const K &...key) const {
    const transship_found *found = with_key([&](const transship_value *values) {
      std::vector<const transship_value *> columns;
      for (std::size_t i = 0; i < table_->key_columns; i++) columns.push_back(values + i);
      return table_->matches(table_, 1, columns.data());
    }, key...);
    std::vector<Row> rows;
    for (std::size_t row = 0; row < found->rows; row++) rows.emplace_back(table_, found, row);
    return rows;
  }

private:
  /// Looks for a key, whose types are those of the key's columns.
  template <class Find, class... K> const transship_found *with_key(const Find &find, const K &...key) const {
    if (sizeof...(K) != table_->key_columns) throw std::invalid_argument("the key of the table has " + std::to_string(table_->key_columns) + " columns");
    const char letters[] = {letter_of_key<K>()..., 0};
    transship_value values[sizeof...(K) + 1] = {};
    std::size_t count = 0;
    (lend(values[count++], key), ...);
    for (std::size_t i = 0; i < count; i++) {
      const char *type = table_->types[table_->key[i]];
      if (letters[i] != letter_of(type)) throw std::invalid_argument(std::string("the key does not fit column \"") + table_->names[table_->key[i]] + "\" of type " + type);
    }
    const transship_found *found = find(values);
    if (current_call->is_failed(current_call)) throw Failed();
    return found;
  }

  template <class T> static constexpr char letter_of_key() { return letter_of<std::decay_t<T>>(); }

  const transship_shared_table *table_;
};

/// A shared table that the function's key `tables` names, for functions of TRANSSHIP_FUNCTION. Others take it from their call.
inline Table table(const char *name) {
  if (!current_call) throw std::logic_error("transship::table is for the thread that runs a function of TRANSSHIP_FUNCTION");
  const transship_shared_table *found = current_call->table(current_call, name);
  if (current_call->is_failed(current_call)) throw Failed();
  return Table(found);
}

/// Calls a function with the values of its arguments.
template <class R, class... A, std::size_t... I>
R apply(R (*function)(A...), const transship_value *arguments, std::index_sequence<I...>) {
  (void)arguments;
  return function(read<std::remove_cvref_t<A>>(arguments[I])...);
}

template <class R, class... A>
void call(R (*function)(A...), transship_call *call, const transship_value *arguments, transship_value *result) {
  current_call = call;
  try {
    auto answer = apply(function, arguments, std::index_sequence_for<A...>{});
    using Answer = decltype(answer);
    if constexpr (is_table<Answer>) {
      // A table function: a range of results. emit copies what it is given.
      for (const auto &each : answer) {
        transship_value value{};
        lend(value, each);
        if (!call->emit(call, &value)) break;
      }
    } else {
      write(call, *result, answer);
    }
  } catch (const Failed &) {
    // The call knows why.
  } catch (const Misfit &misfit) {
    call->refuse(call, misfit.kind, misfit.what());
  } catch (const std::exception &error) {
    call->fail(call, error.what());
  } catch (...) {
    call->fail(call, "an exception that is no std::exception");
  }
  current_call = nullptr;
}

} // namespace transship

/// Exports `function` under the name that transship.toml gives it, and its types; one that returns a range is a table function.
#define TRANSSHIP_FUNCTION(name, function)                                                                              \
  extern "C" TRANSSHIP_EXPORT void name(transship_call *call, const transship_value *arguments, transship_value *result) { \
    transship::call(function, call, arguments, result);                                                                 \
  }                                                                                                                     \
  extern "C" TRANSSHIP_EXPORT const char *transship_types_of_##name(void) { return transship::types_of(function); }
