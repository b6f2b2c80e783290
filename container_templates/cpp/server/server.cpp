// The server: the forms of docs/protocol.md §6 and §7 over HTTP, for the functions of a shared library.

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <dlfcn.h>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "columns.hpp"
#include "http.hpp"
#include "transship.h"
#include "values.hpp"

using Clock = std::chrono::steady_clock;

namespace {

constexpr auto exchange_idle = std::chrono::minutes(10);
/// Rows that pass between two looks at whether the client has gone.
constexpr int64_t rows_between_checks = 256;
constexpr auto stop_patience = std::chrono::seconds(10);

/// The server's side of a call.
struct Call : transship_call {
  const http::Request &request;
  Memory memory;
  bool has_failed = false;
  std::string failure;
  std::function<void(const transship_value &)> take;

  explicit Call(const http::Request &request) : request(request) {
    allocate = [](transship_call *call, std::size_t size) -> void * { return static_cast<Call *>(call)->memory.allocate(size); };
    fail = [](transship_call *call, const char *message) {
      static_cast<Call *>(call)->has_failed = true;
      static_cast<Call *>(call)->failure = message ? message : "";
    };
    emit = [](transship_call *call, const transship_value *result) {
      if (static_cast<Call *>(call)->take) static_cast<Call *>(call)->take(*result);
    };
  }
};

/// A reply's columns. A table function's results name their rows.
struct Reply {
  std::vector<std::pair<Type, Values>> columns;
  std::size_t rows() const { return columns.front().second.size(); }
};

struct Function {
  std::string name;
  std::string kind;
  bool takes_columns;
  std::vector<std::pair<std::string, Type>> arguments;
  Type returns;
  transship_row_function *row_function = nullptr;
  transship_column_function *column_function = nullptr;
  std::size_t state_size = 0;
  transship_step_function *step = nullptr;
  transship_merge_function *merge = nullptr;
  transship_finish_function *finish = nullptr;

  Function(const json &entry, void *library)
      : name(entry["name"]), kind(entry["kind"]), takes_columns(entry["batch"] == "columns"),
        returns(entry["returns"].is_null() ? Type("void") : Type(entry["returns"])) {
    if (entry["returns"].is_null()) refuse("transship.toml must give its arguments and result");
    for (const json &argument : entry["arguments"]) arguments.emplace_back(argument["name"], Type(argument["type"]));
    const bool takes_rows = entry["batch"] == "row";
    if (kind == "aggregate" && takes_rows) {
      state_size = *static_cast<std::size_t *>(find(library, name + "_state_size"));
      step = reinterpret_cast<transship_step_function *>(find(library, name + "_step"));
      finish = reinterpret_cast<transship_finish_function *>(find(library, name + "_finish"));
      merge = reinterpret_cast<transship_merge_function *>(dlsym(library, (name + "_merge").c_str()));
    } else if (kind == "scalar" && takes_columns) {
      column_function = reinterpret_cast<transship_column_function *>(find(library, name));
    } else if ((kind == "scalar" || kind == "table") && takes_rows) {
      row_function = reinterpret_cast<transship_row_function *>(find(library, name));
    } else {
      refuse("there are no " + kind + " functions with batch = \"" + entry["batch"].get<std::string>() + "\" in C");
    }
  }

  [[noreturn]] void refuse(const std::string &fact) const { throw std::invalid_argument("function \"" + name + "\": " + fact); }

  void *find(void *library, const std::string &symbol) const {
    void *found = dlsym(library, symbol.c_str());
    if (!found) refuse("the handler exports no \"" + symbol + "\"");
    return found;
  }

  std::vector<Type> call_types() const {
    std::vector<Type> types;
    if (kind == "aggregate") types.emplace_back("int8");
    for (const auto &argument : arguments) types.push_back(argument.second);
    if (kind == "aggregate") types.emplace_back("bytea");
    return types;
  }

