// The handler. server/transship.hpp says which C++ types it may take, server/transship.h what a handler in C looks like.
#include <cmath>
#include <sstream>
#include <vector>

#include "transship.hpp"

/// One row at a time; an optional takes NULL.
static std::optional<int64_t> add_one_to(std::optional<int64_t> x) {
  if (!x) return std::nullopt;
  return *x + 1;
}
TRANSSHIP_FUNCTION(add_one, add_one_to)

/// A whole batch at a time (batch = "columns" in transship.toml), with the values of transship.h.
extern "C" TRANSSHIP_EXPORT void hypotenuse(transship_call *, size_t rows, const transship_value *const *columns, transship_value *results) {
  for (size_t row = 0; row < rows; row++) {
    results[row].is_null = columns[0][row].is_null || columns[1][row].is_null;
    results[row].real = std::hypot(columns[0][row].real, columns[1][row].real);
  }
}

/// A table function: any number of results for each row.
static std::vector<std::string> words_of(const std::string &text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}
TRANSSHIP_FUNCTION(words, words_of)

/// An aggregate function: a state per group of rows, zero at first. States travel as they are, so without pointers.
struct Longest {
  bool is_known;
  size_t size;
  char text[1000];
};

extern "C" {
TRANSSHIP_EXPORT size_t longest_state_size = sizeof(Longest);

TRANSSHIP_EXPORT void longest_step(transship_call *call, void *state, const transship_value *arguments) {
  Longest &longest = *static_cast<Longest *>(state);
  if (arguments[0].is_null || (longest.is_known && arguments[0].size <= longest.size)) return;
  if (arguments[0].size > sizeof longest.text) return call->fail(call, "texts of more than 1000 bytes are too long");
  longest.is_known = true;
  longest.size = arguments[0].size;
  std::memcpy(longest.text, arguments[0].data, longest.size);
}

TRANSSHIP_EXPORT void longest_merge(transship_call *call, void *state, const void *other) {
  const Longest &from = *static_cast<const Longest *>(other);
  const transship_value text{!from.is_known, 0, 0, from.text, from.size};
  longest_step(call, state, &text);
}

TRANSSHIP_EXPORT void longest_finish(transship_call *, const void *state, transship_value *result) {
  const Longest &longest = *static_cast<const Longest *>(state);
  *result = {!longest.is_known, 0, 0, longest.text, longest.size};
}
}
