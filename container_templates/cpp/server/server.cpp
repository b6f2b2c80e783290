// The server: the JSON form of docs/protocol.md, §6 to §8, for the functions of a shared library.

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <dlfcn.h>
#include <fstream>
#include <functional>
#include <iostream>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#define CPPHTTPLIB_TCP_NODELAY true
#include <httplib.h>

#include "transship.h"

using json = nlohmann::json;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int64_t max_safe_integer = int64_t{1} << 53;
constexpr std::size_t max_body_bytes = std::size_t{1} << 30;
constexpr std::ptrdiff_t max_connections = 96;
constexpr auto exchange_idle = std::chrono::minutes(10);
constexpr auto stop_patience = std::chrono::seconds(10);

/// A call that failed; kind is one of docs/protocol.md §5, row counts from zero within the batch, below zero is none.
struct CallError {
  std::string kind;
  std::string message;
  int64_t row = -1;
  std::string traceback;

  json to_wire() const {
    json wire = {{"kind", kind}, {"message", message}};
    if (row >= 0) wire["row"] = row;
    if (!traceback.empty()) wire["traceback"] = traceback;
    return {{"error", wire}};
  }
};

CallError violation(const std::string &message) { return {"protocol_violation", message, -1, ""}; }

/// A type of docs/types.md, as functions.json describes it.
struct Type {
  std::string type;
  std::string text;

  explicit Type(const json &node) : type(node["type"]), text(node["text"]) {}
  Type(const char *name) : type(name), text(name) {}

  bool is_integer() const { return type == "int2" || type == "int4" || type == "int8"; }
  bool is_real() const { return type == "float4" || type == "float8"; }
  /// Whether values are JSON's arrays and objects, which a handler takes as text.
  bool is_nested() const { return type == "array" || type == "range" || type == "composite" || type == "interval"; }
};

/// What the values of a batch point to.
class Memory {
public:
  char *allocate(std::size_t size) {
    blocks_.push_back(std::make_unique<char[]>(size + 1));
    return blocks_.back().get();
  }

  void keep(transship_value &value, const std::string &text) {
    char *copy = allocate(text.size());
    text.copy(copy, text.size());
    copy[text.size()] = 0;
    value.data = copy;
    value.size = text.size();
  }

private:
  std::list<std::unique_ptr<char[]>> blocks_;
};

const std::string base64_digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string encode_base64(const std::string &bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    unsigned bits = 0;
    for (std::size_t i = 0; i < 3; i++) bits = bits << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0);
    for (std::size_t i = 0; i < 4; i++) text += at + i > bytes.size() ? '=' : base64_digits[bits >> (18 - 6 * i) & 63];
  }
  return text;
}

std::string decode_base64(const std::string &text) {
  std::string bytes;
  unsigned bits = 0;
  int count = 0;
  for (char c : text) {
    if (std::isspace(static_cast<unsigned char>(c))) continue;
    if (c == '=') break;
    const auto digit = base64_digits.find(c);
    if (digit == std::string::npos) throw std::invalid_argument("it is not base64");
    bits = bits << 6 | static_cast<unsigned>(digit);
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 0xff);
  }
  return bytes;
}

transship_value read_value(const Type &type, const json &value, Memory &memory) {
  transship_value read{};
  const auto refuse = [&] { throw std::invalid_argument(value.dump().substr(0, 60) + ", which is not of type " + type.text); };
  if (value.is_null()) {
    read.is_null = 1;
  } else if (type.type == "bool") {
    if (!value.is_boolean()) refuse();
    read.integer = value.get<bool>();
  } else if (type.is_integer()) {
    const int bits = type.type == "int2" ? 16 : type.type == "int4" ? 32 : 64;
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) refuse();
    if (value.is_number_integer()) {
      read.integer = value.get<int64_t>();
    } else if (value.is_number_float()) {
      const double real = value.get<double>();
      if (real != std::trunc(real) || std::fabs(real) > static_cast<double>(max_safe_integer)) refuse();
      read.integer = static_cast<int64_t>(real);
    } else if (value.is_string()) {
      const std::string text = value;
      char *end = nullptr;
      errno = 0;
      read.integer = std::strtoll(text.c_str(), &end, 10);
      if (text.empty() || *end != 0 || errno != 0) refuse();
    } else {
      refuse();
    }
    if (bits < 64 && (read.integer < -(int64_t{1} << (bits - 1)) || read.integer >= int64_t{1} << (bits - 1))) refuse();
  } else if (type.is_real()) {
    if (value.is_number()) {
      read.real = value.get<double>();
    } else if (value.is_string()) {
      const std::string text = value;
      char *end = nullptr;
      read.real = std::strtod(text.c_str(), &end);
      if (text.empty() || *end != 0) refuse();
    } else {
      refuse();
    }
  } else if (type.is_nested()) {
    if (!value.is_structured()) refuse();
    memory.keep(read, value.dump());
  } else {
    if (!value.is_string()) refuse();
    memory.keep(read, type.type == "bytea" ? decode_base64(value) : value.get<std::string>());
  }
  return read;
}

