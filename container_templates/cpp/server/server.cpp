// The server: pulls calls from the library that speaks the protocol (transship_core.h), and hands them to the functions of the
// handler, a shared library.

#include <atomic>
#include <cstdlib>
#include <deque>
#include <dlfcn.h>
#include <functional>
#include <iostream>
#include <map>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "columns.hpp"
#include "tables.hpp"

namespace {

/// Results of a table or map function that go out together.
constexpr std::size_t results_per_part = 1024, text_bytes_per_part = 1 << 20;
constexpr int most_threads = 512;
/// How long a thread waits for work before it ends, if others wait too.
constexpr int64_t idle_ms = 10'000;

/// A call that failed; kind is one of docs/protocol.md §5, row counts from zero within the batch, below zero is none.
struct CallError {
  std::string kind, message;
  int64_t row = -1;
  std::string traceback{};
};

CallError gone() { return {"user_code", "cancelled"}; }

/// The server's side of a call.
struct Call : transship_call {
  transship_work *work;
  Memory memory;
  Tables tables;
  bool has_failed = false;
  std::string kind, failure;
  std::function<bool(const transship_value &)> take;
  std::function<bool(transship_value *)> read;

  explicit Call(transship_work *work) : work(work) {
    allocate = [](transship_call *call, std::size_t size) -> void * { return static_cast<Call *>(call)->memory.allocate(size); };
    fail = [](transship_call *call, const char *message) { call->refuse(call, "user_code", message); };
    emit = [](transship_call *call, const transship_value *result) -> int {
      const auto &own = *static_cast<Call *>(call);
      return !own.has_failed && own.take && own.take(*result);
    };
    next = [](transship_call *call, transship_value *arguments) -> int {
      return static_cast<Call *>(call)->read && static_cast<Call *>(call)->read(arguments);
    };
    refuse = [](transship_call *call, const char *kind, const char *message) {
      auto &own = *static_cast<Call *>(call);
      own.has_failed = true;
      own.kind = kind ? kind : "user_code";
      own.failure = message ? message : "";
    };
    is_failed = [](transship_call *call) -> int { return static_cast<Call *>(call)->has_failed; };
    table = [](transship_call *call, const char *name) {
      auto &own = *static_cast<Call *>(call);
      return own.tables.open(own.work, name ? name : "", [&own](const char *message) {
        // What was wrong first is told.
        if (!own.has_failed) own.fail(&own, message);
      });
    };
  }
};

/// What transship.hpp calls a type of docs/types.md.
char letter_of(const std::string &type) {
  if (type == "bool" || type == "int2" || type == "int4" || type == "int8") return 'i';
  return type == "float4" || type == "float8" ? 'f' : 's';
}

/// A function of the manifest, as transship.hpp says the types of a handler; what it has no form of is no such text.
std::string types_of(const transship_server *server, std::size_t number, const transship_function &entry) {
  const std::string kind = entry.kind, batch = entry.batch;
  std::string types = batch != "row" ? batch + " " : kind == "scalar" ? "" : kind == "table" ? "*" : kind + " ";
  types += {letter_of(entry.result), '('};
  for (std::size_t i = 0; i < entry.arguments; i++) types += letter_of(transship_server_argument(server, number, i));
  return types + ")";
}

/// A function of the manifest, and its handler.
struct Function {
  std::string name, kind, result;
  char result_format;
  bool takes_columns;
  std::size_t arguments;
  transship_row_function *row_function = nullptr;
  transship_column_function *column_function = nullptr;
  std::size_t state_size = 0;
  transship_step_function *step = nullptr;
  transship_merge_function *merge = nullptr;
  transship_finish_function *finish = nullptr;

  Function(const transship_function &entry, const std::string &types, void *library)
      : name(entry.name), kind(entry.kind), result(entry.result), result_format(entry.result_format[0]),
        takes_columns(std::string(entry.batch) == "columns"), arguments(entry.arguments) {
    const bool takes_rows = std::string(entry.batch) == "row";
    if (kind == "aggregate" && takes_rows) {
      state_size = *static_cast<std::size_t *>(find(library, name + "_state_size"));
      step = reinterpret_cast<transship_step_function *>(find(library, name + "_step"));
      finish = reinterpret_cast<transship_finish_function *>(find(library, name + "_finish"));
      merge = reinterpret_cast<transship_merge_function *>(dlsym(library, (name + "_merge").c_str()));
    } else if (kind == "scalar" && takes_columns) {
      column_function = reinterpret_cast<transship_column_function *>(find(library, name));
    } else if ((kind == "scalar" || kind == "table" || kind == "map") && takes_rows) {
      row_function = reinterpret_cast<transship_row_function *>(find(library, name));
    } else {
      refuse("there are no " + kind + " functions with batch = \"" + entry.batch + "\" in C");
    }
    check_types(library, types);
  }

