// Columns of the Arrow C data interface, as values of transship.h: bool, int64, float64 and bytes, the plain columns of
// transship_core.h.
#pragma once

#include <cstring>
#include <limits>
#include <list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transship.h"
#include "transship_core.h"

using Values = std::vector<transship_value>;

/// What the values of a batch point to.
class Memory {
public:
  char *allocate(std::size_t size) {
    blocks_.push_back(std::make_unique<char[]>(size + 1));
    return blocks_.back().get();
  }

private:
  std::list<std::unique_ptr<char[]>> blocks_;
};

/// Whether a bit is set.
inline bool has_bit(const uint8_t *bits, std::size_t at) { return bits[at / 8] >> (at % 8) & 1; }

/// The values of rows of a column, from the row `first` of its buffers on; texts end with a zero that does not count.
inline Values values_of(const transship_column &column, std::size_t first, std::size_t rows, Memory &memory) {
  const auto *offsets = static_cast<const int32_t *>(column.values);
  char *copy = column.format == 'z' && rows > 0 ? memory.allocate(static_cast<std::size_t>(offsets[first + rows] - offsets[first]) + rows) : nullptr;
  Values values(rows);
  for (std::size_t row = 0; row < rows; row++) {
    transship_value &value = values[row];
    const std::size_t at = first + row;
    value.is_null = column.validity && !has_bit(column.validity, at);
    if (value.is_null) continue;
    if (column.format == 'b') {
      value.integer = has_bit(static_cast<const uint8_t *>(column.values), at);
    } else if (column.format == 'l') {
      value.integer = static_cast<const int64_t *>(column.values)[at];
    } else if (column.format == 'g') {
      value.real = static_cast<const double *>(column.values)[at];
    } else {
      value.size = static_cast<std::size_t>(offsets[at + 1] - offsets[at]);
      if (value.size > 0) std::memcpy(copy, column.bytes + offsets[at], value.size);
      copy[value.size] = 0;
      value.data = copy;
      copy += value.size + 1;
    }
  }
  return values;
}

/// A batch of calls, released when it goes.
class Batch {
public:
  explicit Batch(const transship_work *work) {
    if (transship_work_batch(work, &array_, &schema_) != TRANSSHIP_OK) throw std::runtime_error(transship_message());
  }
  /// Takes over what transship_work_next has given.
  Batch(const ArrowArray &array, const ArrowSchema &schema) : array_(array), schema_(schema) {}
  ~Batch() {
    array_.release(&array_);
    schema_.release(&schema_);
  }
  Batch(const Batch &) = delete;
  Batch &operator=(const Batch &) = delete;

  std::size_t rows() const { return static_cast<std::size_t>(array_.length); }
  std::size_t width() const { return static_cast<std::size_t>(array_.n_children); }

  /// A column's values; texts end with a zero that does not count.
  Values column(std::size_t position, Memory &memory) const {
    const ArrowArray &column = *array_.children[position];
    const auto rows = static_cast<std::size_t>(column.length), first = static_cast<std::size_t>(column.offset);
    const auto *bytes = column.n_buffers > 2 ? static_cast<const uint8_t *>(column.buffers[2]) : nullptr;
    const char format = schema_.children[position]->format[0];
    return values_of({format, static_cast<const uint8_t *>(column.buffers[0]), column.buffers[1], bytes}, first, rows, memory);
  }

private:
  ArrowArray array_{};
  ArrowSchema schema_{};
};

/// A result that does not fit.
struct Misfit : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A column of results that grows.
class Results {
public:
  /// Of the format of its Arrow type: b, l, g or z.
  explicit Results(char format) : format_(format) {
    if (format == 'z') offsets_.push_back(0);
  }

  std::size_t size() const { return rows_; }
  std::size_t text_bytes() const { return bytes_.size(); }

  void add(const transship_value &value) {
    if (rows_ % 8 == 0) validity_.push_back(0);
    if (format_ == 'b' && rows_ % 8 == 0) bits_.push_back(0);
    if (value.is_null) {
      nulls_++;
    } else {
      set(validity_);
    }
    if (format_ == 'b') {
      if (!value.is_null && value.integer != 0) set(bits_);
    } else if (format_ == 'l') {
      integers_.push_back(value.is_null ? 0 : value.integer);
    } else if (format_ == 'g') {
      reals_.push_back(value.is_null ? 0 : value.real);
    } else {
      if (!value.is_null && value.size > 0) {
        if (!value.data) throw Misfit("a text without bytes");
        if (value.size > std::numeric_limits<int32_t>::max() - bytes_.size()) throw Misfit("more than 2 GiB");
        bytes_.append(value.data, value.size);
      }
      offsets_.push_back(static_cast<int32_t>(bytes_.size()));
    }
    rows_++;
  }

