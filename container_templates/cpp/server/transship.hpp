// Handlers in C++: TRANSSHIP_FUNCTION makes a function with C++ types a function of transship.h.
#pragma once

#include <concepts>
#include <cstring>
#include <exception>
#include <optional>
#include <ranges>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "transship.h"

namespace transship {

template <class T> struct is_optional : std::false_type {};
template <class T> struct is_optional<std::optional<T>> : std::true_type {};

/// The C++ value of an argument: bool, an integer, a float, std::string or std::string_view, or an optional of one.
template <class T> T read(const transship_value &value) {
  if constexpr (is_optional<T>::value) {
    if (value.is_null) return std::nullopt;
    return read<typename T::value_type>(value);
  } else {
    if (value.is_null) throw std::invalid_argument("an argument is NULL, which takes a std::optional");
    if constexpr (std::floating_point<T>) return static_cast<T>(value.real);
    else if constexpr (std::integral<T>) return static_cast<T>(value.integer);
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
    result.integer = value;
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

/// Calls a function with the values of its arguments.
template <class R, class... A, std::size_t... I>
R apply(R (*function)(A...), const transship_value *arguments, std::index_sequence<I...>) {
  (void)arguments;
  return function(read<std::remove_cvref_t<A>>(arguments[I])...);
}

template <class R, class... A>
void call(R (*function)(A...), transship_call *call, const transship_value *arguments, transship_value *result) {
  try {
    auto answer = apply(function, arguments, std::index_sequence_for<A...>{});
    using Answer = decltype(answer);
    if constexpr (std::ranges::range<Answer> && !std::convertible_to<Answer, std::string_view>) {
      // A table function: a range of results. emit copies what it is given.
      for (const auto &each : answer) {
        transship_value value{};
        lend(value, each);
        call->emit(call, &value);
      }
    } else {
      write(call, *result, answer);
    }
  } catch (const std::exception &error) {
    call->fail(call, error.what());
  } catch (...) {
    call->fail(call, "an exception that is no std::exception");
  }
}

} // namespace transship

/// Exports `function` under the name that transship.toml gives it; one that returns a range is a table function.
#define TRANSSHIP_FUNCTION(name, function)                                                                              \
  extern "C" TRANSSHIP_EXPORT void name(transship_call *call, const transship_value *arguments, transship_value *result) { \
    transship::call(function, call, arguments, result);                                                                 \
  }