  Columns read(const json &request, Memory &memory) const {
    const std::vector<Type> types = call_types();
    if (!request.is_object() || !request.contains("rows") || !request["rows"].is_number_unsigned() || !request.contains("columns") ||
        !request["columns"].is_array()) {
      throw violation("the request cannot be read: it has no rows and columns");
    }
    const json &given = request["columns"];
    if (given.size() != types.size()) throw violation(name + " takes " + std::to_string(types.size()) + " columns");
    const std::size_t rows = request["rows"];
    Columns columns;
    for (std::size_t i = 0; i < types.size(); i++) {
      if (!given[i].is_array() || given[i].size() != rows) throw violation("columns and rows do not match");
      std::vector<transship_value> column;
      column.reserve(rows);
      for (std::size_t row = 0; row < rows; row++) {
        try {
          column.push_back(read_value(types[i], types[i].is_nested() ? strict_value(types[i], given[i][row]) : given[i][row], memory));
        } catch (const std::exception &error) {
          throw violation("row " + std::to_string(row) + " of column " + std::to_string(i + 1) + " holds " + error.what());
        }
      }
      columns.push_back(std::move(column));
    }
    return columns;
  }

  /// A result that does not fit: `position` is its place in the reply.
  CallError misfit(const Reply &reply, std::size_t position, const std::exception &error) const {
    const auto row = kind == "table" ? reply.columns[0].second[position].integer : static_cast<int64_t>(position);
    return {"bad_result", std::string("It returned ") + error.what() + "; the declared result is " + returns.text + ".", row, ""};
  }

  json to_json(const Reply &reply) const {
    json columns = json::array();
    std::size_t row = 0;
    try {
      for (const auto &[type, values] : reply.columns) {
        json column = json::array();
        for (row = 0; row < values.size(); row++) column.push_back(write_value(type, values[row]));
        columns.push_back(std::move(column));
      }
    } catch (const std::exception &error) {
      throw misfit(reply, row, error);
    }
    return columns;
  }

  columns::Writer to_memory(const Reply &reply) const {
    columns::Writer writer;
    std::size_t row = 0;
    try {
      for (const auto &[type, values] : reply.columns) writer.column(type, values, row);
    } catch (const std::exception &error) {
      throw misfit(reply, row, error);
    }
    return writer;
  }

  /// What is looked at after each row.
  void check(const Call &call, int64_t row) const {
    if (row % rows_between_checks == 0 && call.request.has_gone()) throw http::Gone{};
    if (call.has_failed) throw CallError{"user_code", call.failure, row, "in function " + name + " of handler.so"};
  }

  /// What results point to lives as long as the call.
  Reply answer(const Columns &columns, std::size_t rows, Call &call) const {
    if (takes_columns) {
      std::vector<const transship_value *> pointers;
      for (const auto &column : columns) pointers.push_back(column.data());
      Values results(rows);
      column_function(&call, rows, pointers.data(), results.data());
      check(call, -1);
      return {{{returns, std::move(results)}}};
    }
    Values numbers, results, arguments(columns.size());
    for (std::size_t row = 0; row < rows; row++) {
      for (std::size_t i = 0; i < columns.size(); i++) arguments[i] = columns[i][row];
      transship_value result{};
      if (kind == "table") {
        call.take = [&](const transship_value &emitted) {
          results.push_back(emitted);
          // What is emitted may point to what does not last.
          if (emitted.data) call.memory.keep(results.back(), {emitted.data, emitted.size});
          numbers.push_back({0, static_cast<int64_t>(row), 0, nullptr, 0});
        };
      }
      row_function(&call, arguments.data(), &result);
      check(call, static_cast<int64_t>(row));
      if (kind == "scalar") results.push_back(result);
    }
    if (kind == "table") return {{{Type("int4"), std::move(numbers)}, {returns, std::move(results)}}};
    return {{{returns, std::move(results)}}};
  }
};

/// The groups of one exchange of an aggregate function: states by number.
struct Groups {
  const Function &function;
  Clock::time_point used = Clock::now();
  std::mutex lock;
  std::map<int64_t, std::vector<char>> states;

  explicit Groups(const Function &function) : function(function) {}

