// Handlers of TRANSSHIP_FUNCTION whose types are narrower than the declared ones, and one that gives results without end. The Rust test
// beside it (c_interface.rs) compiles this and is its client.
#include <cstdio>
#include <memory>
#include <ranges>

#include "transship.hpp"

static int int_of(int x) { return x; }
TRANSSHIP_FUNCTION(as_int, int_of)

static bool bool_of(bool x) { return x; }
TRANSSHIP_FUNCTION(as_bool, bool_of)

static uint64_t unsigned_of(int64_t x) { return static_cast<uint64_t>(x); }
TRANSSHIP_FUNCTION(as_unsigned, unsigned_of)

static std::optional<float> float_of(std::optional<float> x) { return x; }
TRANSSHIP_FUNCTION(as_float, float_of)

struct Range {
  ~Range() { std::fputs("values: the range has ended\n", stderr); }
};

static auto integers_from(int64_t first) {
  return std::views::iota(first) | std::views::transform([first, range = std::make_shared<Range>()](int64_t x) {
           if (x == first) std::fputs("values: the range has begun\n", stderr);
           return x;
         });
}
TRANSSHIP_FUNCTION(integers, integers_from)
