// A handler whose table function gives more text than the server should keep. The Rust test beside it (c_interface.rs) compiles this
// and is its client.
#include <ranges>

#include "transship.hpp"

/// So many copies of a text of so many bytes, one after the other.
static auto copies_of(int64_t count, int64_t size) {
  return std::views::iota(int64_t{0}, count) | std::views::transform([size](int64_t) { return std::string(size, 'x'); });
}
TRANSSHIP_FUNCTION(copies, copies_of)