/// The JSON value of a result; std::exception if it does not fit its type.
json write_value(const Type &type, const transship_value &value) {
  if (value.is_null) return nullptr;
  if (type.type == "bool") return value.integer != 0;
  if (type.is_integer()) {
    const int bits = type.type == "int2" ? 16 : type.type == "int4" ? 32 : 64;
    if (bits < 64 && (value.integer < -(int64_t{1} << (bits - 1)) || value.integer >= int64_t{1} << (bits - 1))) {
      throw std::out_of_range(std::to_string(value.integer));
    }
    if (value.integer > max_safe_integer || value.integer < -max_safe_integer) return std::to_string(value.integer);
    return value.integer;
  }
  if (type.is_real()) {
    if (std::isnan(value.real)) return "NaN";
    if (std::isinf(value.real)) return value.real > 0 ? "Infinity" : "-Infinity";
    if (type.type == "float4" && std::isinf(static_cast<float>(value.real))) throw std::out_of_range(std::to_string(value.real));
    return value.real;
  }
  if (!value.data && value.size > 0) throw std::invalid_argument("a text without bytes");
  const std::string text(value.data ? value.data : "", value.size);
  if (type.type == "bytea") return encode_base64(text);
  if (type.is_nested()) return json::parse(text);
  // Refuses what is not UTF-8.
  (void)json(text).dump();
  return text;
}

/// The server's side of a call.
struct Call : transship_call {
  Memory memory;
  bool has_failed = false;
  std::string failure;
  std::function<void(const transship_value &)> take;

  Call() {
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

using Columns = std::vector<std::vector<transship_value>>;

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
          column.push_back(read_value(types[i], given[i][row], memory));
        } catch (const std::exception &error) {
          throw violation("row " + std::to_string(row) + " of column " + std::to_string(i + 1) + " holds " + error.what());
        }
      }
      columns.push_back(std::move(column));
    }
    return columns;
  }

  json write(const transship_value &value, std::size_t row) const {
    try {
      return write_value(returns, value);
    } catch (const std::exception &error) {
      throw CallError{"bad_result", std::string("It returned ") + error.what() + "; the declared result is " + returns.text + ".", static_cast<int64_t>(row), ""};
    }
  }

  void check(const Call &call, int64_t row) const {
    if (call.has_failed) throw CallError{"user_code", call.failure, row, "in function " + name + " of handler.so"};
  }

  json answer(const Columns &columns, std::size_t rows) const {
    Call call;
    json results = json::array();
    if (takes_columns) {
      std::vector<const transship_value *> pointers;
      for (const auto &column : columns) pointers.push_back(column.data());
      std::vector<transship_value> values(rows);
      column_function(&call, rows, pointers.data(), values.data());
      check(call, -1);
      for (std::size_t row = 0; row < rows; row++) results.push_back(write(values[row], row));
      return json::array({results});
    }
    json numbers = json::array();
    std::vector<transship_value> values(columns.size());
    for (std::size_t row = 0; row < rows; row++) {
      for (std::size_t i = 0; i < columns.size(); i++) values[i] = columns[i][row];
      transship_value result{};
      std::unique_ptr<CallError> misfit;
      if (kind == "table") {
        // No exception crosses the handler.
        call.take = [&](const transship_value &emitted) {
          try {
            if (misfit) return;
            results.push_back(write(emitted, row));
            numbers.push_back(row);
          } catch (const CallError &error) {
            misfit = std::make_unique<CallError>(error);
          }
        };
      }
      row_function(&call, values.data(), &result);
      check(call, static_cast<int64_t>(row));
      if (misfit) throw *misfit;
      if (kind == "scalar") results.push_back(write(result, row));
    }
    return kind == "table" ? json::array({numbers, results}) : json::array({results});
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

  json answer(const Columns &columns, std::size_t rows, const std::string &step) {
    const std::lock_guard guard(lock);
    Call call;
    json results = json::array(), bytes = json::array();
    std::vector<transship_value> values(function.arguments.size());
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
        results.push_back(function.write(result, row));
        bytes.push_back(nullptr);
      } else if (step == "state") {
        const auto &found = state(number);
        results.push_back(nullptr);
        bytes.push_back(encode_base64(std::string(found.begin(), found.end())));
      } else if (step == "forget") {
        states.erase(number);
      } else {
        throw violation("there is no step \"" + step + "\"");
      }
      function.check(call, static_cast<int64_t>(row));
    }
    return json::array({results, bytes});
  }
};