  [[noreturn]] void refuse(const std::string &fact) const { throw std::invalid_argument("function \"" + name + "\": " + fact); }

  /// Refuses a function of TRANSSHIP_FUNCTION whose types are not the declared ones: it would read what values do not have. One in C says
  /// nothing of its types.
  void check_types(void *library, const std::string &declared) const {
    using Types = const char *();
    auto *types = reinterpret_cast<Types *>(dlsym(library, ("transship_types_of_" + name).c_str()));
    if (!types || types() == declared) return;
    refuse(std::string("TRANSSHIP_FUNCTION makes it ") + types() + ", and transship.toml declares " + declared +
           ": a result and its arguments, where i is an integer or bool, f a float, s any other type, and * a range of results");
  }

  void *find(void *library, const std::string &symbol) const {
    void *found = dlsym(library, symbol.c_str());
    if (!found) refuse("the handler exports no \"" + symbol + "\"");
    return found;
  }

  /// The handler's error, if it has raised one.
  void check(const Call &call, int64_t row) const {
    if (call.has_failed) throw CallError{call.kind, call.failure, row, "in function " + name + " of handler.so"};
  }

  /// Adds a result; row is below zero if it is of none.
  void add(Results &results, const transship_value &value, int64_t row) const {
    try {
      results.add(value);
    } catch (const Misfit &misfit) {
      throw CallError{"bad_result", std::string("It returned ") + misfit.what() + "; the declared result is " + result + ".", row};
    }
  }
};

/// Whether the results are a part of a reply.
bool is_full(const Results &results) { return results.size() >= results_per_part || results.text_bytes() >= text_bytes_per_part; }

/// Hands a part of a reply over.
void give_part(transship_work *work, Reply &reply) {
  ArrowArray array;
  ArrowSchema schema;
  reply.export_to(array, schema);
  if (transship_work_part(work, &array, &schema) != TRANSSHIP_OK) throw gone();
}

std::vector<Values> columns_of(const Batch &batch, Memory &memory) {
  std::vector<Values> columns;
  for (std::size_t i = 0; i < batch.width(); i++) columns.push_back(batch.column(i, memory));
  return columns;
}

/// Whether the client has gone is looked at before each row, and before each result that a handler emits.
void look(const Call &call) {
  if (transship_work_is_cancelled(call.work)) throw gone();
}

/// Before each row.
void begin_row(Call &call) {
  look(call);
  call.tables.forget();
}

/// Calls of a scalar function.
Reply answer_scalar(const Function &function, const transship_work_info &info, const std::vector<Values> &columns, Call &call) {
  Reply reply = info.row_errors ? Reply{function.result_format, 'z'} : Reply{function.result_format};
  if (function.takes_columns) {
    std::vector<const transship_value *> pointers;
    for (const auto &column : columns) pointers.push_back(column.data());
    Values results(info.rows);
    function.column_function(&call, info.rows, pointers.data(), results.data());
    function.check(call, -1);
    for (std::size_t row = 0; row < info.rows; row++) function.add(reply.columns[0], results[row], row);
    return reply;
  }
  Values arguments(columns.size());
  for (std::size_t row = 0; row < info.rows; row++) {
    begin_row(call);
    for (std::size_t i = 0; i < columns.size(); i++) arguments[i] = columns[i][row];
    transship_value result{};
    function.row_function(&call, arguments.data(), &result);
    if (info.row_errors && call.has_failed && call.kind == "user_code") {
      call.has_failed = false;
      reply.columns[0].add_null();
      reply.columns[1].add_text(call.failure);
      continue;
    }
    function.check(call, static_cast<int64_t>(row));
    function.add(reply.columns[0], result, row);
    if (info.row_errors) reply.columns[1].add_null();
  }
  return reply;
}

/// Calls of a table function.
Reply answer_table(const Function &function, const transship_work_info &info, const std::vector<Values> &columns, Call &call) {
  Reply reply{'l', function.result_format};
  Values arguments(columns.size());
  std::size_t row = 0;
  // A handler in C cannot be left by an exception: what goes wrong meanwhile is raised after it.
  std::exception_ptr failure;
  call.take = [&](const transship_value &emitted) {
    if (failure) return false;
    try {
      look(call);
      if (is_full(reply.columns[1])) give_part(call.work, reply);
      function.add(reply.columns[1], emitted, row);
      reply.columns[0].add({0, static_cast<int64_t>(row), 0, nullptr, 0});
    } catch (...) {
      failure = std::current_exception();
    }
    return !failure;
  };
  for (; row < info.rows; row++) {
    begin_row(call);
    for (std::size_t i = 0; i < columns.size(); i++) arguments[i] = columns[i][row];
    transship_value result{};
    function.row_function(&call, arguments.data(), &result);
    // It came before whatever the handler has made of it.
    if (failure) std::rethrow_exception(failure);
    function.check(call, static_cast<int64_t>(row));
  }
  return reply;
}

/// Answers a map function's stream.
Reply answer_stream(const Function &function, Call &call) {
  Reply reply{function.result_format};
  std::exception_ptr failure;
  const auto guarded = [&](const auto &work) {
    if (failure) return false;
    try {
      return work();
    } catch (...) {
      failure = std::current_exception();
      return false;
    }
  };
  Memory memory;
  std::vector<Values> columns;
  std::size_t row = 0, rows = 0;
  call.read = [&](transship_value *arguments) {
    return guarded([&] {
      call.tables.forget();
      while (row == rows) {
        // Nothing is kept back while the stream may wait for its client.
        if (reply.columns[0].size() > 0) give_part(call.work, reply);
        ArrowArray array;
        ArrowSchema schema;
        const transship_status status = transship_work_next(call.work, -1, &array, &schema);
        if (status == TRANSSHIP_ENDED) return false;
        if (status != TRANSSHIP_OK) throw gone();
        const Batch batch(array, schema);
        memory = Memory();
        columns = columns_of(batch, memory);
        row = 0;
        rows = batch.rows();
      }
      for (std::size_t i = 0; i < columns.size(); i++) arguments[i] = columns[i][row];
      row++;
      return true;
    });
  };
  call.take = [&](const transship_value &emitted) {
    return guarded([&] {
      look(call);
      if (is_full(reply.columns[0])) give_part(call.work, reply);
      function.add(reply.columns[0], emitted, -1);
      return true;
    });
  };
  transship_value nothing{};
  function.row_function(&call, nullptr, &nothing);
  if (failure) std::rethrow_exception(failure);
  function.check(call, -1);
  return reply;
}

/// The groups of one exchange of an aggregate function: states by number.
struct Groups {
  std::map<int64_t, std::vector<char>> states;