  std::vector<char> &state(int64_t number) {
    return states.try_emplace(number, std::vector<char>(function.state_size)).first->second;
  }

  Reply answer(const Columns &columns, std::size_t rows, const std::string &step, Call &call) {
    const std::lock_guard guard(lock);
    Values results, bytes, values(function.arguments.size());
    const transship_value null{1, 0, 0, nullptr, 0};
    for (std::size_t row = 0; row < rows; row++) {
      const int64_t number = columns[0][row].integer;
      if (step == "accumulate") {
        for (std::size_t i = 0; i < values.size(); i++) values[i] = columns[i + 1][row];
        function.step(&call, state(number).data(), values.data());
      } else if (step == "merge") {
        if (!function.merge) throw CallError{"bad_result", "There is no " + function.name + "_merge, which parallel queries need.", static_cast<int64_t>(row), ""};
        const transship_value &other = columns.back()[row];
        if (other.is_null || other.size != function.state_size) throw violation("the state of row " + std::to_string(row) + " has another size");
        function.merge(&call, state(number).data(), other.data);
      } else if (step == "finish") {
        transship_value result{};
        function.finish(&call, state(number).data(), &result);
        function.check(call, static_cast<int64_t>(row));
        // A result may point into the state, which the next call may change.
        if (result.data) call.memory.keep(result, {result.data, result.size});
        results.push_back(result);
        bytes.push_back(null);
      } else if (step == "state") {
        const auto &found = state(number);
        results.push_back(null);
        bytes.push_back({});
        call.memory.keep(bytes.back(), {found.data(), found.size()});
      } else if (step == "forget") {
        states.erase(number);
      } else {
        throw violation("there is no step \"" + step + "\"");
      }
      function.check(call, static_cast<int64_t>(row));
    }
    return {{{function.returns, std::move(results)}, {Type("bytea"), std::move(bytes)}}};
  }
};

class Server {
public:
  explicit Server(const json &manifest) {
    const char *root = std::getenv("TRANSSHIP_ROOT");
    const std::string path = std::string(root ? root : "/opt/transship") + "/handler.so";
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::invalid_argument(dlerror());
    for (const json &entry : manifest["functions"]) {
      functions_.emplace_back(entry, library);
      names_.push_back(entry["name"]);
    }
  }

  const std::deque<Function> &functions() const { return functions_; }