/// A thread per connection: each lasts as long as its client keeps it. A container has 128 of them, and what comes on top
/// waits.
class Threads : public httplib::TaskQueue {
public:
  void enqueue(std::function<void()> work) override {
    room_.acquire();
    std::thread([this, work = std::move(work)] {
      work();
      room_.release();
    }).detach();
  }
  void shutdown() override {}

private:
  std::counting_semaphore<max_connections> room_{max_connections};
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
    if (folder) {
      const std::string path = std::string(folder) + "/http.sock";
      unlink(path.c_str());
      listen(path, 80, AF_UNIX);
    }
    if (port) listen("0.0.0.0", std::atoi(port), AF_INET);
    std::cerr << "transship: ready, " << functions_.size() << " functions" << std::endl;
    int signal = 0;
    sigwait(&signals, &signal);
    for (auto &server : servers_) server.stop();
    // What is running is finished.
    for (const auto start = Clock::now(); running_ > 0 && Clock::now() - start < stop_patience;) usleep(10'000);
    std::_Exit(0);
  }

private:
  void listen(const std::string &host, int port, int family) {
    httplib::Server &server = servers_.emplace_back();
    server.new_task_queue = [] { return new Threads; };
    server.set_keep_alive_max_count(SIZE_MAX);
    server.set_keep_alive_timeout(600);
    server.set_read_timeout(600);
    server.set_write_timeout(600);
    server.set_payload_max_length(max_body_bytes);
    server.set_address_family(family);
    const auto answer = [this](const httplib::Request &request, httplib::Response &response) { respond(request, response); };
    server.Get(".*", answer);
    server.Post(".*", answer);
    server.Delete(".*", answer);
    std::thread([&server, host, port] {
      if (!server.listen(host, port)) {
        std::cerr << "transship: cannot listen on " << host << std::endl;
        std::_Exit(1);
      }
    }).detach();
  }

  void respond(const httplib::Request &request, httplib::Response &response) {
    running_++;
    try {
      response.set_content(answer(request).dump(), "application/json");
    } catch (const CallError &error) {
      response.status = error.kind == "function_not_found" ? 404 : error.kind == "protocol_violation" ? 400 : 500;
      response.set_content(error.to_wire().dump(-1, ' ', false, json::error_handler_t::replace), "application/json");
    } catch (const std::exception &error) {
      response.status = 400;
      response.set_content(violation(error.what()).to_wire().dump(-1, ' ', false, json::error_handler_t::replace), "application/json");
    }
    running_--;
  }

  json answer(const httplib::Request &request) {
    static const std::string prefix = "/v1/functions/", exchanges = "/v1/exchanges/";
    if (request.method == "GET" && request.path == "/v1") {
      return {{"protocol", 1}, {"server", "transship-cpp/0.2.0"}, {"functions", names_}, {"transports", {"json"}}};
    }
    if (request.method == "DELETE" && request.path.starts_with(exchanges)) {
      const std::lock_guard guard(lock_);
      exchanges_.erase(request.path.substr(exchanges.size()));
      return json::object();
    }
    const std::string name = request.path.starts_with(prefix) ? request.path.substr(prefix.size()) : request.path;
    const Function *function = nullptr;
    for (const Function &each : functions_) if (each.name == name) function = &each;
    if (!function) throw CallError{"function_not_found", "there is no function \"" + name + "\"", -1, ""};
    if (request.method == "GET") {
      json arguments = json::array();
      for (const auto &[argument, type] : function->arguments) arguments.push_back({{"name", argument}, {"type", type.text}});
      return {{"name", name}, {"kind", function->kind}, {"arguments", arguments}, {"returns", function->returns.text}};
    }
    Memory memory;
    const json call = json::parse(request.body);
    const Columns columns = function->read(call, memory);
    const auto start = Clock::now();
    const std::size_t rows = call["rows"];
    const json reply = function->kind == "aggregate" ? find_groups(call, *function)->answer(columns, rows, call.value("step", ""))
                                                     : function->answer(columns, rows);
    const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
    return {{"batch", call.value("batch", 0)}, {"rows", reply[0].size()}, {"micros", micros}, {"columns", reply}};
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
  std::list<httplib::Server> servers_;
  std::atomic<int> running_ = 0;
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