  std::vector<char> &state(const Function &function, int64_t number) {
    return states.try_emplace(number, std::vector<char>(function.state_size)).first->second;
  }

  Reply answer(const Function &function, const transship_work_info &info, const std::vector<Values> &columns, Call &call) {
    Reply reply{function.result_format, 'z'};
    Values values(function.arguments);
    for (std::size_t row = 0; row < info.rows; row++) {
      begin_row(call);
      const int64_t number = columns[0][row].integer;
      if (info.step == TRANSSHIP_ACCUMULATE) {
        for (std::size_t i = 0; i < values.size(); i++) values[i] = columns[i + 1][row];
        function.step(&call, state(function, number).data(), values.data());
      } else if (info.step == TRANSSHIP_MERGE) {
        if (!function.merge) throw CallError{"bad_result", "There is no " + function.name + "_merge, which parallel queries need.", static_cast<int64_t>(row)};
        const transship_value &other = columns.back()[row];
        if (other.is_null || other.size != function.state_size) throw CallError{"protocol_violation", "the state of row " + std::to_string(row) + " has another size"};
        // A state may hold what must not lie at any address.
        std::vector<char> copy(other.data, other.data + other.size);
        function.merge(&call, state(function, number).data(), copy.data());
      } else if (info.step == TRANSSHIP_FINISH) {
        transship_value result{};
        function.finish(&call, state(function, number).data(), &result);
        function.check(call, static_cast<int64_t>(row));
        function.add(reply.columns[0], result, row);
        reply.columns[1].add_null();
      } else if (info.step == TRANSSHIP_STATE) {
        const auto &found = state(function, number);
        reply.columns[0].add_null();
        reply.columns[1].add_text({found.data(), found.size()});
      } else {
        states.erase(number);
      }
      function.check(call, static_cast<int64_t>(row));
    }
    return reply;
  }
};

class Server {
public:
  Server() {
    if (transship_server_new(R"({"server": "transship-cpp/0.2.0", "columns": "plain", "tables": true})", &server_) != TRANSSHIP_OK) throw std::invalid_argument(transship_message());
    const char *root = std::getenv("TRANSSHIP_ROOT");
    const std::string path = std::string(root ? root : "/opt/transship") + "/handler.so";
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::invalid_argument(dlerror());
    for (std::size_t i = 0; i < transship_server_functions(server_); i++) {
      transship_function entry;
      if (transship_server_function(server_, i, &entry) != TRANSSHIP_OK) throw std::invalid_argument(transship_message());
      functions_.emplace_back(entry, types_of(server_, i, entry), library);
    }
  }

