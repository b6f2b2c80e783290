// Handlers of TRANSSHIP_FUNCTION whose types are narrower than the declared ones, one that gives results without end, and some that read
// shared tables. The Rust test beside it (c_interface.rs) compiles this and is its client.
#include <cstdio>
#include <memory>
#include <ranges>
#include <string>
#include <vector>

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

static std::optional<std::string> name_of(std::optional<int64_t> number) {
  const auto row = transship::table("numbers").get(number);
  if (!row) return std::nullopt;
  return row->get<std::optional<std::string>>("name");
}
TRANSSHIP_FUNCTION(name, name_of)

static std::vector<std::string> names_of(int64_t number) {
  std::vector<std::string> names;
  for (const auto &row : transship::table("numbers").matches(number)) {
    if (row.get<int64_t>("key") != number) throw std::logic_error("another row");
    names.push_back(row.get<std::string>("name"));
  }
  return names;
}
TRANSSHIP_FUNCTION(names, names_of)

/// Each number is another mistake.
static int64_t mistake(int64_t number) {
  const auto numbers = transship::table(number == 0 ? "letters" : "numbers");
  if (number == 1) numbers.get("1");
  if (number == 2) numbers.get(1, 2);
  const auto row = numbers.get(3);
  if (number == 3) return row->get<int64_t>("nam");
  if (number == 4) return row->get<int64_t>("name");
  if (number == 5) return row->get<int8_t>("key");
  return static_cast<int64_t>(numbers.rows());
}
TRANSSHIP_FUNCTION(mistakes, mistake)

extern "C" TRANSSHIP_EXPORT void all_names(transship_call *call, size_t rows, const transship_value *const *columns, transship_value *results) {
  const transship_shared_table *numbers = call->table(call, "numbers");
  const transship_found *found = numbers->lookup(numbers, rows, columns);
  const transship_value *names = found->column(found, "name");
  for (size_t row = 0; row < rows; row++) results[row] = names[row];
}