  int serve() {
    // The engine that connects is another user than this one; the directory around the socket decides who gets here.
    umask(0);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    const char *folder = std::getenv("TRANSSHIP_SOCKET_DIR");
    const char *port = std::getenv("TRANSSHIP_HTTP_PORT");
    if (!folder && !port) throw std::invalid_argument("set TRANSSHIP_SOCKET_DIR or TRANSSHIP_HTTP_PORT");
    if (folder) server_.listen_unix(std::string(folder) + "/http.sock");
    if (port) server_.listen_tcp(std::atoi(port));
    std::cerr << "transship: ready, " << functions_.size() << " functions" << std::endl;
    int signal = 0;
    sigwait(&signals, &signal);
    // What is running is finished.
    for (const auto start = Clock::now(); server_.running() > 0 && Clock::now() - start < stop_patience;) usleep(10'000);
    std::_Exit(0);
  }

private:
  http::Response respond(const http::Request &request) {
    const auto fail = [](int status, const CallError &error) {
      return http::Response{status, "application/json", error.to_wire().dump(-1, ' ', false, json::error_handler_t::replace)};
    };
    try {
      return answer(request);
    } catch (const CallError &error) {
      return fail(error.kind == "function_not_found" ? 404 : error.kind == "protocol_violation" ? 400 : 500, error);
    } catch (const std::exception &error) {
      return fail(400, violation(error.what()));
    }
  }

  http::Response answer(const http::Request &request) {
    static const std::string prefix = "/v1/functions/", exchanges = "/v1/exchanges/";
    if (request.method == "GET" && request.path == "/v1") {
      std::vector<std::string> transports = {"json", "socket"};
      if (std::getenv("TRANSSHIP_SEGMENT_DIR")) transports.push_back("shm");
      return of_json({{"protocol", 1}, {"server", "transship-cpp/0.2.0"}, {"functions", names_}, {"transports", transports}});
    }
    if (request.method == "DELETE" && request.path.starts_with(exchanges)) {
      const std::lock_guard guard(lock_);
      exchanges_.erase(request.path.substr(exchanges.size()));
      return of_json(json::object());
    }
    const std::string name = request.path.starts_with(prefix) ? request.path.substr(prefix.size()) : request.path;
    const Function *function = nullptr;
    for (const Function &each : functions_) if (each.name == name) function = &each;
    if (!function) throw CallError{"function_not_found", "there is no function \"" + name + "\"", -1, ""};
    if (request.method == "GET") {
      json arguments = json::array();
      for (const auto &[argument, type] : function->arguments) arguments.push_back({{"name", argument}, {"type", type.text}});
      return of_json({{"name", name}, {"kind", function->kind}, {"arguments", arguments}, {"returns", function->returns.text}});
    }
    Call call(request);
    if (request.content_type == columns_type) {
      const columns::Request in_memory(request.body);
      const auto [reply, micros] = run(*function, in_memory.header, in_memory.columns(function->call_types(), call.memory), call);
      return {200, columns_type, in_memory.reply(function->to_memory(reply), reply.rows(), micros)};
    }
    const json asked = read_request(request.body);
    const auto [reply, micros] = run(*function, asked, function->read(asked, call.memory), call);
    return of_json({{"batch", asked.value("batch", 0)}, {"rows", reply.rows()}, {"micros", micros}, {"columns", function->to_json(reply)}});
  }

  static http::Response of_json(const json &body) { return {200, "application/json", body.dump()}; }

  /// The reply, and the microseconds that it took.
  std::pair<Reply, int64_t> run(const Function &function, const json &asked, const Columns &columns, Call &call) {
    const auto start = Clock::now();
    const std::size_t rows = asked["rows"];
    Reply reply = function.kind == "aggregate" ? find_groups(asked, function)->answer(columns, rows, asked.value("step", ""), call) : function.answer(columns, rows, call);
    return {std::move(reply), std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count()};
  }

  std::shared_ptr<Groups> find_groups(const json &call, const Function &function) {
    const std::lock_guard guard(lock_);
    std::erase_if(exchanges_, [](const auto &entry) { return Clock::now() - entry.second->used > exchange_idle; });
    const std::string name = call.value("exchange", "");
    if (call.value("batch", 0) == 0 && !name.empty()) exchanges_[name] = std::make_shared<Groups>(function);
    const auto found = exchanges_.find(name);
    if (found == exchanges_.end() || &found->second->function != &function) throw violation("there is no exchange \"" + name + "\" of " + function.name);
    found->second->used = Clock::now();
    return found->second;
  }

  std::deque<Function> functions_;
  std::vector<std::string> names_;
  http::Server server_{[this](const http::Request &request) { return respond(request); }};
  std::mutex lock_;
  std::map<std::string, std::shared_ptr<Groups>> exchanges_;
};

json load(const std::string &name) {
  const char *root = std::getenv("TRANSSHIP_ROOT");
  std::ifstream file(std::string(root ? root : "/opt/transship") + "/" + name);
  return json::parse(file);
}

} // namespace

int main(int count, char **arguments) {
  try {
    // What the handler prints is a log, not an answer.
    const int output = dup(STDOUT_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    Server server(load("functions.json"));
    if (count < 2 || std::string(arguments[1]) != "describe") return server.serve();
    json manifest = load("manifest.json");
    for (std::size_t i = 0; i < manifest["functions"].size(); i++) {
      if (server.functions()[i].merge) manifest["functions"][i]["merges"] = true;
    }
    const std::string text = manifest.dump();
    return write(output, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1;
  } catch (const std::exception &error) {
    std::cerr << "transship: " << error.what() << std::endl;
    return 1;
  }
}