  /// The manifest, with the facts that only the handler knows.
  std::string describe() const {
    std::vector<std::size_t> merging;
    for (std::size_t i = 0; i < functions_.size(); i++) {
      if (functions_[i].merge) merging.push_back(i);
    }
    char *text = nullptr;
    if (transship_server_describe(server_, merging.data(), merging.size(), &text) != TRANSSHIP_OK) throw std::invalid_argument(transship_message());
    const std::string described = text;
    transship_text_free(text);
    return described;
  }

  int serve() {
    if (transship_server_start(server_) != TRANSSHIP_OK) throw std::invalid_argument(transship_message());
    threads_ = 1;
    pull(true);
    // Other threads may still be in a handler whose client has gone.
    std::_Exit(0);
  }

private:
  /// Takes one call after the other. There is always a thread that waits for the next, as long as there may be more.
  void pull(bool is_first) {
    for (;;) {
      waiting_++;
      transship_work *work = nullptr;
      const transship_status status = transship_next(server_, is_first ? -1 : idle_ms, &work);
      const bool is_last_waiting = --waiting_ == 0;
      if (status == TRANSSHIP_OK) {
        if (is_last_waiting) add_thread();
        answer(work);
      } else if (status != TRANSSHIP_NOTHING || !is_last_waiting) {
        threads_--;
        return;
      }
    }
  }

  void add_thread() {
    if (++threads_ <= most_threads) {
      try {
        std::thread([this] { pull(false); }).detach();
        return;
      } catch (const std::system_error &) {
        // There are as many as this container may have: the first that is done takes the next call.
      }
    }
    threads_--;
  }

  void answer(transship_work *work) {
    const auto fail = [&](const CallError &error) {
      transship_work_fail(work, error.kind.c_str(), error.message.c_str(), error.traceback.empty() ? nullptr : error.traceback.c_str(), error.row);
    };
    try {
      transship_work_info info;
      if (transship_work_info_of(work, &info) != TRANSSHIP_OK) throw std::runtime_error(transship_message());
      if (info.step == TRANSSHIP_END) {
        const std::lock_guard guard(lock_);
        exchanges_.erase(info.exchange);
        transship_work_answer(work, nullptr, nullptr);
        return;
      }
      ArrowArray array;
      ArrowSchema schema;
      reply_to(work, info).export_to(array, schema);
      transship_work_answer(work, &array, &schema);
    } catch (const CallError &error) {
      fail(error);
    } catch (const std::exception &error) {
      fail({"user_code", error.what()});
    }
  }

  Reply reply_to(transship_work *work, const transship_work_info &info) {
    const Function &function = functions_[info.function];
    Call call(work);
    if (info.step == TRANSSHIP_MAP) return answer_stream(function, call);
    const Batch batch(work);
    const std::vector<Values> columns = columns_of(batch, call.memory);
    if (info.step != TRANSSHIP_CALL) {
      Groups *groups = nullptr;
      {
        const std::lock_guard guard(lock_);
        groups = &exchanges_[info.exchange];
      }
      // An exchange has one unit of work at a time, and its end is one of them.
      return groups->answer(function, info, columns, call);
    }
    return function.kind == "table" ? answer_table(function, info, columns, call) : answer_scalar(function, info, columns, call);
  }

  transship_server *server_ = nullptr;
  std::deque<Function> functions_;
  std::atomic<int> waiting_ = 0, threads_ = 0;
  std::mutex lock_;
  std::map<uint64_t, Groups> exchanges_;
};

} // namespace

int main(int count, char **arguments) {
  try {
    // What the handler prints is a log, not an answer.
    const int output = dup(STDOUT_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    Server server;
    if (count < 2 || std::string(arguments[1]) != "describe") return server.serve();
    const std::string text = server.describe();
    return write(output, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1;
  } catch (const std::exception &error) {
    std::cerr << "transship: " << error.what() << std::endl;
    return 1;
  }
}