  void add_text(std::string_view text) { add({0, 0, 0, text.data(), text.size()}); }
  void add_null() { add({1, 0, 0, nullptr, 0}); }

  /// The column where it lies.
  transship_column lend() const { return {format_, nulls_ > 0 ? validity_.data() : nullptr, values(), reinterpret_cast<const uint8_t *>(bytes_.data())}; }

  /// Hands the column over.
  static void release_array(ArrowArray *array) {
    delete static_cast<Results *>(array->private_data);
    array->release = nullptr;
  }

  /// Moves the column out, and leaves an empty one.
  void export_to(ArrowArray &array, ArrowSchema &schema) {
    auto *kept = new Results(std::exchange(*this, Results(format_)));
    kept->buffers_[0] = kept->nulls_ > 0 ? kept->validity_.data() : nullptr;
    kept->buffers_[1] = kept->values();
    kept->buffers_[2] = kept->bytes_.data();
    array = {};
    array.length = static_cast<int64_t>(kept->rows_);
    array.null_count = static_cast<int64_t>(kept->nulls_);
    array.n_buffers = kept->format_ == 'z' ? 3 : 2;
    array.buffers = kept->buffers_;
    array.release = release_array;
    array.private_data = kept;
    schema = {};
    schema.format = kept->format_ == 'b' ? "b" : kept->format_ == 'l' ? "l" : kept->format_ == 'g' ? "g" : "z";
    schema.name = "";
    schema.flags = ARROW_FLAG_NULLABLE;
    schema.release = [](ArrowSchema *it) { it->release = nullptr; };
  }

private:
  const void *values() const {
    if (format_ == 'b') return bits_.data();
    if (format_ == 'l') return integers_.data();
    if (format_ == 'g') return reals_.data();
    return offsets_.data();
  }

  void set(std::vector<uint8_t> &bits) const { bits.back() = static_cast<uint8_t>(bits.back() | 1 << rows_ % 8); }

  char format_;
  std::size_t rows_ = 0, nulls_ = 0;
  std::vector<uint8_t> validity_, bits_;
  std::vector<int64_t> integers_;
  std::vector<double> reals_;
  std::vector<int32_t> offsets_;
  std::string bytes_;
  const void *buffers_[3] = {};
};

/// A reply: columns of the same length, handed over as an array of structs.
class Reply {
public:
  explicit Reply(std::initializer_list<char> formats) {
    for (char format : formats) columns.emplace_back(format);
  }

  std::vector<Results> columns;

  /// Moves the columns out, and leaves empty ones.
  void export_to(ArrowArray &array, ArrowSchema &schema) {
    auto kept = std::make_unique<Parts<ArrowArray>>(columns.size());
    auto kept_schema = std::make_unique<Parts<ArrowSchema>>(columns.size());
    array = {};
    array.length = static_cast<int64_t>(columns.front().size());
    array.n_buffers = 1;
    array.buffers = &kept->nothing;
    for (std::size_t i = 0; i < columns.size(); i++) columns[i].export_to(kept->parts[i], kept_schema->parts[i]);
    array.n_children = schema.n_children = static_cast<int64_t>(columns.size());
    array.children = kept->pointers.data();
    array.private_data = kept.release();
    array.release = release<ArrowArray>;
    schema = {};
    schema.format = "+s";
    schema.name = "";
    schema.n_children = array.n_children;
    schema.children = kept_schema->pointers.data();
    schema.private_data = kept_schema.release();
    schema.release = release<ArrowSchema>;
  }

private:
  template <class T> struct Parts {
    std::vector<T> parts;
    std::vector<T *> pointers;
    const void *nothing = nullptr;

    explicit Parts(std::size_t count) : parts(count) {
      for (T &part : parts) pointers.push_back(&part);
    }
  };

  template <class T> static void release(T *it) {
    for (int64_t i = 0; i < it->n_children; i++) {
      if (it->children[i]->release) it->children[i]->release(it->children[i]);
    }
    delete static_cast<Parts<T> *>(it->private_data);
    it->release = nullptr;
  }
};
