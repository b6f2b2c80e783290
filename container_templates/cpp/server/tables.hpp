// The shared tables of a call (docs/protocol.md §4.13), as transship.h gives them to a handler.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "columns.hpp"

/// Tells the call that it has failed.
using Fail = std::function<void(const char *message)>;

struct FreeRows {
  void operator()(transship_rows *rows) const { transship_rows_free(rows); }
};
struct CloseTable {
  void operator()(transship_table *table) const { transship_table_close(table); }
};

/// Rows that a look-up has found, or NULL for all keys if it has failed.
class Found : public transship_found {
public:
  Found(std::size_t count, const std::vector<std::string> &names, const Fail &fail) : transship_found{}, names_(names), fail_(fail) {
    rows = count;
    column = [](const transship_found *found, const char *name) { return static_cast<const Found *>(found)->values(name ? name : ""); };
    for (std::size_t row = 0; row < rows; row++) positions_.push_back(row);
    keys = positions_.data();
  }
  Found(const Found &) = delete;
  Found &operator=(const Found &) = delete;

  /// Takes over what was found; whether it can be read.
  bool take(transship_rows *found) {
    found_.reset(found);
    transship_rows_info info;
    if (transship_rows_info_of(found, &info) != TRANSSHIP_OK) return false;
    rows = info.rows;
    has_first_ = rows > 0 && (!info.validity || has_bit(info.validity, 0));
    if (info.positions) positions_.assign(info.positions, info.positions + rows);
    keys = positions_.data();
    return true;
  }

  /// Whether the first key has a row.
  bool has_first() const { return has_first_; }

private:
  const transship_value *values(const std::string &name) const {
    Values &values = columns_[name];
    if (!values.empty()) return values.data();
    // Where it has failed, and if there are no rows, there is a value to point to.
    values.assign(rows + 1, {1, 0, 0, nullptr, 0});
    std::size_t number = 0;
    while (number < names_.size() && names_[number] != name) number++;
    if (number == names_.size()) {
      fail_(("the table has no column \"" + name + "\"").c_str());
    } else if (found_ && rows > 0) {
      transship_column column;
      if (transship_rows_column(found_.get(), number, &column) != TRANSSHIP_OK) fail_(std::string(transship_message()).c_str());
      else values = values_of(column, 0, rows, memory_);
    }
    return values.data();
  }

  const std::vector<std::string> &names_;
  const Fail &fail_;
  std::unique_ptr<transship_rows, FreeRows> found_;
  bool has_first_ = false;
  std::vector<std::size_t> positions_;
  /// What was read.
  mutable std::map<std::string, Values> columns_;
  mutable Memory memory_;
};

/// A table of a call, which it closes; NULL is one in which nothing is found.
class SharedTable : public transship_shared_table {
public:
  SharedTable(transship_table *opened, Fail fail) : transship_shared_table{}, table_(opened), fail_(std::move(fail)) {
    rows = static_cast<std::size_t>(transship_table_rows(opened));
    for (std::size_t number = 0; number < transship_table_fields(opened); number++) {
      transship_field field;
      if (transship_table_field(opened, number, &field) != TRANSSHIP_OK) throw std::runtime_error(transship_message());
      names_.push_back(field.name);
      name_pointers_.push_back(field.name);
      type_pointers_.push_back(field.type);
      if (field.key < 0) continue;
      const auto position = static_cast<std::size_t>(field.key);
      if (key_.size() <= position) {
        key_.resize(position + 1);
        formats_.resize(position + 1);
      }
      key_[position] = number;
      formats_[position] = field.format;
    }
    columns = names_.size();
    names = name_pointers_.data();
    types = type_pointers_.data();
    key_columns = key_.size();
    key = key_.data();
    get = [](const transship_shared_table *table, const transship_value *key) -> const transship_found * {
      const auto &own = *static_cast<const SharedTable *>(table);
      std::vector<const transship_value *> parts;
      for (std::size_t i = 0; i < own.key_columns; i++) parts.push_back(key + i);
      const Found &found = own.find(1, parts.data(), false);
      if (found.has_first()) return &found;
      // Nobody can read it, and a handler may look for any number of keys.
      own.found_.pop_back();
      return nullptr;
    };
    lookup = [](const transship_shared_table *table, std::size_t keys, const transship_value *const *columns) -> const transship_found * {
      return &static_cast<const SharedTable *>(table)->find(keys, columns, false);
    };
    matches = [](const transship_shared_table *table, std::size_t keys, const transship_value *const *columns) -> const transship_found * {
      return &static_cast<const SharedTable *>(table)->find(keys, columns, true);
    };
  }
  SharedTable(const SharedTable &) = delete;
  SharedTable &operator=(const SharedTable &) = delete;

  bool is_open() const { return table_ != nullptr; }

  /// What was found is of no use any more.
  void forget() { found_.clear(); }

private:
  /// A handler in C cannot be left by an exception: what is wrong is told to the call.
  const Found &find(std::size_t keys, const transship_value *const *parts, bool all) const {
    Found &found = found_.emplace_back(all ? 0 : keys, names_, fail_);
    // The call has failed already.
    if (!table_) return found;
    try {
      std::vector<Results> taken;
      std::vector<transship_column> lent;
      for (std::size_t i = 0; i < key_.size(); i++) {
        Results &column = taken.emplace_back(formats_[i]);
        for (std::size_t row = 0; row < keys; row++) column.add(parts[i][row]);
      }
      for (const Results &column : taken) lent.push_back(column.lend());
      transship_rows *rows = nullptr;
      if (transship_table_lookup_columns(table_.get(), keys, lent.data(), lent.size(), all, &rows) != TRANSSHIP_OK || !found.take(rows)) {
        fail_(std::string(transship_message()).c_str());
      }
    } catch (const std::exception &error) {
      fail_((std::string("the keys have ") + error.what()).c_str());
    }
    return found;
  }

  std::unique_ptr<transship_table, CloseTable> table_;
  Fail fail_;
  std::vector<std::string> names_;
  std::vector<const char *> name_pointers_, type_pointers_;
  std::vector<std::size_t> key_;
  /// Of the key's columns.
  std::vector<char> formats_;
  mutable std::list<Found> found_;
};

/// The tables that a call has asked for.
class Tables {
public:
  const transship_shared_table *open(const transship_work *work, const char *name, const Fail &fail) {
    auto &table = tables_[name];
    if (table && table->is_open()) return table.get();
    transship_table *opened = nullptr;
    try {
      if (transship_work_table(work, name, &opened) != TRANSSHIP_OK) throw std::runtime_error(transship_message());
      table = std::make_unique<SharedTable>(opened, fail);
    } catch (const std::exception &error) {
      fail(error.what());
      if (!table) table = std::make_unique<SharedTable>(nullptr, fail);
    }
    return table.get();
  }

  /// What was found is of no use any more.
  void forget() {
    for (auto &[name, table] : tables_) table->forget();
  }

private:
  std::map<std::string, std::unique_ptr<SharedTable>> tables_;
};
